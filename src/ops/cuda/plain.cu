// Ops of shapes that the fast kernels do not take (small test models): plain loops, the same results whatever
// the batch.
#include "ops/cuda/kv_row.cuh"
#include "ops/cuda/packed.cuh"

namespace firesteel::cuda {

namespace {
constexpr int kPage = 256;
constexpr int kThreads = 128;
}  // namespace

/// grid: (⌈max_pools / 256⌉, rows), a thread a pool.
extern "C" __global__ void __launch_bounds__(256)
    pool_score_plain(const __grid_constant__ PoolScoreParams p) {
  begin_kernel();
  const int row = p.first_row + blockIdx.y, pool = blockIdx.x * 256 + threadIdx.x;
  const Segment s = segment_at(p.batch, p.batch.row_segment[row]);
  if (pool >= (s.start + row - s.first_row + 1) / p.kpool) return;
  const int per_page = kPage / p.kpool;
  const uint8_t* key =
      p.pools + static_cast<int64_t>(p.batch.page_table[s.page_begin + pool / per_page]) * p.page_stride +
      static_cast<int64_t>(pool % per_page) * p.row_bytes;
  const float dot_scale = rsqrtf(static_cast<float>(p.dim)), head_scale = rsqrtf(static_cast<float>(p.heads));
  float score = 0.0f;
  for (int h = 0; h < p.heads; ++h) {
    const Bits16* q = p.q + (static_cast<int64_t>(row) * p.heads + h) * p.dim;
    float dot = 0.0f;
    for (int d = 0; d < p.dim; ++d) dot = fmaf(from_bf16(q[d]), kv_value(key, d, p.dim, p.fp8), dot);
    dot *= dot_scale;
    score = fmaf(from_bf16(p.hw[static_cast<int64_t>(row) * p.heads + h]) * head_scale,
                 dot < 0.0f ? 0.0f : dot, score);
  }
  p.scores[static_cast<int64_t>(blockIdx.y) * p.max_pools + pool] = score;
}

/// grid: (heads, rows). Dynamic shared memory: 2 · latent + kThreads floats.
extern "C" __global__ void __launch_bounds__(kThreads)
    attend_plain(const __grid_constant__ PlainAttentionParams p) {
  extern __shared__ float shared[];
  begin_kernel();
  __shared__ float sums[32];
  float* query = shared;
  float* mix = shared + p.latent;
  float* weight = shared + 2 * p.latent;
  const int head = blockIdx.x, row = blockIdx.y, row0 = head * (p.qk_dim + p.v_dim);
  const Segment s = segment_at(p.batch, p.batch.row_segment[row]);
  const int position = s.start + row - s.first_row;
  const Bits16* q = p.q + (static_cast<int64_t>(row) * p.heads + head) * p.qk_dim;
  for (int i = threadIdx.x; i < p.latent; i += kThreads) {
    float v = 0.0f;
    for (int d = 0; d < p.qk_dim; ++d)
      v = fmaf(plain_weight(p.kv_b, p.kv_f32, p.latent, row0 + d, i), from_bf16(q[d]), v);
    query[i] = v;
    mix[i] = 0.0f;
  }
  const int32_t* pools = p.pools + static_cast<int64_t>(row) * p.sel_stride;
  const int pooled = p.count[row] * p.kpool, tail = (position + 1) / p.kpool * p.kpool;
  const int total = pooled + position + 1 - tail;
  const auto latent_row = [&](int at) {
    const int token = at < pooled ? pools[at / p.kpool] * p.kpool + at % p.kpool : tail + at - pooled;
    return p.latents +
           static_cast<int64_t>(p.batch.page_table[s.page_begin + token / kPage]) * p.page_stride +
           static_cast<int64_t>(token % kPage) * p.row_bytes;
  };
  float most = -INFINITY, sum = 0.0f;
  for (int block = 0; block < total; block += kThreads) {
    __syncthreads();
    const int at = block + threadIdx.x;
    float score = -INFINITY;
    if (at < total) {
      const uint8_t* c = latent_row(at);
      float v = 0.0f;
      for (int i = 0; i < p.latent; ++i) v = fmaf(query[i], kv_value(c, i, p.latent, p.fp8), v);
      score = v * p.scale;
    }
    weight[threadIdx.x] = score;
    __syncthreads();
    float top = most;
    for (int i = 0; i < kThreads; ++i) top = fmaxf(top, weight[i]);
    const float keep = expf(most - top), e = expf(score - top);
    most = top;
    sum = fmaf(sum, keep, block_sum<kThreads>(e, sums));
    __syncthreads();
    weight[threadIdx.x] = e;
    __syncthreads();
    const int count = min(kThreads, total - block);
    for (int i = threadIdx.x; i < p.latent; i += kThreads) {
      float v = mix[i] * keep;
      for (int j = 0; j < count; ++j)
        v = fmaf(weight[j], kv_value(latent_row(block + j), i, p.latent, p.fp8), v);
      mix[i] = v;
    }
  }
  __syncthreads();
  for (int d = threadIdx.x; d < p.v_dim; d += kThreads) {
    float v = 0.0f;
    for (int i = 0; i < p.latent; ++i) {
      v = fmaf(plain_weight(p.kv_b, p.kv_f32, p.latent, row0 + p.qk_dim + d, i), mix[i] / sum, v);
    }
    p.out[(static_cast<int64_t>(row) * p.heads + head) * p.v_dim + d] = to_bf16(v);
  }
}

}  // namespace firesteel::cuda
