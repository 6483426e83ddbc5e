// How a row's experts are chosen from its logits, by one warp. Scores with bias pick, unbiased probabilities
// weigh; ties go to the lower id, scores that are not numbers come last.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/layer_params.h"
#include "ops/cuda/meeting.cuh"

namespace firesteel::cuda {

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
    uint32_t most[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) most[i] = choice[i];
#pragma unroll
    for (int step = 1; step < kPerLane; step *= 2)
#pragma unroll
      for (int i = 0; i + step < kPerLane; i += 2 * step) most[i] = max(most[i], most[i + step]);
    best = most[0], slot = 0;
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i)
      if (choice[i] == best) slot = i;
  };
  find_best();
#pragma unroll 1
  for (int n = 0; n < p.top_k; ++n) {
    const uint32_t top = __reduce_max_sync(0xffffffffu, best);
    bool mine = best == top;
    if (__popc(__ballot_sync(0xffffffffu, mine)) > 1) {
      const uint32_t id = mine ? lane + 32 * slot : ~0u;
      mine = id == __reduce_min_sync(0xffffffffu, id);
    }
    if (mine) {
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
      if (p.picks != nullptr && p.rows == 1) store_relaxed(p.picks + at, lane + 32 * i + 1);
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
  if (p.picks != nullptr && lane == 0) publish(p.picks + kMostPicks + row, 1);
}

}  // namespace firesteel::cuda
