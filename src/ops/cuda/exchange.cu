// The GPU's side of a sum over ranks by way of the host (host_exchange.h): two flags in host memory.
#include "ops/cuda/common.cuh"

namespace firesteel::cuda {

/// The part is on the host (the copy before this kernel has ended): says so, with the row length.
extern "C" __global__ void __launch_bounds__(1)
    exchange_request(const __grid_constant__ ExchangeFlagParams p) {
  begin_kernel();
  __threadfence_system();
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p.flag), "r"(p.value) : "memory");
}

/// Waits for the sum and takes the flag back. The host always answers.
extern "C" __global__ void __launch_bounds__(1) exchange_wait(const __grid_constant__ ExchangeFlagParams p) {
  begin_kernel();
  uint32_t value = 0;
  while (value == 0) asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(p.flag) : "memory");
  asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(p.flag), "r"(0) : "memory");
}

}  // namespace firesteel::cuda
