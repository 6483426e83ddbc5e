// What a multiprocessor reaches on tensor-core products alone, for the kernel bench: every share "of
// mma.sync" in docs/performance-gpu.md is of this.
#include "ops/cuda/common.cuh"

namespace firesteel::cuda {

namespace {

/// Eight chains a warp, as the product kernels have at least.
template <bool kHalf>
__device__ __forceinline__ void probe(const ProbeParams& p) {
  constexpr int kChains = 8;
  begin_kernel();
  float acc[kChains][4] = {};
  const uint32_t a[4] = {threadIdx.x, 1, 2, 3};
  for (int k = 0; k < p.rounds; ++k) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) mma<kHalf>(acc[i], a, threadIdx.x + i, 5);
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kChains; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) sum += acc[i][r];
  p.out[blockIdx.x * 256 + threadIdx.x] = sum;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) probe_f16(const __grid_constant__ ProbeParams p) {
  probe<true>(p);
}
extern "C" __global__ void __launch_bounds__(256) probe_bf16(const __grid_constant__ ProbeParams p) {
  probe<false>(p);
}

}  // namespace firesteel::cuda
