// The linear-attention layer between its projections, always as the serial recurrence.
//
// Three kernels: what does not depend on the state (convolution, norms, gates), one block a row and head; the recurrence,
// the state in registers, 16 value columns a block and 8 lanes a column; the gated output norm. The state of a slot is
// stored [head, value column, key], so that a column is contiguous.
#include "ops/cuda/common.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kDim = 128;      // most keys and values of a head
constexpr int kColumns = 16;   // value columns of a block
constexpr int kLanes = 8;      // lanes of a column
constexpr int kKeys = kDim / kLanes;
constexpr int kTokens = 16;    // staged together

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

/// grid: (heads · ⌈dim/16⌉, segments). Also advances the convolution history (kda_prepare has read it).
extern "C" __global__ void __launch_bounds__(kColumns * kLanes) kda_recur(const __grid_constant__ KdaParams p) {
  __shared__ __align__(16) float k_s[kTokens][kDim], q_s[kTokens][kDim], a_s[kTokens][kDim];
  __shared__ float v_s[kTokens][kColumns], b_s[kTokens];
  const int splits = (p.dim + kColumns - 1) / kColumns;
  const int head = blockIdx.x / splits, split = blockIdx.x % splits;
  const Segment s = segment_at(p.batch, blockIdx.y);
  const int all = p.heads * p.dim;
  const int lane = threadIdx.x & (kLanes - 1);
  const int column = split * kColumns + threadIdx.x / kLanes;
  const bool real = column < p.dim;
  uint8_t* slot = p.state + s.slot * p.slot_stride;
  float* state = reinterpret_cast<float*>(slot + history_bytes(p)) +
                 (static_cast<int64_t>(head) * p.dim + (real ? column : 0)) * p.dim;

  // Lane l of a column holds keys 32i + 4l + r.
  float w[kKeys];
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const int key = 32 * (i / 4) + 4 * lane + i % 4;
    w[i] = key < p.dim && real ? state[key] : 0.0f;
  }
  for (int first = 0; first < s.rows; first += kTokens) {
    const int tokens = min(kTokens, s.rows - first);
    __syncthreads();
    for (int i = threadIdx.x; i < tokens * kDim; i += kColumns * kLanes) {
      const int t = i / kDim, d = i % kDim;
      const int64_t at = static_cast<int64_t>(s.first_row + first + t) * all + head * p.dim + d;
      const bool in = d < p.dim;
      k_s[t][d] = in ? p.k[at] : 0.0f;
      q_s[t][d] = in ? p.q[at] : 0.0f;
      a_s[t][d] = in ? p.decay[at] : 0.0f;
    }
    for (int i = threadIdx.x; i < tokens * kColumns; i += kColumns * kLanes) {
      const int t = i / kColumns, c = split * kColumns + i % kColumns;
      v_s[t][i % kColumns] =
          c < p.dim ? p.v[static_cast<int64_t>(s.first_row + first + t) * all + head * p.dim + c] : 0.0f;
    }
    if (threadIdx.x < tokens) b_s[threadIdx.x] = p.beta[(s.first_row + first + threadIdx.x) * p.heads + head];
    __syncthreads();
    for (int t = 0; t < tokens; ++t) {
      float seen = 0.0f;
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        const float4 a = *reinterpret_cast<const float4*>(&a_s[t][32 * i + 4 * lane]);
        const float4 k = *reinterpret_cast<const float4*>(&k_s[t][32 * i + 4 * lane]);
        w[4 * i] *= a.x;
        w[4 * i + 1] *= a.y;
        w[4 * i + 2] *= a.z;
        w[4 * i + 3] *= a.w;
        seen = fmaf(w[4 * i], k.x, seen);
        seen = fmaf(w[4 * i + 1], k.y, seen);
        seen = fmaf(w[4 * i + 2], k.z, seen);
        seen = fmaf(w[4 * i + 3], k.w, seen);
      }
#pragma unroll
      for (int mask = 1; mask < kLanes; mask <<= 1) seen += __shfl_xor_sync(0xffffffffu, seen, mask);
      const float delta = b_s[t] * (v_s[t][threadIdx.x / kLanes] - seen);
      float out = 0.0f;
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        const float4 k = *reinterpret_cast<const float4*>(&k_s[t][32 * i + 4 * lane]);
        const float4 q = *reinterpret_cast<const float4*>(&q_s[t][32 * i + 4 * lane]);
        w[4 * i] = fmaf(k.x, delta, w[4 * i]);
        w[4 * i + 1] = fmaf(k.y, delta, w[4 * i + 1]);
        w[4 * i + 2] = fmaf(k.z, delta, w[4 * i + 2]);
        w[4 * i + 3] = fmaf(k.w, delta, w[4 * i + 3]);
        out = fmaf(w[4 * i], q.x, out);
        out = fmaf(w[4 * i + 1], q.y, out);
        out = fmaf(w[4 * i + 2], q.z, out);
        out = fmaf(w[4 * i + 3], q.w, out);
      }
#pragma unroll
      for (int mask = 1; mask < kLanes; mask <<= 1) out += __shfl_xor_sync(0xffffffffu, out, mask);
      if (lane == 0 && real) {
        p.o[static_cast<int64_t>(s.first_row + first + t) * all + head * p.dim + column] = out;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const int key = 32 * (i / 4) + 4 * lane + i % 4;
    if (key < p.dim && real) state[key] = w[i];
  }

  if (split == 0) {
    const int past = p.taps - 1, channels = 3 * all;
    Bits16* h = reinterpret_cast<Bits16*>(slot);
    for (int i = threadIdx.x; i < 3 * p.dim; i += kColumns * kLanes) {
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
