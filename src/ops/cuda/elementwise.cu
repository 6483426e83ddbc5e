// Embedding rows, norms, gathers: ops whose time is their bytes.
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
