// The indexer: latents and pooled keys appended to pages, pool scores, the exact best pools.
#include "ops/cuda/common.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kPage = 256;  // tokens
constexpr float kLayerNormEps = 1e-6f;

__device__ __forceinline__ uint8_t* page_of(const BatchView& b, const Segment& s, uint8_t* base,
                                            int64_t stride, int token) {
  return base + static_cast<int64_t>(b.page_table[s.page_begin + token / kPage]) * stride;
}

/// Order-preserving: greater score, greater key. -0 and +0 are one score; NaN comes last.
__device__ __forceinline__ uint32_t score_key(float v) {
  if (isnan(v)) return 0;
  const uint32_t bits = __float_as_uint(v + 0.0f);
  return bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) latent_append(const __grid_constant__ AppendParams p) {
  begin_kernel();
  const int row = blockIdx.x;
  const Segment s = segment_at(p.batch, p.batch.row_segment[row]);
  const int token = s.start + row - s.first_row;
  Bits16* dst = reinterpret_cast<Bits16*>(page_of(p.batch, s, p.plane, p.page_stride, token)) +
                static_cast<int64_t>(token % kPage) * p.width;
  for (int c = threadIdx.x; c < p.width; c += 128) dst[c] = p.c[static_cast<int64_t>(row) * p.width + c];
}

/// grid: (pools of the longest segment, segments); one thread a channel. Block 0 of a segment takes its first
/// pool, which may read the tail, and then the incomplete last one, which writes it.
extern "C" __global__ void __launch_bounds__(128) pool_append(const __grid_constant__ PoolAppendParams p) {
  begin_kernel();
  __shared__ float shared[32];
  const Segment s = segment_at(p.batch, blockIdx.y);
  const int d = threadIdx.x;
  const bool real = d < p.dim;
  const int end = s.start + s.rows, first_pool = s.start / p.kpool, last_pool = (end - 1) / p.kpool;
  const bool last_open = end % p.kpool != 0;
  Bits16* tail = reinterpret_cast<Bits16*>(p.tail + s.slot * p.tail_stride);
  const auto do_pool = [&](int pool) {
    const bool complete = (pool + 1) * p.kpool <= end;
    const int count = min(p.kpool, end - pool * p.kpool);
    // The softmax runs along: a greater gate rescales what came before.
    float most = -INFINITY, total = 0.0f, mix = 0.0f;
    for (int j = 0; j < count; ++j) {
      const int token = pool * p.kpool + j;
      float k = 0.0f, g = 0.0f;
      if (token < s.start) {
        if (real) {
          k = from_bf16(tail[2 * j * p.dim + d]);
          g = from_bf16(tail[(2 * j + 1) * p.dim + d]);
        }
      } else {
        const int64_t at = static_cast<int64_t>(s.first_row + token - s.start) * p.dim + d;
        const float x = real ? from_bf16(p.ki[at]) : 0.0f;
        const float mean = block_sum<128>(x, shared) / p.dim;
        const float c = real ? x - mean : 0.0f;
        const float variance = block_sum<128>(c * c, shared) / p.dim;
        if (real) {
          // Rounded as the tail keeps it, so that a pool does not depend on where a segment began.
          k = from_bf16(to_bf16(c * rsqrtf(variance + kLayerNormEps) * p.norm_weight[d] + p.norm_bias[d]));
          g = from_bf16(p.ga[at]);
          if (!complete) {
            tail[2 * j * p.dim + d] = to_bf16(k);
            tail[(2 * j + 1) * p.dim + d] = p.ga[at];
          }
        }
      }
      if (real) {
        g += p.ape[j * p.dim + d];
        const float top = fmaxf(most, g), keep = expf(most - top), e = expf(g - top);
        total = fmaf(total, keep, e);
        mix = fmaf(mix, keep, e * k);
        most = top;
      }
    }
    if (!complete || !real) return;
    const int per_page = kPage / p.kpool;
    Bits16* dst = reinterpret_cast<Bits16*>(page_of(p.batch, s, p.pools, p.page_stride, pool * p.kpool)) +
                  static_cast<int64_t>(pool % per_page) * p.dim;
    dst[d] = to_bf16(mix / total);
  };
  const int pool = first_pool + blockIdx.x;
  if (pool > last_pool) return;
  if (blockIdx.x == 0) {
    do_pool(pool);
    if (last_open && last_pool != first_pool) do_pool(last_pool);
  } else if (pool < last_pool || !last_open) {
    do_pool(pool);
  }
}

/// Scores of visible pools of rows that must choose. grid: (⌈max_pools / 128⌉, rows); a warp takes 16 pools.
/// Pools are the A operand, the row's heads the B operand; the heads' terms are added in a fixed order.
extern "C" __global__ void __launch_bounds__(256) pool_score(const __grid_constant__ PoolScoreParams p) {
  begin_kernel();
  const int row = p.first_row + blockIdx.y;
  const Segment s = segment_at(p.batch, p.batch.row_segment[row]);
  const int visible = (s.start + row - s.first_row + 1) / p.kpool;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int pool0 = blockIdx.x * 128 + warp * 16;
  if (pool0 >= visible) return;
  const int per_page = kPage / p.kpool;
  const Bits16* key[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int pool = min(pool0 + (lane >> 2) + 8 * i, visible - 1);
    const uint8_t* page =
        p.pools + static_cast<int64_t>(p.batch.page_table[s.page_begin + pool / per_page]) * p.page_stride;
    key[i] = reinterpret_cast<const Bits16*>(page) + static_cast<int64_t>(pool % per_page) * p.dim +
             8 * (lane & 3);
  }
  uint4 a0[4], a1[4];
  const int steps = p.dim / 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < steps) {
      a0[i] = *reinterpret_cast<const uint4*>(key[0] + 32 * i);
      a1[i] = *reinterpret_cast<const uint4*>(key[1] + 32 * i);
    }
  }
  const float dot_scale = rsqrtf(static_cast<float>(p.dim)), head_scale = rsqrtf(static_cast<float>(p.heads));
  float score[2] = {0.0f, 0.0f};
  for (int tile = 0; tile < (p.heads + 7) / 8; ++tile) {
    const int head = min(tile * 8 + (lane >> 2), p.heads - 1);
    const Bits16* q = p.q + (static_cast<int64_t>(row) * p.heads + head) * p.dim + 8 * (lane & 3);
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < steps) {
        const uint4 b = *reinterpret_cast<const uint4*>(q + 32 * i);
        const uint32_t f0[4] = {a0[i].x, a1[i].x, a0[i].y, a1[i].y},
                       f1[4] = {a0[i].z, a1[i].z, a0[i].w, a1[i].w};
        mma<false>(d, f0, b.x, b.y);
        mma<false>(d, f1, b.z, b.w);
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int h = tile * 8 + 2 * (lane & 3) + (r & 1);
      if (h < p.heads) {
        const float w = from_bf16(p.hw[static_cast<int64_t>(row) * p.heads + h]) * head_scale;
        const float v = d[r] * dot_scale;
        score[r >> 1] = fmaf(w, v < 0.0f ? 0.0f : v, score[r >> 1]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    score[i] += __shfl_xor_sync(0xffffffffu, score[i], 1);
    score[i] += __shfl_xor_sync(0xffffffffu, score[i], 2);
    const int pool = pool0 + (lane >> 2) + 8 * i;
    if ((lane & 3) == 0 && pool < visible)
      p.scores[static_cast<int64_t>(blockIdx.y) * p.max_pools + pool] = score[i];
  }
}

/// One block a row: the top_pools greatest scores, ties to the lower pool, in ascending order. The threshold
/// is found byte by byte from the top; then every warp lists its own stretch of pools in order.
extern "C" __global__ void __launch_bounds__(1024) pool_pick(const __grid_constant__ PoolPickParams p) {
  begin_kernel();
  __shared__ int histogram[256], warp_above[32], warp_equal[32];
  __shared__ int found_bin, found_left;
  const int row = p.first_row + blockIdx.x;
  const Segment s = segment_at(p.batch, p.batch.row_segment[row]);
  const int visible = (s.start + row - s.first_row + 1) / p.kpool;
  int32_t* out = p.pools + static_cast<int64_t>(row) * p.out_stride;
  const int count = min(visible, p.top_pools);
  if (threadIdx.x == 0) p.count[row] = count;
  if (visible <= p.top_pools) {
    for (int i = threadIdx.x; i < visible; i += 1024) out[i] = i;
    return;
  }
  const float* scores = p.scores + static_cast<int64_t>(blockIdx.x) * p.max_pools;
  uint32_t prefix = 0, mask = 0;
  int left = count;  // how many are still to be found at or below the prefix
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < visible; i += 1024) {
      const uint32_t key = score_key(scores[i]);
      if ((key & mask) == prefix) atomicAdd(&histogram[(key >> shift) & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      // Lane l sums bins from the top: 255 - 8l down to 248 - 8l.
      int sum = 0;
      for (int i = 0; i < 8; ++i) sum += histogram[255 - 8 * threadIdx.x - i];
      int before = sum;
#pragma unroll
      for (int step = 1; step < 32; step <<= 1) {
        const int v = __shfl_up_sync(0xffffffffu, before, step);
        if (static_cast<int>(threadIdx.x) >= step) before += v;
      }
      before -= sum;
      if (before < left && before + sum >= left) {
        int bin = 255 - 8 * threadIdx.x, rest = left - before;
        while (histogram[bin] < rest) rest -= histogram[bin--];
        found_bin = bin;
        found_left = rest;
      }
    }
    __syncthreads();
    prefix |= static_cast<uint32_t>(found_bin) << shift;
    mask |= 255u << shift;
    left = found_left;
    __syncthreads();
  }
  // Keys above `prefix` are all in; of those equal to it the first `left`.
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int stretch = ((visible + 31) / 32 + 31) / 32 * 32, begin = warp * stretch,
            end = min(visible, begin + stretch);
  int above = 0, equal = 0;
  for (int i = begin + lane; i < end; i += 32) {
    const uint32_t key = score_key(scores[i]);
    above += key > prefix;
    equal += key == prefix;
  }
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) {
    above += __shfl_xor_sync(0xffffffffu, above, m);
    equal += __shfl_xor_sync(0xffffffffu, equal, m);
  }
  if (lane == 0) {
    warp_above[warp] = above;
    warp_equal[warp] = equal;
  }
  __syncthreads();
  int above_before = 0, equal_before = 0;
  for (int w = 0; w < warp; ++w) {
    above_before += warp_above[w];
    equal_before += warp_equal[w];
  }
  for (int i0 = begin; i0 < end; i0 += 32) {
    const int i = i0 + lane;
    const uint32_t key = i < end ? score_key(scores[i]) : 0;
    const bool is_above = i < end && key > prefix, is_equal = i < end && key == prefix;
    const uint32_t above_mask = __ballot_sync(0xffffffffu, is_above),
                   equal_mask = __ballot_sync(0xffffffffu, is_equal);
    const uint32_t below = (1u << lane) - 1;
    const int my_above = above_before + __popc(above_mask & below),
              my_equal = equal_before + __popc(equal_mask & below);
    if (is_above || (is_equal && my_equal < left)) out[my_above + min(my_equal, left)] = i;
    above_before += __popc(above_mask);
    equal_before += __popc(equal_mask);
  }
}

}  // namespace firesteel::cuda
