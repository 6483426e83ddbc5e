// The linear-attention layer between its projections, always as the serial recurrence.
//
// Three kernels: what does not depend on the state (convolution, norms, gates), one block a row and head; the
// recurrence, the state in registers, a warp four value columns with four keys a lane; the gated output norm.
// The state of a slot is stored [head, value column, key], so that a column is contiguous.
#include "ops/cuda/common.cuh"

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
  const float qq = block_sum<kDim>(c[0] * c[0], shared), kk = block_sum<kDim>(c[1] * c[1], shared);
  if (real) {
    const int64_t at = static_cast<int64_t>(row) * all + head * p.dim + d;
    p.q[at] = c[0] * rsqrtf(qq + 1e-6f) * rsqrtf(static_cast<float>(p.dim));
    p.k[at] = c[1] * rsqrtf(kk + 1e-6f);
    p.v[at] = c[2];
    const float x = from_bf16(p.f[at]) + p.dt_bias[head * p.dim + d];
    const float rate = expf(p.a_log[head]);
    const float g = isnan(p.lower_bound) ? -rate * softplus(x) : p.lower_bound * sigmoid(rate * x);
    p.decay[at] = expf(g);
  }
  if (d == 0) p.beta[row * p.heads + head] = sigmoid(from_bf16(p.b[row * p.heads + head]));
}

namespace {

/// Sums of four values over the warp at once: lane l gets the sum of value l / 8.
__device__ __forceinline__ float sum_four(const float (&v)[4]) {
  const bool high = threadIdx.x & 16, odd = threadIdx.x & 8;
  const float a = (high ? v[2] : v[0]) + __shfl_xor_sync(0xffffffffu, high ? v[0] : v[2], 16);
  const float b = (high ? v[3] : v[1]) + __shfl_xor_sync(0xffffffffu, high ? v[1] : v[3], 16);
  float sum = (odd ? b : a) + __shfl_xor_sync(0xffffffffu, odd ? a : b, 8);
#pragma unroll
  for (int mask = 4; mask > 0; mask >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  return sum;
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
    const auto step = [&](int t) {
      const float4 a = *reinterpret_cast<const float4*>(&now.decay[t][4 * lane]);
      const float4 k = *reinterpret_cast<const float4*>(&now.k[t][4 * lane]);
      const float4 q = *reinterpret_cast<const float4*>(&now.q[t][4 * lane]);
      float seen[kPerWarp], out[kPerWarp];
#pragma unroll
      for (int c = 0; c < kPerWarp; ++c) {
        w[c][0] *= a.x;
        w[c][1] *= a.y;
        w[c][2] *= a.z;
        w[c][3] *= a.w;
        seen[c] = fmaf(w[c][3], k.w, fmaf(w[c][2], k.z, fmaf(w[c][1], k.y, w[c][0] * k.x)));
      }
      const float mine = now.beta[t] * (now.v[t][warp * kPerWarp + lane / 8] - sum_four(seen));
#pragma unroll
      for (int c = 0; c < kPerWarp; ++c) {
        const float delta = __shfl_sync(0xffffffffu, mine, 8 * c);
        w[c][0] = fmaf(k.x, delta, w[c][0]);
        w[c][1] = fmaf(k.y, delta, w[c][1]);
        w[c][2] = fmaf(k.z, delta, w[c][2]);
        w[c][3] = fmaf(k.w, delta, w[c][3]);
        out[c] = fmaf(w[c][3], q.w, fmaf(w[c][2], q.z, fmaf(w[c][1], q.y, w[c][0] * q.x)));
      }
      return sum_four(out);
    };
    if (tokens == kTokens) {
      // Unrolled, so that the next token's loads and this one's output sum run beside the chain through the
      // state.
      float o[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) o[t] = step(t);
      if (lane % 8 == 0) {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) now.o[t][warp * kPerWarp + lane / 8] = o[t];
      }
    } else {
      for (int t = 0; t < tokens; ++t) {
        const float o = step(t);
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
  const float sum = block_sum<kDim>(o * o, shared);
  if (d < p.dim) {
    const float normed = o * rsqrtf(sum / p.dim + p.rms_eps) * p.o_norm[d];
    p.out[at] = to_bf16(normed * sigmoid(from_bf16(p.g[at])));
  }
}

}  // namespace firesteel::cuda
