// The GPU's side of a sum over ranks: two flags in host memory (host_exchange.h), or the sum of gathered
// parts (nccl_exchange.h).
#include "ops/cuda/common.cuh"
#include "ops/cuda/exchange_params.h"

namespace firesteel::cuda {

namespace {

// Blocks of a copy that have ended; the last one sets it back. One launch at a time uses it: ops are issued
// on one stream.
__device__ unsigned blocks_done;

__device__ __forceinline__ bool last_of_the_grid() {
  __shared__ bool last;
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(&blocks_done, 1u) == gridDim.x - 1;
    if (last) blocks_done = 0;
    __threadfence_system();
  }
  __syncthreads();
  return last;
}

}  // namespace

/// Copies the part to the host and then says so there, with the row length. Kernels copy, not the copy
/// engines: a copy that waits for its turn there would hold up those of other ranks on the same GPU.
extern "C" __global__ void __launch_bounds__(256)
    exchange_send(const __grid_constant__ ExchangeCopyParams p) {
  begin_kernel();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step)
    p.to[i] = p.from[i];
  if (last_of_the_grid() && threadIdx.x == 0)
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p.flag), "r"(p.value) : "memory");
}

/// Waits for the sum, copies it, and takes the flag back. The host always answers. Until then nothing of what
/// comes next is let in: kernels that wait could fill the GPU, and another rank on it would find no room.
extern "C" __global__ void __launch_bounds__(256)
    exchange_receive(const __grid_constant__ ExchangeCopyParams p) {
  begin_kernel<false>();
  if (threadIdx.x == 0) {
    uint32_t value = 0;
    while (value == 0) asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(p.flag) : "memory");
  }
  __syncthreads();
  end_kernel();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step)
    p.to[i] = __ldcv(p.from + i);
  if (last_of_the_grid() && threadIdx.x == 0)
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(p.flag), "r"(0) : "memory");
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
