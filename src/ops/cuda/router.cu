// The router: an expert's logit is a product, a row's experts are chosen by one warp. Scores with bias pick,
// unbiased probabilities weigh; ties go to the lower id, scores that are not numbers come last.
//
// Few rows: router_few, products and choice in one launch; the last block to end chooses. Prompts: the
// product kernels, then router_pick. The sums have the same order.
#include "ops/cuda/common.cuh"
#include "ops/cuda/layer_params.h"
#include "ops/cuda/matmul_common.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kMostPicks = 64;

/// Greater score, greater key, never 0; a score that is not a number counts as -∞.
__device__ __forceinline__ uint32_t choice_key(float v) {
  const uint32_t b = __float_as_uint(isnan(v) ? -INFINITY : v + 0.0f);
  return b ^ ((b >> 31) ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float key_value(uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) ? 0x80000000u : 0xffffffffu));
}

/// Experts outside the best groups count as -∞. A lane holds experts lane, lane + 32, …
template <int kPerLane>
__device__ __forceinline__ void keep_best_groups(const RouterParams& p, uint32_t (&choice)[kPerLane]) {
  const int lane = threadIdx.x & 31;
  // The greatest choice of the warp among experts [begin, end), the lowest of equals: every lane gets it.
  const auto best_of = [&](int begin, int end, uint32_t& key, int& index) {
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane + 32 * i;
      if (e >= begin && e < end) top = max(top, choice[i]);
    }
    key = __reduce_max_sync(0xffffffffu, top);
    uint32_t first = 1u << 30;
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i) {
      const int e = lane + 32 * i;
      if (e >= begin && e < end && choice[i] == key) first = e;
    }
    index = static_cast<int>(__reduce_min_sync(0xffffffffu, first));
  };
  // A group's score is the sum of its two best; lane g (and g + 32) keeps that of group g.
  const int size = p.experts / p.groups;
  float score[2] = {-INFINITY, -INFINITY};
  for (int g = 0; g < p.groups; ++g) {
    uint32_t first, second = 0;
    int at, other;
    best_of(g * size, (g + 1) * size, first, at);
    float sum = key_value(first);
    if (size > 1) {
      uint32_t kept[kPerLane];
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        kept[i] = choice[i];
        if (lane + 32 * i == at) choice[i] = 0;
      }
      best_of(g * size, (g + 1) * size, second, other);
      sum += key_value(second);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) choice[i] = kept[i];
    }
    if (lane == (g & 31)) score[g >> 5] = sum;
  }
  uint64_t kept_groups = 0;
  for (int n = 0; n < p.top_groups; ++n) {
    float value = -INFINITY;
    int index = 1 << 30;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int g = lane + 32 * i;
      if (g < p.groups && !(kept_groups >> g & 1) && (index == 1 << 30 || score[i] > value)) {
        value = score[i];
        index = g;
      }
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) {
      const float v = __shfl_xor_sync(0xffffffffu, value, mask);
      const int g = __shfl_xor_sync(0xffffffffu, index, mask);
      if (g < 1 << 30 && (index == 1 << 30 || v > value || (v == value && g < index))) {
        value = v;
        index = g;
      }
    }
    kept_groups |= 1ull << (index & 63);
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    if (e < p.experts && !(kept_groups >> (e / size) & 1)) choice[i] = choice_key(-INFINITY);
  }
}

/// One warp chooses the experts of a row from its logits; `probs` is kMostPicks floats of shared memory.
template <int kPerLane, bool kGroups>
__device__ __forceinline__ void choose(const RouterParams& p, int row, const float (&logit)[kPerLane],
                                       float* probs) {
  const int lane = threadIdx.x & 31;
  float prob[kPerLane];
  uint32_t choice[kPerLane];  // ordered as the scores are; 0: out
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    prob[i] = __fdividef(1.0f, 1.0f + expf(-logit[i]));
    choice[i] = e < p.experts ? choice_key(prob[i] + p.bias[e]) : 0;
  }
  if constexpr (kGroups) {
    if (p.groups > 1) keep_best_groups(p, choice);
  }
  uint32_t picked = 0, best;  // bit i: expert lane + 32·i
  int slot;
  const auto find_best = [&] {
    best = 0, slot = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (choice[i] > best) best = choice[i], slot = i;
    }
  };
  find_best();
#pragma unroll 1
  for (int n = 0; n < p.top_k; ++n) {
    const uint32_t top = __reduce_max_sync(0xffffffffu, best);
    const uint32_t mine = best == top ? lane + 32 * slot : ~0u;
    if (mine == __reduce_min_sync(0xffffffffu, mine)) {
      picked |= 1u << slot;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (i == slot) choice[i] = 0;
      find_best();
    }
    __syncwarp();
  }
  // Ascending ids: all lanes' first experts, then all lanes' second ones, …
  int before = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const bool here = picked >> i & 1;
    const uint32_t mask = __ballot_sync(0xffffffffu, here);
    if (here) {
      const int at = before + __popc(mask & ((1u << lane) - 1));
      probs[at] = prob[i];
      p.idx[row * p.top_k + at] = lane + 32 * i;
    }
    before += __popc(mask);
  }
  __syncwarp();
  float sum = 0.0f;
#pragma unroll 8
  for (int i = 0; i < p.top_k; ++i) sum += probs[i];
  for (int i = lane; i < p.top_k; i += 32) {
    const float w = p.norm_topk ? probs[i] / (sum + 1e-20f) : probs[i];
    p.weight[row * p.top_k + i] = w * p.factor;
  }
  __syncwarp();
}

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
__device__ unsigned blocks_done;

}  // namespace

extern "C" __global__ void __launch_bounds__(128) router_pick_320(const __grid_constant__ RouterParams p) {
  pick_row<10, 8>(p);
}
extern "C" __global__ void __launch_bounds__(128) router_pick_1024(const __grid_constant__ RouterParams p) {
  pick_row<32, 2>(p);
}

/// grid: (⌈experts / 16⌉, pairs of units of K). The weights are spread over as many multiprocessors as it
/// takes: a block's first two warps have a unit of 16 experts each, the others only choose. At most eight
/// rows, eight units (of whole groups of columns) and 320 experts in one group.
extern "C" __global__ void __launch_bounds__(256, 1) router_few(const __grid_constant__ RouterFewParams p) {
  constexpr int kUnitGroups = kUnit / kGroupK;
  __shared__ float probs[8][kMostPicks];
  __shared__ bool last;
  const RouterParams& r = p.router;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int groups = p.k / kGroupK, unit = blockIdx.y * 2 + warp, group0 = unit * kUnitGroups;
  const bool multiplies = warp < 2 && unit < r.units;
  Bf16Weights w[kUnitGroups];
  if (multiplies) {
#pragma unroll
    for (int g = 0; g < kUnitGroups; ++g) {
      if (group0 + g < groups) {
        w[g].load(p.weight +
                  (static_cast<int64_t>(blockIdx.x) * groups + group0 + g) * Bf16Weights::kGroupBytes);
      }
    }
  } else if (threadIdx.x >= 64 && (threadIdx.x - 64) * 32 < static_cast<unsigned>(r.experts)) {
    prefetch_l2(reinterpret_cast<const uint8_t*>(r.bias + 32 * (threadIdx.x - 64)));
  }
  begin_kernel();
  if (multiplies) {
    const Bits16* x =
        p.x + static_cast<int64_t>(min(lane >> 2, r.rows - 1)) * p.k + group0 * kGroupK + 8 * (lane & 3);
    float acc[1][4] = {};
    uint4 b[kUnitGroups][2];
#pragma unroll
    for (int g = 0; g < kUnitGroups; ++g)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (group0 + g < groups) b[g][i] = *reinterpret_cast<const uint4*>(x + g * kGroupK + 32 * i);
#pragma unroll
    for (int g = 0; g < kUnitGroups; ++g) {
      if (group0 + g >= groups) break;
      const uint4 low[1] = {b[g][0]}, high[1] = {b[g][1]};
      multiply_half<0>(w[g], low, acc);
      multiply_half<1>(w[g], high, acc);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 2 * (lane & 3) + (i & 1), expert = blockIdx.x * kTileN + (lane >> 2) + 8 * (i >> 1);
      if (row < r.rows && expert < r.experts)
        p.logits[(unit * r.rows + row) * r.experts + expert] = acc[0][i];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(&blocks_done, 1u) == gridDim.x * gridDim.y - 1;
    if (last) blocks_done = 0;
    __threadfence();
  }
  __syncthreads();
  if (!last || warp >= r.rows) return;
  float part[8][10], logit[10] = {};
#pragma unroll
  for (int u = 0; u < 8; ++u)
#pragma unroll
    for (int i = 0; i < 10; ++i) {
      const int e = lane + 32 * i;
      part[u][i] =
          u < r.units && e < r.experts ? __ldcg(p.logits + (u * r.rows + warp) * r.experts + e) : 0.0f;
    }
#pragma unroll
  for (int u = 0; u < 8; ++u)
#pragma unroll
    for (int i = 0; i < 10; ++i)
      if (u < r.units) logit[i] += part[u][i];
  choose<10, false>(r, warp, logit, probs[warp]);
}

}  // namespace firesteel::cuda
