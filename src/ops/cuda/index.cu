// The indexer: latents and pooled keys appended to pages, pool scores, the exact best pools.
#include "ops/cuda/kv_row.cuh"

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
  uint8_t* dst =
      page_of(p.batch, s, p.plane, p.page_stride, token) + static_cast<int64_t>(token % kPage) * p.row_bytes;
  const Bits16* c = p.c + static_cast<int64_t>(row) * p.width;
  if (!p.fp8) {
    for (int i = threadIdx.x; i < p.width; i += 128) reinterpret_cast<Bits16*>(dst)[i] = c[i];
    return;
  }
  __shared__ uint32_t shared[32];
  uint32_t most = 0;
  for (int i = threadIdx.x; i < p.width; i += 128)
    most = max(most, __float_as_uint(from_bf16(c[i])) & 0x7fffffffu);
  most = block_max<128>(most, shared);
  for (int i = threadIdx.x; i < p.width; i += 128) store_kv_fp8(dst, i, from_bf16(c[i]), most);
  if (threadIdx.x == 0) store_kv_scale(dst, p.width, most);
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
    if (!complete) return;
    uint8_t* dst = page_of(p.batch, s, p.pools, p.page_stride, pool * p.kpool) +
                   static_cast<int64_t>(pool % (kPage / p.kpool)) * p.row_bytes;
    const float key = real ? mix / total : 0.0f;
    if (!p.fp8) {
      if (real) reinterpret_cast<Bits16*>(dst)[d] = to_bf16(key);
      return;
    }
    const uint32_t absmax =
        block_max<128>(__float_as_uint(key) & 0x7fffffffu, reinterpret_cast<uint32_t*>(shared));
    if (real) store_kv_fp8(dst, d, key, absmax);
    if (d == 0) store_kv_scale(dst, p.dim, absmax);
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

/// Scores of visible pools; keys of kKeyDim values, heads a multiple of 8. grid: (⌈rows / rows_each⌉,
/// ⌈max_pools / 256⌉); a warp takes 32 pools and scores them for rows of one segment without reading the keys
/// again. Pools are the A operand, the row's heads the B operand; the heads' terms are added in a fixed
/// order.
extern "C" __global__ void __launch_bounds__(256, 2) pool_score(const __grid_constant__ PoolScoreParams p) {
  begin_kernel();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int pool0 = blockIdx.y * 256 + warp * 32;
  const int first = blockIdx.x * p.rows_each, last = min(first + p.rows_each, p.row_count);
  const int per_page = kPage / p.kpool, tiles = p.heads / 8;
  const float dot_scale = rsqrtf(static_cast<float>(kKeyDim)),
              head_scale = rsqrtf(static_cast<float>(p.heads));
  uint4 a[4][4];  // keys of pools pool0 + lane / 4 + 8i
  int loaded = -1, loaded_visible = 0;
  for (int r = first; r < last; ++r) {
    const int row = p.first_row + r, segment = p.batch.row_segment[row];
    const Segment s = segment_at(p.batch, segment);
    const int visible = (s.start + row - s.first_row + 1) / p.kpool;
    if (pool0 >= visible) continue;
    // Of heads lane / 4 + 8·tile: what a tile multiplies is fetched one tile before.
    const Bits16* q = p.q + (static_cast<int64_t>(row) * p.heads + (lane >> 2)) * kKeyDim + 8 * (lane & 3);
    const Bits16* hw = p.hw + static_cast<int64_t>(row) * p.heads + 2 * (lane & 3);
    uint4 b[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) b[j] = *reinterpret_cast<const uint4*>(q + 32 * j);
    uint32_t weights = *reinterpret_cast<const uint32_t*>(hw);
    // Rows of a segment see ever more pools.
    if (segment != loaded || (visible > loaded_visible && pool0 + 32 > loaded_visible)) {
      loaded = segment;
      loaded_visible = visible;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pool = min(pool0 + (lane >> 2) + 8 * i, visible - 1);
        const uint8_t* key =
            p.pools +
            static_cast<int64_t>(p.batch.page_table[s.page_begin + pool / per_page]) * p.page_stride +
            static_cast<int64_t>(pool % per_page) * p.row_bytes;
        if (p.fp8) {
          const uint32_t factor = kv_factor(key[kKeyDim]);
#pragma unroll
          for (int j = 0; j < 4; ++j)
            a[i][j] = kv_decode8(*reinterpret_cast<const uint2*>(key + 32 * j + 8 * (lane & 3)), factor);
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j)
            a[i][j] = *reinterpret_cast<const uint4*>(key + 64 * j + 16 * (lane & 3));
        }
      }
    }
    float score[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int tile = 0; tile < tiles; ++tile) {
      uint4 following[4];
      uint32_t following_weights = 0;
      if (tile + 1 < tiles) {
        q += 8 * kKeyDim;
        hw += 8;
#pragma unroll
        for (int j = 0; j < 4; ++j) following[j] = *reinterpret_cast<const uint4*>(q + 32 * j);
        following_weights = *reinterpret_cast<const uint32_t*>(hw);
      }
      float d[2][4] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint4 lo = a[2 * m][j], hi = a[2 * m + 1][j];
          const uint32_t f0[4] = {lo.x, hi.x, lo.y, hi.y}, f1[4] = {lo.z, hi.z, lo.w, hi.w};
          mma<false>(d[m], f0, b[j].x, b[j].y);
          mma<false>(d[m], f1, b[j].z, b[j].w);
        }
      }
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const float w = (t == 0 ? bf16_low(weights) : bf16_high(weights)) * head_scale;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float v = d[i >> 1][2 * (i & 1) + t] * dot_scale;
          score[i] = fmaf(w, v < 0.0f ? 0.0f : v, score[i]);
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) b[j] = following[j];
      weights = following_weights;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) score[i] += __shfl_xor_sync(0xffffffffu, score[i], 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) score[i] += __shfl_xor_sync(0xffffffffu, score[i], 2);
    // Lane t of a quad stores the score of pool 8t.
    const float mine = (lane & 2) ? ((lane & 1) ? score[3] : score[2]) : ((lane & 1) ? score[1] : score[0]);
    const int pool = pool0 + (lane >> 2) + 8 * (lane & 3);
    if (pool < visible) p.scores[static_cast<int64_t>(r) * p.max_pools + pool] = mine;
  }
}

namespace {

constexpr int kPickBins = 2048;

struct PickShared {
  int histogram[kPickBins];
  int warp_sum[32], warp_equal[32];
  uint32_t least, most;
  int bin, left;
};

/// The `top` greatest of `count` > top keys, ties to the lower item. The block's 1024 threads hold the items:
/// item 32·kItems·warp + 32·i + lane is key[i] (0 where there is none: no key of a number is 0, and NaN's
/// items are told by `count`). Calls take(place, item) for the chosen ones, places in ascending order of
/// items.
template <int kItems, typename Take>
__device__ __forceinline__ void pick_best(const uint32_t (&key)[kItems], int count, int top, PickShared& sh,
                                          const Take& take) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, item0 = warp * 32 * kItems + lane;
  uint32_t low = 0xffffffffu, high = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (item0 + 32 * i < count) low = min(low, key[i]), high = max(high, key[i]);
  }
  low = __reduce_min_sync(0xffffffffu, low);
  high = __reduce_max_sync(0xffffffffu, high);
  if (threadIdx.x == 0) sh.least = 0xffffffffu, sh.most = 0;
  __syncthreads();
  if (lane == 0) {
    atomicMin(&sh.least, low);
    atomicMax(&sh.most, high);
  }
  __syncthreads();
  // The threshold: bins of equal width over the range of what may still be it, from the top.
  uint32_t base = sh.least, range = sh.most - sh.least;
  int left = top;  // to be found at or below the bins above
  while (true) {
    const int shift = range == 0 ? 0 : max(0, 21 - __clz(range));  // range >> shift < kPickBins
    sh.histogram[threadIdx.x] = 0;
    sh.histogram[threadIdx.x + 1024] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const uint32_t at = key[i] - base;
      if (item0 + 32 * i < count && key[i] >= base && at <= range) atomicAdd(&sh.histogram[at >> shift], 1);
    }
    __syncthreads();
    // Thread t has bins 2047 - 2t and 2046 - 2t.
    const int upper = kPickBins - 1 - 2 * static_cast<int>(threadIdx.x);
    const int h0 = sh.histogram[upper], h1 = sh.histogram[upper - 1], mine = h0 + h1;
    int before = mine;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
      const int v = __shfl_up_sync(0xffffffffu, before, step);
      if (lane >= step) before += v;
    }
    if (lane == 31) sh.warp_sum[warp] = before;
    __syncthreads();
    if (warp == 0) {
      const int sum = sh.warp_sum[lane];
      int all = sum;
#pragma unroll
      for (int step = 1; step < 32; step <<= 1) {
        const int v = __shfl_up_sync(0xffffffffu, all, step);
        if (lane >= step) all += v;
      }
      sh.warp_sum[lane] = all - sum;
    }
    __syncthreads();
    before += sh.warp_sum[warp] - mine;
    if (before < left && before + mine >= left) {
      const bool first = before + h0 >= left;
      sh.bin = first ? upper : upper - 1;
      sh.left = left - before - (first ? 0 : h0);
    }
    __syncthreads();
    base += static_cast<uint32_t>(sh.bin) << shift;
    range = (1u << shift) - 1;
    left = sh.left;
    if (shift == 0) break;
    __syncthreads();
  }
  // Keys above `base` are all in; of those equal to it the first `left`.
  int above = 0, equal = 0;
  uint32_t above_mask[kItems], equal_mask[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const bool real = item0 + 32 * i < count;
    above_mask[i] = __ballot_sync(0xffffffffu, real && key[i] > base);
    equal_mask[i] = __ballot_sync(0xffffffffu, real && key[i] == base);
    above += __popc(above_mask[i]);
    equal += __popc(equal_mask[i]);
  }
  if (lane == 0) sh.warp_sum[warp] = above, sh.warp_equal[warp] = equal;
  __syncthreads();
  above = lane < warp ? sh.warp_sum[lane] : 0;
  equal = lane < warp ? sh.warp_equal[lane] : 0;
  above = __reduce_add_sync(0xffffffffu, above);
  equal = __reduce_add_sync(0xffffffffu, equal);
  const uint32_t below = (1u << lane) - 1;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int my_above = above + __popc(above_mask[i] & below),
              my_equal = equal + __popc(equal_mask[i] & below);
    const bool is_above = above_mask[i] >> lane & 1, is_equal = equal_mask[i] >> lane & 1;
    if (is_above || (is_equal && my_equal < left)) take(my_above + min(my_equal, left), item0 + 32 * i);
    above += __popc(above_mask[i]);
    equal += __popc(equal_mask[i]);
  }
}

}  // namespace

/// The best of each stretch of kPickStretch pools; a row with one stretch is done. grid: (stretches, rows).
extern "C" __global__ void __launch_bounds__(1024) pool_pick(const __grid_constant__ PoolPickParams p) {
  begin_kernel();
  constexpr int kItems = kPickStretch / 1024;
  __shared__ PickShared sh;
  const int row = p.first_row + blockIdx.y, begin = blockIdx.x * kPickStretch;
  const Segment s = segment_at(p.batch, p.batch.row_segment[row]);
  const int visible = (s.start + row - s.first_row + 1) / p.kpool;
  int32_t* out = p.pools + static_cast<int64_t>(row) * p.out_stride;
  if (blockIdx.x == 0 && threadIdx.x == 0) p.count[row] = min(visible, p.top_pools);
  if (begin >= visible) return;
  if (visible <= p.top_pools) {  // all pools
    for (int i = begin + threadIdx.x; i < min(visible, begin + kPickStretch); i += 1024) out[i] = i;
    return;
  }
  const bool only = visible <= kPickStretch;
  const int count = min(kPickStretch, visible - begin);
  const float* scores = p.scores + static_cast<int64_t>(blockIdx.y) * p.max_pools + begin;
  const int item0 = (threadIdx.x >> 5) * 32 * kItems + (threadIdx.x & 31);
  uint32_t key[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) key[i] = item0 + 32 * i < count ? score_key(scores[item0 + 32 * i]) : 0;
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * p.stretches + blockIdx.x) * p.top_pools;
  if (count <= p.top_pools) {  // a short last stretch
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = item0 + 32 * i;
      if (item < count) p.candidate_keys[at + item] = key[i], p.candidates[at + item] = begin + item;
    }
    return;
  }
  if (only) {
    pick_best<kItems>(key, count, p.top_pools, sh, [&](int place, int item) { out[place] = item; });
    return;
  }
  pick_best<kItems>(key, count, p.top_pools, sh, [&](int place, int item) {
    p.candidate_keys[at + place] = score_key(scores[item]);
    p.candidates[at + place] = begin + item;
  });
}

/// The best of the candidates of a row with several stretches: they lie in ascending order. grid: rows.
extern "C" __global__ void __launch_bounds__(1024) pool_pick_again(const __grid_constant__ PoolPickParams p) {
  begin_kernel();
  constexpr int kItems = kPickAgain / 1024;
  __shared__ PickShared sh;
  const int row = p.first_row + blockIdx.x;
  const Segment s = segment_at(p.batch, p.batch.row_segment[row]);
  const int visible = (s.start + row - s.first_row + 1) / p.kpool;
  if (visible <= p.top_pools || visible <= kPickStretch) return;
  const int whole = (visible - 1) / kPickStretch, rest = visible - whole * kPickStretch;
  const int count = whole * p.top_pools + min(rest, p.top_pools);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * p.stretches * p.top_pools;
  const int item0 = (threadIdx.x >> 5) * 32 * kItems + (threadIdx.x & 31);
  uint32_t key[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i)
    key[i] = item0 + 32 * i < count ? p.candidate_keys[at + item0 + 32 * i] : 0;
  int32_t* out = p.pools + static_cast<int64_t>(row) * p.out_stride;
  pick_best<kItems>(key, count, p.top_pools, sh,
                    [&](int place, int item) { out[place] = p.candidates[at + item]; });
}

/// As pool_pick, for selections of any size: one block a row. The threshold is found byte by byte from the
/// top; then every warp lists its own stretch of pools in order.
extern "C" __global__ void __launch_bounds__(1024) pool_pick_large(const __grid_constant__ PoolPickParams p) {
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
