// The GPU's side of a sum over ranks: parts and two flags in host memory (host_exchange.h), or the sum of
// gathered parts (nccl_exchange.h).
#include "ops/cuda/common.cuh"
#include "ops/cuda/exchange_params.h"

namespace firesteel::cuda {

namespace {

/// Copies between the GPU and page-locked memory, 16 bytes a thread and step where the length allows it. What
/// is read never comes from a cache: the host may have written it since.
__device__ __forceinline__ void copy_part(const float* from, float* to, int64_t count) {
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                step = int64_t{gridDim.x} * blockDim.x;
  if (count % 4 == 0) {
#pragma unroll 4
    for (int64_t i = first; i < count / 4; i += step)
      reinterpret_cast<float4*>(to)[i] = __ldcv(reinterpret_cast<const float4*>(from) + i);
  } else {
    for (int64_t i = first; i < count; i += step) to[i] = __ldcv(from + i);
  }
}

}  // namespace

/// Takes the part to the host; the last block says so there, with the row length.
extern "C" __global__ void __launch_bounds__(256)
    exchange_send(const __grid_constant__ ExchangeSendParams p) {
  begin_kernel();
  copy_part(p.part, p.host, p.count);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(p.arrived, 1u) != gridDim.x - 1) return;
  *p.arrived = 0;
  __threadfence_system();
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p.flag), "r"(p.value) : "memory");
}

/// Waits for the sum and takes the flag back. The host always answers. One thread, and nothing is let in
/// behind it: blocks that wait for another rank must not take a multiprocessor from a rank on the same GPU.
extern "C" __global__ void __launch_bounds__(1) exchange_wait(const __grid_constant__ ExchangeWaitParams p) {
  begin_kernel<false>();
  uint32_t value = 0;
  while (value == 0) asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(p.flag) : "memory");
  asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(p.flag), "r"(0) : "memory");
}

/// Takes the sum from the host.
extern "C" __global__ void __launch_bounds__(256)
    exchange_take(const __grid_constant__ ExchangeTakeParams p) {
  begin_kernel();
  copy_part(p.host, p.part, p.count);
}

namespace {

template <typename T>
__device__ __forceinline__ T add(T a, T b);
template <>
__device__ __forceinline__ float add(float a, float b) {
  return a + b;
}
template <>
__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/// Ranks hold the slices in order: (s0 + s1) + (s2 + s3) whatever their number (DESIGN section 4).
template <typename T>
__device__ __forceinline__ void sum_at(const ExchangeSumParams& p, int64_t count, int64_t i) {
  const T* const all = reinterpret_cast<const T*>(p.all) + i;
  T sum = add(all[0], all[count]);
  if (p.ranks == 4) sum = add(sum, add(all[2 * count], all[3 * count]));
  reinterpret_cast<T*>(p.part)[i] = sum;
}

}  // namespace

/// part = the sum of the gathered parts. 256 threads, four elements each.
extern "C" __global__ void __launch_bounds__(256) exchange_sum(const __grid_constant__ ExchangeSumParams p) {
  begin_kernel();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  // The host sees by it that the other ranks go on.
  if (i == 0) asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(p.progress), "r"(p.value) : "memory");
  if (p.count % 4 == 0) {
    if (i < p.count / 4) sum_at<float4>(p, p.count / 4, i);
  } else {
    for (int64_t at = 4 * i; at < min(4 * i + 4, p.count); ++at) sum_at<float>(p, p.count, at);
  }
}

}  // namespace firesteel::cuda
