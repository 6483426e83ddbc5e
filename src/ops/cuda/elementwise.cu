// Embedding rows, norms, hyper-connections, gathers: ops whose time is their bytes.
#include "ops/cuda/common.cuh"
#include "ops/cuda/packed.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float embedding(const EmbedParams& p, int token, int column) {
  if (p.format == 2) return packed_fp8(p.table, p.scale, p.hidden, token, column);
  return plain_weight(p.table, p.format == 1, p.hidden, token, column);
}

__device__ __forceinline__ float token_position(const BatchView& b, int row) {
  const Segment s = segment_at(b, b.row_segment[row]);
  return s.start + row - s.first_row;
}

/// One warp: the 24 weights of a row from the sums and the squares of its streams; pre goes to pre_of, the
/// rest out.
__device__ __forceinline__ void mixing_weights(const HyperFinishParams& p, int row, float squares,
                                               const float* sums, float* pre_of) {
  const int lane = threadIdx.x;
  const float norm = rsqrtf(squares / (4 * p.hidden) + p.rms_eps);
  float z = 0.0f;
  if (lane < 24) {
    for (int s = 0; s < p.slices; ++s) {
      float sum = 0.0f;
      for (int u = 0; u < p.unit_span; ++u) sum += sums[(s * p.unit_span + u) * 24 + lane];
      z += sum;
    }
    z *= norm;
    z = z * p.scale[lane < 4 ? 0 : lane < 8 ? 1 : 2] + p.base[lane];
  }
  if (lane < 4) pre_of[lane] = sigmoid(z) + p.hc_eps;
  if (lane >= 4 && lane < 8) p.post[row * 4 + lane - 4] = 2.0f * sigmoid(z);
  // Every lane holds the whole matrix M[i][j]: no lane waits for another in the 20 rounds.
  float m[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) m[i][j] = __shfl_sync(0xffffffffu, z, 8 + 4 * i + j);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float top = fmaxf(fmaxf(m[i][0], m[i][1]), fmaxf(m[i][2], m[i][3]));
#pragma unroll
    for (int j = 0; j < 4; ++j) m[i][j] = expf(m[i][j] - top);
  }
  const auto scale_rows = [&](float eps) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float r = __fdividef(1.0f, ((m[i][0] + m[i][1]) + (m[i][2] + m[i][3])) + eps);
#pragma unroll
      for (int j = 0; j < 4; ++j) m[i][j] *= r;
    }
  };
  const auto scale_columns = [&](float eps) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float r = __fdividef(1.0f, ((m[0][j] + m[1][j]) + (m[2][j] + m[3][j])) + eps);
#pragma unroll
      for (int i = 0; i < 4; ++i) m[i][j] *= r;
    }
  };
  scale_rows(0.0f);
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) m[i][j] += p.hc_eps;
  scale_columns(p.hc_eps);
  for (int i = 1; i < p.iters; ++i) {
    scale_rows(p.hc_eps);
    scale_columns(p.hc_eps);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (lane == 4 * i + j) p.comb[row * 16 + lane] = m[i][j];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) embed(const __grid_constant__ EmbedParams p) {
  begin_kernel();
  const int row = blockIdx.x;
  const int token = min(max(p.batch.tokens[row], 0), p.vocab - 1);
  Bits16* out = p.out + static_cast<int64_t>(row) * 4 * p.hidden;
  for (int c = threadIdx.x; c < p.hidden; c += kThreads) {
    const Bits16 v = to_bf16(embedding(p, token, c));
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j * p.hidden + c] = v;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) mtp_input(const __grid_constant__ EmbedParams p) {
  begin_kernel();
  __shared__ float shared[32];
  const int row = blockIdx.x;
  const int token = min(max(p.batch.tokens[row], 0), p.vocab - 1);
  const bool first = token_position(p.batch, row) == 0;
  const Bits16* h = p.h + static_cast<int64_t>(row) * p.hidden;
  float se = 0.0f, sh = 0.0f;
  for (int c = threadIdx.x; c < p.hidden; c += kThreads) {
    const float e = first ? 0.0f : embedding(p, token, c), v = from_bf16(h[c]);
    se = fmaf(e, e, se);
    sh = fmaf(v, v, sh);
  }
  se = block_sum<kThreads>(se, shared);
  sh = block_sum<kThreads>(sh, shared);
  const float re = rsqrtf(se / p.hidden + p.eps), rh = rsqrtf(sh / p.hidden + p.eps);
  Bits16* out = p.out + static_cast<int64_t>(row) * 2 * p.hidden;
  for (int c = threadIdx.x; c < p.hidden; c += kThreads) {
    const float e = first ? 0.0f : embedding(p, token, c);
    out[c] = to_bf16(e * re * p.enorm[c]);
    out[p.hidden + c] = to_bf16(from_bf16(h[c]) * rh * p.hnorm[c]);
  }
}

/// The mixing weights from z, the mixed and normed input. A thread holds kPieces pieces of 8 columns of all
/// streams.
template <int kPieces>
__device__ __forceinline__ void hyper_finish_rows(const HyperFinishParams& p) {
  constexpr int kBlock = 512;
  __shared__ float shared[32], pre_of[4], sums[kMaxHyperSums * 24];
  begin_kernel();
  const int row = blockIdx.x, h = p.hidden;
  for (int i = threadIdx.x; i < p.slices * p.unit_span * 24; i += kBlock) {
    sums[i] = p.z[i / 24 * p.slice_stride + row * 24 + i % 24];
  }
  const Bits16* x = p.streams + static_cast<int64_t>(row) * 4 * h;
  uint4 in[kPieces][4];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int c = 8 * (i * kBlock + threadIdx.x);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      in[i][j] = c < h ? *reinterpret_cast<const uint4*>(x + j * h + c) : make_uint4(0, 0, 0, 0);
    }
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t v[4] = {in[i][j].x, in[i][j].y, in[i][j].z, in[i][j].w};
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        squares = fmaf(bf16_low(v[r]), bf16_low(v[r]), squares);
        squares = fmaf(bf16_high(v[r]), bf16_high(v[r]), squares);
      }
    }
  squares = block_sum<kBlock>(squares, shared);
  if (threadIdx.x < 32) mixing_weights(p, row, squares, sums, pre_of);
  __syncthreads();
  float mixed[kPieces][8], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      float v = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t word = r / 2 == 0   ? in[i][j].x
                              : r / 2 == 1 ? in[i][j].y
                              : r / 2 == 2 ? in[i][j].z
                                           : in[i][j].w;
        v = fmaf(pre_of[j], r & 1 ? bf16_high(word) : bf16_low(word), v);
      }
      mixed[i][r] = v;
      sum = fmaf(v, v, sum);
    }
  sum = block_sum<kBlock>(sum, shared);
  const float norm = rsqrtf(sum / h + p.rms_eps);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int c = 8 * (i * kBlock + threadIdx.x);
    if (c >= h) continue;
    float y[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) y[r] = mixed[i][r] * norm * p.norm[c + r];
    *reinterpret_cast<uint4*>(p.x + static_cast<int64_t>(row) * h + c) = make_uint4(
        pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]), pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7]));
  }
}

extern "C" __global__ void __launch_bounds__(512)
    hyper_finish_4k(const __grid_constant__ HyperFinishParams p) {
  hyper_finish_rows<1>(p);
}
extern "C" __global__ void __launch_bounds__(512)
    hyper_finish_8k(const __grid_constant__ HyperFinishParams p) {
  hyper_finish_rows<2>(p);
}

/// The same for any hidden size. Dynamic shared memory: hidden floats.
extern "C" __global__ void __launch_bounds__(kThreads)
    hyper_finish(const __grid_constant__ HyperFinishParams p) {
  extern __shared__ float mixed[];
  begin_kernel();
  __shared__ float shared[32], pre_of[4], sums[kMaxHyperSums * 24];
  const int row = blockIdx.x, h = p.hidden;
  for (int i = threadIdx.x; i < p.slices * p.unit_span * 24; i += kThreads) {
    sums[i] = p.z[i / 24 * p.slice_stride + row * 24 + i % 24];
  }
  const Bits16* x = p.streams + static_cast<int64_t>(row) * 4 * h;
  float squares = 0.0f;
  for (int c = threadIdx.x; c < 4 * h; c += kThreads)
    squares = fmaf(from_bf16(x[c]), from_bf16(x[c]), squares);
  squares = block_sum<kThreads>(squares, shared);
  if (threadIdx.x < 32) mixing_weights(p, row, squares, sums, pre_of);
  __syncthreads();
  float sum = 0.0f;
  for (int c = threadIdx.x; c < h; c += kThreads) {
    float v = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) v = fmaf(pre_of[j], from_bf16(x[j * h + c]), v);
    mixed[c] = v;
    sum = fmaf(v, v, sum);
  }
  sum = block_sum<kThreads>(sum, shared);
  const float norm = rsqrtf(sum / h + p.rms_eps);
  for (int c = threadIdx.x; c < h; c += kThreads) {
    p.x[static_cast<int64_t>(row) * h + c] = to_bf16(mixed[c] * norm * p.norm[c]);
  }
}

/// A thread takes two columns; an odd hidden size goes column by column.
extern "C" __global__ void __launch_bounds__(kThreads) hyper_post(const __grid_constant__ HyperPostParams p) {
  begin_kernel();
  const int row = blockIdx.y, h = p.hidden;
  const int c = 2 * (blockIdx.x * kThreads + threadIdx.x);
  if (c >= h) return;
  Bits16* x = p.streams + static_cast<int64_t>(row) * 4 * h + c;
  const float* y = p.y + static_cast<int64_t>(row) * h + c;
  const bool pairs = (h & 1) == 0;
  const int width = pairs || c + 1 < h ? 2 : 1;
  float in[4][2];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (pairs) {
      const uint32_t v = *reinterpret_cast<const uint32_t*>(x + j * h);
      in[j][0] = bf16_low(v);
      in[j][1] = bf16_high(v);
    } else {
      in[j][0] = from_bf16(x[j * h]);
      in[j][1] = width == 2 ? from_bf16(x[j * h + 1]) : 0.0f;
    }
  }
  const float y0 = y[0], y1 = width == 2 ? y[1] : 0.0f;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float post = p.post[row * 4 + k];
    float a = post * y0, b = post * y1;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float comb = p.comb[row * 16 + 4 * j + k];
      a = fmaf(comb, in[j][0], a);
      b = fmaf(comb, in[j][1], b);
    }
    if (pairs) {
      *reinterpret_cast<uint32_t*>(x + k * h) = pack_bf16(a, b);
    } else {
      x[k * h] = to_bf16(a);
      if (width == 2) x[k * h + 1] = to_bf16(b);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) rms_norm(const __grid_constant__ RmsParams p) {
  begin_kernel();
  __shared__ float shared[32];
  const Bits16* x = p.x + blockIdx.x * p.ldx;
  float sum = 0.0f;
  for (int c = threadIdx.x; c < p.n; c += kThreads) {
    const float v = from_bf16(x[c]);
    sum = fmaf(v, v, sum);
  }
  sum = block_sum<kThreads>(sum, shared);
  const float norm = rsqrtf(sum / p.n + p.eps);
  Bits16* y = p.y + static_cast<int64_t>(blockIdx.x) * p.n;
  for (int c = threadIdx.x; c < p.n; c += kThreads) y[c] = to_bf16(from_bf16(x[c]) * norm * p.w[c]);
}

extern "C" __global__ void __launch_bounds__(kThreads) head_input(const __grid_constant__ HeadInputParams p) {
  begin_kernel();
  __shared__ float shared[32];
  const int h = p.hidden;
  const Bits16* x = p.streams + static_cast<int64_t>(p.rows[blockIdx.x]) * 4 * h;
  const auto mean = [&](int c) {
    return ((from_bf16(x[c]) + from_bf16(x[h + c])) + (from_bf16(x[2 * h + c]) + from_bf16(x[3 * h + c]))) *
           0.25f;
  };
  float sum = 0.0f;
  for (int c = threadIdx.x; c < h; c += kThreads) {
    const float v = mean(c);
    sum = fmaf(v, v, sum);
  }
  sum = block_sum<kThreads>(sum, shared);
  const float norm = rsqrtf(sum / h + p.eps);
  Bits16* y = p.h + static_cast<int64_t>(blockIdx.x) * h;
  for (int c = threadIdx.x; c < h; c += kThreads) y[c] = to_bf16(mean(c) * norm * p.norm[c]);
}

/// grid: (⌈ldy / 256⌉, rows).
extern "C" __global__ void __launch_bounds__(kThreads) pad_rows(const __grid_constant__ PadParams p) {
  begin_kernel();
  const int row = blockIdx.y, c = blockIdx.x * kThreads + threadIdx.x;
  if (c < p.ldy) p.y[row * p.ldy + c] = c < p.k ? p.x[row * p.ldx + c] : Bits16{0};
}

extern "C" __global__ void __launch_bounds__(kThreads) gather(const __grid_constant__ GatherParams p) {
  begin_kernel();
  const Bits16* x = p.x + static_cast<int64_t>(p.rows[blockIdx.x]) * p.n;
  Bits16* y = p.out + static_cast<int64_t>(blockIdx.x) * p.n;
  for (int c = threadIdx.x; c < p.n; c += kThreads) y[c] = x[c];
}

extern "C" __global__ void __launch_bounds__(kThreads) add(const __grid_constant__ AddParams p) {
  begin_kernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < p.count) p.x[i] = to_bf16(from_bf16(p.x[i]) + p.y[i]);
}

extern "C" __global__ void __launch_bounds__(kThreads) convert(const __grid_constant__ ConvertParams p) {
  begin_kernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.count) return;
  if (p.to_f32) {
    static_cast<float*>(p.dst)[i] = from_bf16(static_cast<const Bits16*>(p.src)[i]);
  } else {
    static_cast<Bits16*>(p.dst)[i] = to_bf16(static_cast<const float*>(p.src)[i]);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) glu(const __grid_constant__ GluParams p) {
  begin_kernel();
  const int row = blockIdx.y, c = blockIdx.x * kThreads + threadIdx.x;
  if (c >= p.width) return;
  const Bits16* x = p.gate_up + static_cast<int64_t>(row) * 2 * p.width;
  const float g = at_most(from_bf16(x[c]), p.limit);
  const float u = at_least(at_most(from_bf16(x[p.width + c]), p.limit), -p.limit);
  p.out[static_cast<int64_t>(row) * p.width + c] = to_bf16(silu(g) * u);
}

}  // namespace firesteel::cuda
