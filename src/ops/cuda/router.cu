// The router: an expert's logit is a product, a row's experts are chosen by one warp (router_choice.cuh).
//
// Few rows: router_few, products and choice in one launch. Prompts: the product kernels, then router_pick.
// The sums have the same order.
#include "ops/cuda/one_unit.cuh"
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

// Blocks of router_few that have ended; the last one sets it back. One launch at a time uses it: ops are
// issued on one stream.
__device__ int32_t blocks_done;

}  // namespace

extern "C" __global__ void __launch_bounds__(128) router_pick_320(const __grid_constant__ RouterParams p) {
  pick_row<10, 8>(p);
}
extern "C" __global__ void __launch_bounds__(128) router_pick_1024(const __grid_constant__ RouterParams p) {
  pick_row<32, 2>(p);
}

/// grid: ⌈experts / 16⌉. A warp has a unit of 16 experts; the last block to end chooses, a warp a row. At
/// most eight rows, eight units and 320 experts in one group. What comes next is let in when the kernels
/// before this one have ended (see experts_begin.cu).
extern "C" __global__ void __launch_bounds__(256, 1) router_few(const __grid_constant__ RouterFewParams p) {
  __shared__ UnitSums sums[8];
  __shared__ float probs[8][kMostPicks];
  __shared__ bool last;
  const RouterParams& r = p.router;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  OneUnit<Bf16Weights, kUnitGroups> unit;
  if (warp < r.units) unit.start(p.weight, blockIdx.x, p.k, warp);
  if (static_cast<int>(threadIdx.x) * 32 < r.experts)
    prefetch_l2(reinterpret_cast<const uint8_t*>(r.bias + 32 * threadIdx.x));
  for (int at = 128 * (blockIdx.x * 256 + threadIdx.x); at < p.table_bytes; at += 128 * 256 * gridDim.x)
    prefetch_l2(p.table + at);
  // Who read the last ones has let the kernels behind it in afterwards.
  if (r.picks != nullptr && blockIdx.x == 0 && warp == 0) {
    for (int i = lane; i < kPicksSize; i += 32) r.picks[i] = 0;
    __threadfence();
  }
  begin_kernel<false>();
  __syncthreads();
  end_kernel();
  if (warp < r.units) {
    float acc[1][4] = {};
    unit.multiply(unit_row(p.x, p.k, r.rows, 0, warp), acc);
    sums[warp].store(acc);
  }
  __syncthreads();
  const int row = threadIdx.x / kTileN, channel = threadIdx.x % kTileN,
            expert = blockIdx.x * kTileN + channel;
  if (row < r.rows && expert < r.experts) {
    float sum = 0.0f;
#pragma unroll
    for (int u = 0; u < 8; ++u)
      if (u < r.units) sum += sums[u].of[row][channel];
    p.logits[row * r.experts + expert] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    last = arrives_last(&blocks_done, gridDim.x);
    if (last) {
      blocks_done = 0;
      see_others();
    }
  }
  __syncthreads();
  if (!last || warp >= r.rows) return;
  float logit[10];
#pragma unroll
  for (int i = 0; i < 10; ++i) {
    const int e = lane + 32 * i;
    logit[i] = e < r.experts ? __ldcg(p.logits + warp * r.experts + e) : 0.0f;
  }
  choose<10, false>(r, warp, logit, probs[warp]);
}

}  // namespace firesteel::cuda
