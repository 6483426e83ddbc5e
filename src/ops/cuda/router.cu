// The choice of experts after the product kernels; few rows: experts_begin.cu. The sums have the same order.
#include "ops/cuda/router_choice.cuh"

namespace firesteel::cuda {

namespace {

/// The logits of a row from the sums of its units, kAhead in flight, added in order.
template <int kPerLane, int kAhead>
__device__ __forceinline__ void pick_row(const RouterParams& p) {
  __shared__ float probs[4][kMostPicks];
  begin_kernel();
  const int row = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (row >= p.rows) return;
  float logit[kPerLane] = {};
  for (int u0 = 0; u0 < p.units; u0 += kAhead) {
    float part[kAhead][kPerLane];
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const bool real = u0 + u < p.units && lane + 32 * i < p.experts;
        part[u][i] =
            real ? p.logits[(u0 + u) * p.unit_stride + static_cast<int64_t>(row) * p.experts + lane + 32 * i]
                 : 0.0f;
      }
#pragma unroll
    for (int u = 0; u < kAhead; ++u)
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (u0 + u < p.units) logit[i] += part[u][i];
  }
  choose<kPerLane, true>(p, row, logit, probs[threadIdx.x >> 5]);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) router_pick_320(const __grid_constant__ RouterParams p) {
  pick_row<10, 8>(p);
}
extern "C" __global__ void __launch_bounds__(128) router_pick_1024(const __grid_constant__ RouterParams p) {
  pick_row<32, 2>(p);
}

}  // namespace firesteel::cuda
