// The linear-attention layer between its projections (spec/model.md 2.3), always as the serial recurrence:
// the one arithmetic for prompts and decoding, so that a prompt may be cut anywhere.
//
// A task is one head of one segment. Its rows are prepared in small groups (convolution, norms, gates); then
// the state is walked in strips of value columns, each strip through all rows of the group while it is in
// cache. Columns do not mix.
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace firesteel::cpu {
namespace {

constexpr int32_t kGroup = 16;  // rows prepared together

size_t padded(int32_t dim) { return (static_cast<size_t>(dim) + kLanes - 1) / kLanes * kLanes; }

/// One task's scratch, [kGroup, padded dim] each but for the convolution's weights.
struct HeadScratch {
  float *conv, *q, *k, *v, *decay, *o, *beta;
  static size_t floats(int32_t dim, int32_t taps) {
    return padded(dim) * (3 * static_cast<size_t>(taps) + 5 * kGroup) + kGroup;
  }
  HeadScratch(float* p, int32_t dim, int32_t taps) {
    const size_t d = padded(dim);
    const auto next = [&](size_t count) {
      float* at = p;
      p += count;
      return at;
    };
    conv = next(d * 3 * static_cast<size_t>(taps));
    q = next(d * kGroup);
    k = next(d * kGroup);
    v = next(d * kGroup);
    decay = next(d * kGroup);
    o = next(d * kGroup);
    beta = next(kGroup);
  }
};

/// x ← x / √(Σx² + 1e-6) · scale, over padded vectors whose tail is 0.
void l2_normalise(float* x, size_t padded_dim, float scale) {
  const V16 r = set16(rsqrt1(sum_squares(x, padded_dim) + 1e-6f));
  const V16 s = set16(scale);
  for (size_t i = 0; i < padded_dim; i += kLanes) store16(mul(mul(load16(x + i), r), s), x + i);
}

/// Columns [c, c + 16·NB) of the state through `rows` rows; `count` columns of the last 16 are real.
template <int NB>
void strip(float* state, int32_t dim, size_t c, size_t count, int32_t rows, const HeadScratch& s) {
  const size_t d = padded(dim);
  const auto width = [&](int b) { return b + 1 == NB ? count : kLanes; };
  for (int32_t t = 0; t < rows; ++t) {
    const float* k = s.k + static_cast<size_t>(t) * d;
    const float* q = s.q + static_cast<size_t>(t) * d;
    const float* decay = s.decay + static_cast<size_t>(t) * d;
    V16 seen[NB], out[NB], delta[NB];
    for (int b = 0; b < NB; ++b) seen[b] = out[b] = zero16();
    for (int32_t i = 0; i < dim; ++i) {
      const float* row = state + static_cast<int64_t>(i) * dim + c;
      const V16 a = set16(decay[i]), ki = set16(k[i]);
      for (int b = 0; b < NB; ++b) seen[b] = fma(mul(a, load16(row + b * kLanes, width(b))), ki, seen[b]);
    }
    const V16 beta = set16(s.beta[t]);
    for (int b = 0; b < NB; ++b) {
      delta[b] = mul(beta, sub(load16(s.v + static_cast<size_t>(t) * d + c + b * kLanes), seen[b]));
    }
    for (int32_t i = 0; i < dim; ++i) {
      float* row = state + static_cast<int64_t>(i) * dim + c;
      const V16 a = set16(decay[i]), ki = set16(k[i]), qi = set16(q[i]);
      for (int b = 0; b < NB; ++b) {
        const V16 next = fma(ki, delta[b], mul(a, load16(row + b * kLanes, width(b))));
        store16(next, row + b * kLanes, width(b));
        out[b] = fma(next, qi, out[b]);
      }
    }
    for (int b = 0; b < NB; ++b) store16(out[b], s.o + static_cast<size_t>(t) * d + c + b * kLanes);
  }
}

}  // namespace

void CpuOps::kda(Stage, const KdaWeights& w, const Act* qkv_act, const Act* f_act, const Act* b_act,
                 const Act* g_act, SlotPlane plane, Act* out_act) {
  const int32_t dim = w.dim, taps = w.taps, history = w.taps - 1;
  const int64_t all = int64_t{w.heads} * dim, channels = 3 * all;
  const size_t d = padded(dim), per_worker = HeadScratch::floats(dim, taps) + kLanes;
  Scratch scratch_space = scratch();
  float* worker_scratch = scratch_space.take<float>(static_cast<size_t>(workers()) * per_worker);
  const float q_scale = rsqrt1(static_cast<float>(dim));

  pool_.parallel_for(static_cast<int64_t>(batch_.segments.size()) * w.heads, [&](int64_t task, int worker) {
    const Segment& seg = batch_.segments[static_cast<size_t>(task / w.heads)];
    const int64_t head = task % w.heads;
    auto* past = reinterpret_cast<float*>(plane.base + static_cast<size_t>(seg.slot) * plane.slot_stride);
    float* state = past + int64_t{history} * channels + head * dim * dim;
    const float* u = f32(qkv_act) + int64_t{seg.first_row} * channels;
    const HeadScratch s(worker_scratch + static_cast<size_t>(worker) * per_worker, dim, taps);

    // Taps by rows, so that channels are lanes.
    for (int64_t part = 0; part < 3; ++part) {
      for (int32_t m = 0; m < taps; ++m) {
        float* dst = s.conv + static_cast<size_t>(part * taps + m) * d;
        for (size_t c = 0; c < d; ++c) {
          const int64_t channel = part * all + head * dim + static_cast<int64_t>(c);
          dst[c] = c < static_cast<size_t>(dim) ? w.conv[channel * taps + m] : 0.0f;
        }
      }
    }
    const float rate = exp1(w.a_log[head]);
    const bool bounded = w.lower_bound == w.lower_bound;

    for (int32_t first = 0; first < seg.rows; first += kGroup) {
      const int32_t rows = std::min(kGroup, seg.rows - first);
      for (int32_t t = 0; t < rows; ++t) {
        const size_t at = static_cast<size_t>(t) * d;
        for (int64_t part = 0; part < 3; ++part) {
          float* dst = (part == 0 ? s.q : part == 1 ? s.k : s.v) + at;
          const int64_t channel = part * all + head * dim;
          for16(static_cast<size_t>(dim), [&](size_t c, size_t n) {
            V16 acc = zero16();
            for (int32_t m = 0; m < taps; ++m) {
              const int64_t row = int64_t{first} + t - history + m;  // of this segment; below 0: before it
              const float* from = row < 0 ? past + (row + history) * channels : u + row * channels;
              const float* tap = s.conv + static_cast<size_t>(part * taps + m) * d + c;
              acc = fma(load16(tap), load16(from + channel + static_cast<int64_t>(c), n), acc);
            }
            store16(silu16(acc), dst + c);  // lanes past the tail: SiLU(0) = 0
          });
        }
        l2_normalise(s.q + at, d, q_scale);
        l2_normalise(s.k + at, d, 1.0f);
        const int64_t row = int64_t{seg.first_row} + first + t;
        const float* f = f32(f_act) + row * all + head * dim;
        for16(static_cast<size_t>(dim), [&](size_t c, size_t n) {
          const V16 a = mul(set16(rate), cpu::add(load16(f + c, n), load16(w.dt_bias + head * dim + c, n)));
          V16 gate;
          if (bounded) {
            gate = mul(set16(w.lower_bound), sigmoid16(a));
          } else {
            const V16 x = cpu::add(load16(f + c, n), load16(w.dt_bias + head * dim + c, n));
            gate = mul(set16(-rate), softplus16(x));
          }
          store16(exp16(gate), s.decay + at + c);
        });
        s.beta[t] = sigmoid1(f32(b_act)[row * w.heads + head]);
      }

      size_t c = 0;
      const size_t columns = static_cast<size_t>(dim);
      for (; c + 2 * kLanes <= columns; c += 2 * kLanes) strip<2>(state, dim, c, kLanes, rows, s);
      for (; c < columns; c += kLanes) strip<1>(state, dim, c, std::min(kLanes, columns - c), rows, s);

      for (int32_t t = 0; t < rows; ++t) {
        const int64_t row = int64_t{seg.first_row} + first + t;
        const float* o = s.o + static_cast<size_t>(t) * d;
        const float* g = f32(g_act) + row * all + head * dim;
        float* out = f32(out_act) + row * all + head * dim;
        const float mean = sum_squares(o, columns) / static_cast<float>(dim);
        const V16 r = set16(rsqrt1(mean + w.rms_eps));
        for16(columns, [&](size_t i, size_t n) {
          const V16 normed = mul(mul(load16(o + i, n), r), load16(w.o_norm + i, n));
          store16(mul(normed, sigmoid16(load16(g + i, n))), out + i, n);
        });
      }
    }

    // The last taps-1 raw rows of [history; segment] of this head's channels become the history.
    for (int32_t m = 0; m < history; ++m) {
      const int64_t row = int64_t{seg.rows} - history + m;
      for (int64_t part = 0; part < 3; ++part) {
        const int64_t channel = part * all + head * dim;
        const float* from = (row < 0 ? past + (row + history) * channels : u + row * channels) + channel;
        std::copy_n(from, dim, past + m * channels + channel);
      }
    }
  });
}

}  // namespace firesteel::cpu
