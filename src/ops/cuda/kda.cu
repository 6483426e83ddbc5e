// The linear-attention layer between its projections, always as the serial recurrence.
//
// Few rows: kda_few, one block a sequence and head does it all. Prompts: three kernels: what does not depend
// on the state (convolution, norms, gates), one block a row and head; the recurrence; the gated output norm.
// Either way the state is in registers, four keys a lane, and every sum has the same order, so the bits are
// the same. The state of a slot is stored [head, value column, key], so that a column is contiguous.
#include "ops/cuda/common.cuh"
#include "ops/cuda/layer_params.h"

namespace firesteel::cuda {

namespace {

constexpr int kDim = 128;  // most keys and values of a head: four a lane
constexpr int kWarps = 8;
constexpr int kPerWarp = 4;  // value columns of a warp
constexpr int kColumns = kWarps * kPerWarp;
constexpr int kTokens = 8;  // staged together, twice

__device__ __forceinline__ float softplus(float v) { return v > 20.0f ? v : log1pf(expf(v)); }

__device__ __forceinline__ Bits16* history(const KdaParams& p, int slot) {
  return reinterpret_cast<Bits16*>(p.state + slot * p.slot_stride);
}
__device__ __forceinline__ int64_t history_bytes(const KdaParams& p) {
  const int64_t bytes = static_cast<int64_t>(p.taps - 1) * 3 * p.heads * p.dim * sizeof(Bits16);
  return (bytes + 255) / 256 * 256;
}

__device__ __forceinline__ float decay_of(const KdaParams& p, float f, float dt_bias, float a_log) {
  const float x = f + dt_bias, rate = expf(a_log);
  const float g = isnan(p.lower_bound) ? -rate * softplus(x) : p.lower_bound * sigmoid(rate * x);
  return expf(g);
}
/// The sums of squares that the norms take: a product of its own, never fused into the sum.
__device__ __forceinline__ float square(float v) { return __fmul_rn(v, v); }
/// `dim` is never a constant: the compiler would round its root otherwise than the device.
__device__ __forceinline__ float normal_query(float c, float squares, int dim) {
  return c * rsqrtf(squares + 1e-6f) * rsqrtf(static_cast<float>(dim));
}
__device__ __forceinline__ float normal_key(float c, float squares) { return c * rsqrtf(squares + 1e-6f); }
__device__ __forceinline__ Bits16 gated_output(const KdaParams& p, float o, float squares, float o_norm,
                                               Bits16 g) {
  const float normed = o * rsqrtf(squares / p.dim + p.rms_eps) * o_norm;
  return to_bf16(normed * sigmoid(from_bf16(g)));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kDim) kda_prepare(const __grid_constant__ KdaParams p) {
  begin_kernel();
  __shared__ float shared[32];
  const int row = blockIdx.x, head = blockIdx.y, d = threadIdx.x;
  const bool real = d < p.dim;
  const int all = p.heads * p.dim, channels = 3 * all;
  const Segment s = segment_at(p.batch, p.batch.row_segment[row]);
  const int t = row - s.first_row;
  const Bits16* past = history(p, s.slot);
  float c[3] = {0.0f, 0.0f, 0.0f};
  if (real) {
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      const int channel = part * all + head * p.dim + d;
      float sum = 0.0f;
      for (int m = 0; m < p.taps; ++m) {
        const int at = t - (p.taps - 1) + m;  // row of the segment; below 0: before it
        const Bits16 u = at < 0 ? past[static_cast<int64_t>(at + p.taps - 1) * channels + channel]
                                : p.qkv[static_cast<int64_t>(s.first_row + at) * channels + channel];
        sum = fmaf(p.conv[channel * p.taps + m], from_bf16(u), sum);
      }
      c[part] = silu(sum);
    }
  }
  const float qq = block_sum<kDim>(square(c[0]), shared), kk = block_sum<kDim>(square(c[1]), shared);
  if (real) {
    const int64_t at = static_cast<int64_t>(row) * all + head * p.dim + d;
    p.q[at] = normal_query(c[0], qq, p.dim);
    p.k[at] = normal_key(c[1], kk);
    p.v[at] = c[2];
    p.decay[at] = decay_of(p, from_bf16(p.f[at]), p.dt_bias[head * p.dim + d], p.a_log[head]);
  }
  if (d == 0) p.beta[row * p.heads + head] = sigmoid(from_bf16(p.b[row * p.heads + head]));
}

namespace {

/// One level of sums over the warp: of a pair of lanes, the one without `mask` keeps the first half of the
/// values.
template <int kCount>
__device__ __forceinline__ void halve(float (&v)[kCount], int count, int mask) {
  const bool high = threadIdx.x & mask;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    if (i < count / 2) {
      const float kept = high ? v[i + count / 2] : v[i], given = high ? v[i] : v[i + count / 2];
      v[i] = kept + __shfl_xor_sync(0xffffffffu, given, mask);
    }
  }
}
/// Sums of kCount values over the warp at once: lane l gets that of value l·kCount/32. Every value's lanes
/// meet in one order, whatever kCount: 16, 8, 4, 2, 1 apart.
template <int kCount>
__device__ __forceinline__ float sum_each(float (&v)[kCount]) {
  int count = kCount, mask = 16;
#pragma unroll
  for (int level = 0; level < 5; ++level, mask >>= 1) {
    if (count > 1) {
      halve(v, count, mask);
      count /= 2;
    } else {
      v[0] += __shfl_xor_sync(0xffffffffu, v[0], mask);
    }
  }
  return v[0];
}

/// What a token brings to a lane: four keys' decay, key and query, the value of column lane / 8.
struct Token {
  float4 a, k, q;
  float v, beta;
};

/// One token of a warp's four value columns: a lane holds four keys of each. `out`: the lane's part of the
/// outputs.
__device__ __forceinline__ void token_step(float (&w)[kPerWarp][4], const Token& now, float* out) {
  float seen[kPerWarp];
#pragma unroll
  for (int c = 0; c < kPerWarp; ++c) {
    w[c][0] *= now.a.x;
    w[c][1] *= now.a.y;
    w[c][2] *= now.a.z;
    w[c][3] *= now.a.w;
    seen[c] =
        fmaf(w[c][3], now.k.w, fmaf(w[c][2], now.k.z, fmaf(w[c][1], now.k.y, __fmul_rn(w[c][0], now.k.x))));
  }
  const float mine = now.beta * (now.v - sum_each(seen));
#pragma unroll
  for (int c = 0; c < kPerWarp; ++c) {
    const float delta = __shfl_sync(0xffffffffu, mine, 8 * c);
    w[c][0] = fmaf(now.k.x, delta, w[c][0]);
    w[c][1] = fmaf(now.k.y, delta, w[c][1]);
    w[c][2] = fmaf(now.k.z, delta, w[c][2]);
    w[c][3] = fmaf(now.k.w, delta, w[c][3]);
    out[c] =
        fmaf(w[c][3], now.q.w, fmaf(w[c][2], now.q.z, fmaf(w[c][1], now.q.y, __fmul_rn(w[c][0], now.q.x))));
  }
}

struct Staged {
  float k[kTokens][kDim], q[kTokens][kDim], decay[kTokens][kDim], v[kTokens][kColumns], beta[kTokens],
      o[kTokens][kColumns];
};

}  // namespace

/// grid: (heads · ⌈dim/32⌉, segments). Also advances the convolution history (kda_prepare has read it).
extern "C" __global__ void __launch_bounds__(kWarps * 32) kda_recur(const __grid_constant__ KdaParams p) {
  __shared__ __align__(16) Staged staged[2];
  begin_kernel<false>();
  constexpr int kThreads = kWarps * 32;
  const int splits = (p.dim + kColumns - 1) / kColumns;
  const int head = blockIdx.x / splits, split = blockIdx.x % splits;
  const Segment s = segment_at(p.batch, blockIdx.y);
  const int all = p.heads * p.dim;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int column0 = split * kColumns + warp * kPerWarp;
  uint8_t* slot = p.state + s.slot * p.slot_stride;
  float* state =
      reinterpret_cast<float*>(slot + history_bytes(p)) + static_cast<int64_t>(head) * p.dim * p.dim;
  const bool vectors = p.dim % 4 == 0;

  const auto stage_in = [&](int first) {
    Staged& to = staged[first / kTokens & 1];
    const int tokens = min(kTokens, s.rows - first);
    for (int i = threadIdx.x; i < tokens * 3 * (kDim / 4); i += kThreads) {
      const int piece = i % (kDim / 4), which = i / (kDim / 4) % 3, t = i / (3 * (kDim / 4));
      const float* from = which == 0 ? p.k : which == 1 ? p.q : p.decay;
      float* dst = (which == 0 ? to.k[t] : which == 1 ? to.q[t] : to.decay[t]) + 4 * piece;
      from += static_cast<int64_t>(s.first_row + first + t) * all + head * p.dim;
      if (vectors) {
        const bool valid = 4 * piece < p.dim;
        copy_async16(dst, valid ? from + 4 * piece : from, valid);
      } else {
#pragma unroll
        for (int r = 0; r < 4; ++r) dst[r] = 4 * piece + r < p.dim ? from[4 * piece + r] : 0.0f;
      }
    }
    for (int i = threadIdx.x; i < tokens * kColumns; i += kThreads) {
      const int t = i / kColumns, c = split * kColumns + i % kColumns;
      if (c < p.dim) {
        copy_async4(&to.v[t][i % kColumns],
                    p.v + static_cast<int64_t>(s.first_row + first + t) * all + head * p.dim + c);
      } else {
        to.v[t][i % kColumns] = 0.0f;
      }
    }
    if (static_cast<int>(threadIdx.x) < tokens) {
      copy_async4(&to.beta[threadIdx.x], p.beta + (s.first_row + first + threadIdx.x) * p.heads + head);
    }
    copy_async_commit();
  };

  stage_in(0);
  float w[kPerWarp][4];
#pragma unroll
  for (int c = 0; c < kPerWarp; ++c)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int key = 4 * lane + r;
      w[c][r] = key < p.dim && column0 + c < p.dim ? state[(column0 + c) * p.dim + key] : 0.0f;
    }
  for (int first = 0; first < s.rows; first += kTokens) {
    copy_async_wait<0>();
    __syncthreads();
    if (first + kTokens < s.rows) stage_in(first + kTokens);
    Staged& now = staged[first / kTokens & 1];
    const int tokens = min(kTokens, s.rows - first);
    const auto token = [&](int t) {
      return Token{*reinterpret_cast<const float4*>(&now.decay[t][4 * lane]),
                   *reinterpret_cast<const float4*>(&now.k[t][4 * lane]),
                   *reinterpret_cast<const float4*>(&now.q[t][4 * lane]),
                   now.v[t][warp * kPerWarp + lane / 8], now.beta[t]};
    };
    if (tokens == kTokens) {
      // Unrolled, so that the next token's loads and this one's output sum run beside the chain through the
      // state.
      float o[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        float out[kPerWarp];
        token_step(w, token(t), out);
        o[t] = sum_each(out);
      }
      if (lane % 8 == 0) {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) now.o[t][warp * kPerWarp + lane / 8] = o[t];
      }
    } else {
      for (int t = 0; t < tokens; ++t) {
        float out[kPerWarp];
        token_step(w, token(t), out);
        const float o = sum_each(out);
        if (lane % 8 == 0) now.o[t][warp * kPerWarp + lane / 8] = o;
      }
    }
    __syncwarp();
    // A warp's own columns, four to a token.
    for (int i = lane; i < tokens * kPerWarp; i += 32) {
      const int t = i / kPerWarp, c = i % kPerWarp;
      if (column0 + c < p.dim) {
        p.o[static_cast<int64_t>(s.first_row + first + t) * all + head * p.dim + column0 + c] =
            now.o[t][warp * kPerWarp + c];
      }
    }
  }
  end_kernel();
#pragma unroll
  for (int c = 0; c < kPerWarp; ++c)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int key = 4 * lane + r;
      if (key < p.dim && column0 + c < p.dim) state[(column0 + c) * p.dim + key] = w[c][r];
    }

  if (split == 0) {
    const int past = p.taps - 1, channels = 3 * all;
    Bits16* h = reinterpret_cast<Bits16*>(slot);
    for (int i = threadIdx.x; i < 3 * p.dim; i += kThreads) {
      const int channel = i / p.dim * all + head * p.dim + i % p.dim;
      // Ascending: entry m takes an entry above it, which is still the old one.
      for (int m = 0; m < past; ++m) {
        const int at = s.rows - past + m;
        h[static_cast<int64_t>(m) * channels + channel] =
            at < 0 ? h[static_cast<int64_t>(at + past) * channels + channel]
                   : p.qkv[static_cast<int64_t>(s.first_row + at) * channels + channel];
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(kDim) kda_out(const __grid_constant__ KdaParams p) {
  begin_kernel();
  __shared__ float shared[32];
  const int row = blockIdx.x, head = blockIdx.y, d = threadIdx.x;
  const int64_t at = static_cast<int64_t>(row) * p.heads * p.dim + head * p.dim + d;
  const float o = d < p.dim ? p.o[at] : 0.0f;
  const float squares = block_sum<kDim>(square(o), shared);
  if (d < p.dim) p.out[at] = gated_output(p, o, squares, p.o_norm[d], p.g[at]);
}

namespace {

constexpr int kFewThreads = 512, kQuads = 2;    // of a warp: four columns each
constexpr int kFewTokens = kFewThreads / kDim;  // taken together

struct FewShared {
  float k[kFewTokens][kDim], q[kFewTokens][kDim], decay[kFewTokens][kDim], v[kFewTokens][kDim],
      o[kFewTokens][kDim];
  float beta[kFewTokens], squares[2][kFewTokens][4], o_squares[kFewTokens][4];
};

/// As block_sum of four warps adds them.
__device__ __forceinline__ float sum_of_warps(const float (&v)[4]) { return ((v[0] + v[1]) + v[2]) + v[3]; }

}  // namespace

/// grid: (heads, segments). Heads of 128, four taps.
extern "C" __global__ void __launch_bounds__(kFewThreads, 2) kda_few(const __grid_constant__ KdaParams p) {
  __shared__ __align__(16) FewShared at;
  const int head = blockIdx.x, all = p.heads * kDim, channels = 3 * all;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, d = threadIdx.x & (kDim - 1);
  const int part = threadIdx.x / kDim;  // q, k, v; the gates
  // The batch's tables are older than this forward's first kernel.
  const Segment s = segment_at(p.batch, blockIdx.y);
  uint8_t* slot = p.state + s.slot * p.slot_stride;
  float* state = reinterpret_cast<float*>(slot + history_bytes(p)) + static_cast<int64_t>(head) * kDim * kDim;
  prefetch_l2(reinterpret_cast<const uint8_t*>(state) + 128 * threadIdx.x);
  const int channel = (part < 3 ? part : 0) * all + head * kDim + d;
  const float4 conv = *reinterpret_cast<const float4*>(p.conv + channel * 4);
  const float dt_bias = p.dt_bias[head * kDim + d], a_log = p.a_log[head], o_norm = p.o_norm[d];
  begin_kernel();

  float w[kQuads][kPerWarp][4];
#pragma unroll
  for (int c = 0; c < kQuads * kPerWarp; ++c) {
    const float4 v =
        *reinterpret_cast<const float4*>(state + (warp * kQuads * kPerWarp + c) * kDim + 4 * lane);
    w[c / 4][c % 4][0] = v.x, w[c / 4][c % 4][1] = v.y, w[c / 4][c % 4][2] = v.z, w[c / 4][c % 4][3] = v.w;
  }
  Bits16* past = reinterpret_cast<Bits16*>(slot) + channel;
  Bits16 h[3] = {};
  if (part < 3) {
#pragma unroll
    for (int m = 0; m < 3; ++m) h[m] = past[static_cast<int64_t>(m) * channels];
  }
#pragma unroll 1
  for (int first = 0; first < s.rows; first += kFewTokens) {
    const int tokens = min(kFewTokens, s.rows - first), row0 = s.first_row + first;
    const Bits16* in = part < 3 ? p.qkv + static_cast<int64_t>(row0) * channels + channel
                                : p.f + static_cast<int64_t>(row0) * all + head * kDim + d;
    const int64_t step = part < 3 ? channels : all;
    Bits16 u[kFewTokens];
#pragma unroll
    for (int t = 0; t < kFewTokens; ++t) u[t] = t < tokens ? in[t * step] : Bits16{0};
    // Of the output that this thread finishes: token `part`.
    const Bits16 gate =
        part < tokens ? p.g[static_cast<int64_t>(row0 + part) * all + head * kDim + d] : Bits16{0};
    if (static_cast<int>(threadIdx.x) < tokens) {
      at.beta[threadIdx.x] = sigmoid(from_bf16(p.b[(row0 + threadIdx.x) * p.heads + head]));
    }
    if (part == 3) {
#pragma unroll
      for (int t = 0; t < kFewTokens; ++t)
        if (t < tokens) at.decay[t][d] = decay_of(p, from_bf16(u[t]), dt_bias, a_log);
    } else {
      float(&to)[kFewTokens][kDim] = part == 0 ? at.q : part == 1 ? at.k : at.v;
#pragma unroll
      for (int t = 0; t < kFewTokens; ++t) {
        if (t >= tokens) break;
        float sum = fmaf(conv.x, from_bf16(h[0]), 0.0f);
        sum = fmaf(conv.y, from_bf16(h[1]), sum);
        sum = fmaf(conv.z, from_bf16(h[2]), sum);
        sum = fmaf(conv.w, from_bf16(u[t]), sum);
        h[0] = h[1], h[1] = h[2], h[2] = u[t];
        const float c = silu(sum);
        to[t][d] = c;
        if (part < 2) {
          const float squares = warp_sum(square(c));
          if (lane == 0) at.squares[part][t][warp & 3] = squares;
        }
      }
    }
    __syncthreads();
    if (part < 2) {
      for (int t = 0; t < tokens; ++t) {
        const float squares = sum_of_warps(at.squares[part][t]);
        if (part == 0) {
          at.q[t][d] = normal_query(at.q[t][d], squares, p.dim);
        } else {
          at.k[t][d] = normal_key(at.k[t][d], squares);
        }
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < tokens; ++t) {
      Token now{*reinterpret_cast<const float4*>(&at.decay[t][4 * lane]),
                *reinterpret_cast<const float4*>(&at.k[t][4 * lane]),
                *reinterpret_cast<const float4*>(&at.q[t][4 * lane]), 0.0f, at.beta[t]};
      float out[kQuads * kPerWarp];
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        now.v = at.v[t][(warp * kQuads + i) * kPerWarp + lane / 8];
        token_step(w[i], now, out + i * kPerWarp);
      }
      const float o = sum_each(out);
      if (lane % 4 == 0) at.o[t][warp * kQuads * kPerWarp + lane / 4] = o;
    }
    if (first + kFewTokens >= s.rows) {
#pragma unroll
      for (int c = 0; c < kQuads * kPerWarp; ++c) {
        *reinterpret_cast<float4*>(state + (warp * kQuads * kPerWarp + c) * kDim + 4 * lane) =
            make_float4(w[c / 4][c % 4][0], w[c / 4][c % 4][1], w[c / 4][c % 4][2], w[c / 4][c % 4][3]);
      }
      if (part < 3) {
#pragma unroll
        for (int m = 0; m < 3; ++m) past[static_cast<int64_t>(m) * channels] = h[m];
      }
    }
    __syncthreads();
    if (part < tokens) {
      const float squares = warp_sum(square(at.o[part][d]));
      if (lane == 0) at.o_squares[part][warp & 3] = squares;
    }
    __syncthreads();
    if (part < tokens) {
      p.out[static_cast<int64_t>(row0 + part) * all + head * kDim + d] =
          gated_output(p, at.o[part][d], sum_of_warps(at.o_squares[part]), o_norm, gate);
    }
  }
}

}  // namespace firesteel::cuda
