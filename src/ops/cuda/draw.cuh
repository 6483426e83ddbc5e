// What the kernels of draw.cu compute of one token: order keys, bins of distance, masses, noise. The numbers
// are those of decode/sampler_impl.h.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/draw_params.h"
#include "ops/cuda/math64.cuh"

namespace firesteel::cuda {

// ----------------------------------------------------------------------------------------------- the order

__device__ __forceinline__ uint32_t ordered_bits(float v) {
  const uint32_t b = __float_as_uint(v + 0.0f);  // −0 becomes +0
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}
/// Larger = earlier in the order; 0 is no token.
__device__ __forceinline__ uint64_t order_key(float v, uint32_t index) {
  return static_cast<uint64_t>(ordered_bits(v)) << 32 | (~index & 0xffffffffu);
}
__device__ __forceinline__ uint32_t key_index(uint64_t key) { return ~static_cast<uint32_t>(key); }
__device__ __forceinline__ float key_value(uint64_t key) {
  const auto b = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(b & 0x80000000u ? b & 0x7fffffffu : ~b);
}

/// The logit of a token that may be drawn, at most the largest finite float; else −∞.
__device__ __forceinline__ float usable_logit(const DrawParams& p, const DrawSpec& spec, int i) {
  float v = spec.logits[i];
  if (spec.mask >= 0) {
    const int bit = i + p.mask_shift;
    if ((p.masks[static_cast<int64_t>(spec.mask) * p.mask_words + (bit >> 5)] >> (bit & 31) & 1u) == 0)
      v = -INFINITY;
  }
  return v > -INFINITY ? fminf(v, 3.402823466e38f) : -INFINITY;  // NaN too
}

// ------------------------------------------------------------------------------------------------- the bins

// A token's bin says how far its logit lies below the maximum: 64 bins for each power of two from 1/128 to
// 128, what is nearer or farther in the first or last. It grows along the order, is equal for equal logits,
// and needs no temperature.
__device__ __forceinline__ int bin_of(float top, float v) {
  constexpr int kFirst = (127 - 7) * 64;  // of 2^-7, in exponent and six bits of the mantissa
  const int bin = static_cast<int>(__float_as_uint(top - v) >> 17) - kFirst;
  return min(max(bin, 0), kDrawBins - 1);
}

// ----------------------------------------------------------------------------------------- masses and noise

__device__ __forceinline__ double scaled(float v, double temperature) {
  return temperature == 1.0 ? static_cast<double>(v) : __ddiv_rn(static_cast<double>(v), temperature);
}

/// ⌊exp(s − M) · 2^40⌋.
__device__ __forceinline__ int64_t fixed_mass(double s, double best) {
  double d = __dsub_rn(s, best);
  d = d > -28.0 ? d : -28.0;
  d = d < 0.0 ? d : 0.0;
  return __double2ll_rd(__dmul_rn(exp64_bounded(d), 0x1p40));
}
/// The same; most tokens of a peaked row have none, which fp32 can tell.
__device__ __forceinline__ int64_t mass_of(const DrawSpec& spec, float v, float top, double best) {
  if ((v - top) * spec.inverse < -28.01f) return 0;
  return fixed_mass(scaled(v, spec.temperature), best);
}

__device__ __forceinline__ uint64_t token_hash(uint64_t row, uint32_t id) {
  uint64_t x = row ^ id;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}
__device__ __forceinline__ double gumbel(uint64_t hash) {
  const double u = __dmul_rn(__dadd_rn(__ull2double_rn(hash >> 12), 0.5), 0x1p-52);
  return -log64_normal(-log64_normal(u));
}

/// The score s + noise to within `error`, in fp32: which tokens are worth the exact one.
struct Estimate {
  float score, error;
};
__device__ __forceinline__ Estimate estimate(const DrawSpec& spec, float v, uint64_t hash) {
  const float rest = (__ull2float_rn(~hash >> 12) + 0.5f) * 0x1p-52f;  // 1 − u
  const float t = rest < 0.01f ? rest * (1.0f + rest * (0.5f + rest * 0.3333333f))
                               : -__logf((__ull2float_rn(hash >> 12) + 0.5f) * 0x1p-52f);  // −ln u
  const float s = v * spec.inverse;
  return {s - __logf(t), 4e-3f + 4e-6f * fabsf(s)};
}

// ------------------------------------------------------------------------------------------------ the winner

__device__ __forceinline__ bool beats(const DrawWinner& a, const DrawWinner& b) {
  if (a.key == 0 || b.key == 0) return b.key == 0 && a.key != 0;
  return a.score > b.score || (a.score == b.score && a.key > b.key);
}

/// The tokens that a thread offers, several at a time: those whose estimate shows that they cannot win are
/// not evaluated. Every thread of the block calls round() the same number of times.
template <int kThreads>
class WinnerSearch {
 public:
  __device__ WinnerSearch(const DrawSpec& spec, int first_id, double best, float* shared)
      : spec_(spec), first_id_(first_id), floor_(__dadd_rn(best, spec.log_min_p)), shared_(shared) {}

  /// `value(i)`, `index(i)` of items 0 to kItems − 1; a value of −∞ is no token.
  template <int kItems, typename Value, typename Index>
  __device__ __forceinline__ void round(Value value, Index index) {
    float most[kItems], low = -INFINITY;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const float v = value(i);
      most[i] = -INFINITY;
      if (!(v > -INFINITY)) continue;
      if (floor_ > -INFINITY && scaled(v, spec_.temperature) < floor_) continue;
      const Estimate e =
          estimate(spec_, v, token_hash(spec_.noise, static_cast<uint32_t>(first_id_ + index(i))));
      most[i] = e.score + e.error;
      if (!(most[i] > -INFINITY)) most[i] = INFINITY;  // no estimate
      low = fmaxf(low, e.score - e.error);
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) low = fmaxf(low, __shfl_xor_sync(0xffffffffu, low, mask));
    __syncthreads();
    if ((threadIdx.x & 31) == 0) shared_[threadIdx.x >> 5] = low;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) low = fmaxf(low, shared_[w]);
    least_ = fmaxf(least_, low);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (!(most[i] > -INFINITY) || most[i] < least_) continue;
      const float v = value(i);
      const auto at = static_cast<uint32_t>(index(i));
      const uint64_t hash = token_hash(spec_.noise, static_cast<uint32_t>(first_id_) + at);
      offer({__dadd_rn(scaled(v, spec_.temperature), gumbel(hash)), order_key(v, at)});
    }
  }
  __device__ __forceinline__ void offer(const DrawWinner& other) {
    if (beats(other, best_)) best_ = other;
  }
  /// The best of all threads, in thread 0; `shared` has one for each warp.
  __device__ __forceinline__ DrawWinner best(DrawWinner* shared) {
    const auto reduce = [&](int from) {
#pragma unroll
      for (int mask = from; mask > 0; mask >>= 1)
        offer(
            {__shfl_xor_sync(0xffffffffu, best_.score, mask), __shfl_xor_sync(0xffffffffu, best_.key, mask)});
    };
    reduce(16);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = best_;
    __syncthreads();
    if (threadIdx.x < 32) {
      best_ = threadIdx.x < kThreads / 32 ? shared[threadIdx.x] : DrawWinner{0, 0};
      reduce(16);
    }
    return best_;
  }

 private:
  const DrawSpec& spec_;
  const int first_id_;
  const double floor_;
  float* const shared_;
  float least_ = -INFINITY;  // some token's score is at least this
  DrawWinner best_{0, 0};
};

// ------------------------------------------------------------------------------------------ sums over a
// block

template <int kThreads>
__device__ __forceinline__ uint64_t block_max(uint64_t v, uint64_t* shared) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, v, mask);
    v = other > v ? other : v;
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) v = shared[w] > v ? shared[w] : v;
  return v;
}

/// 64-bit sums in shared memory by 32-bit atomics, the only ones that the hardware has there.
__device__ __forceinline__ void add_shared(uint32_t* low, uint32_t* high, uint64_t v) {
  const auto part = static_cast<uint32_t>(v);
  const uint32_t before = atomicAdd(low, part);
  const uint32_t above = static_cast<uint32_t>(v >> 32) + (before + part < before ? 1u : 0u);
  if (above != 0) atomicAdd(high, above);
}

/// A running sum over kThreads · 4 weights, four a thread.
struct WeightScan {
  int64_t before;  // sum of the weights of the threads before this one
  int64_t total;
};
template <int kThreads>
__device__ __forceinline__ WeightScan scan_weights(const int64_t (&weight)[4], int64_t* shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int64_t own = weight[0] + weight[1] + weight[2] + weight[3];
  int64_t sum = own;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  WeightScan scan{sum - own, 0};
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) scan.before += shared[w];
    scan.total += shared[w];
  }
  return scan;
}

/// The weight with which the running sum first reaches `target` > 0: one thread writes its place and the sum
/// before it.
struct CutPoint {
  int place;
  int64_t before;
};
__device__ __forceinline__ void find_cut(const int64_t (&weight)[4], const WeightScan& scan, int64_t target,
                                         CutPoint* out) {
  int64_t before = scan.before;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (before < target && before + weight[i] >= target)
      *out = {4 * static_cast<int>(threadIdx.x) + i, before};
    before += weight[i];
  }
}

}  // namespace firesteel::cuda
