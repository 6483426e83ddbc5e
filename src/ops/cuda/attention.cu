// Attention over selected latents in absorbed form.
//
// absorb: q̃ = W_Kᵀ q per head; attend: scores, softmax and mix; expand: o = W_V õ per head. What defines a
// row's bits: its listed tokens go in blocks of kBlock with a running softmax, kChunk of them from a fresh
// start; chunks are merged in ascending order, M' = max(M, m), O' = O·exp(M - M') + o·exp(m - M'). A score is
// summed over four slices of the latent, added in order. Few rows: a thread block a chunk, and attend_merge;
// many rows: a thread block walks all chunks of its row. Both do the same sums.
#include "ops/cuda/kv_row.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kPage = 256;
constexpr int kChunk = 128;   // listed tokens of a chunk
constexpr int kBlock = 32;    // tokens staged together
constexpr int kHeads = 32;    // heads of a thread block
constexpr int kLatent = 512;  // most latent columns
constexpr int kPitch =
    kLatent + 8;  // of a row in shared memory, elements: eight rows fall into distinct banks

__device__ __forceinline__ void load_matrix4(uint32_t (&r)[4], const Bits16* row) {
  const uint32_t a = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a));
}
__device__ __forceinline__ void load_matrix4_t(uint32_t (&r)[4], const Bits16* row) {
  const uint32_t a = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a));
}

}  // namespace

/// grid: (heads, ⌈latent / 64⌉ or, with W = 4, ⌈latent / 256⌉, ⌈rows / 8·NT⌉), 4 warps of 16·W latents each:
/// with few rows more warps read weights at once.
template <int NT, int W>
__device__ __forceinline__ void absorb_rows(const AbsorbParams& p) {
  begin_kernel();
  const int head = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int group = W == 4 ? blockIdx.y * 4 + warp : blockIdx.y, groups = (p.latent + 63) / 64;
  const int j0 = W == 4 ? 0 : warp;  // of the four 16-latent parts of a group
  if (group >= groups) return;
  const Bits16* q[NT];
#pragma unroll
  for (int t = 0; t < NT; ++t) {
    const int row = min(static_cast<int>(blockIdx.z * NT + t) * 8 + (lane >> 2), p.rows - 1);
    q[t] = p.x + (static_cast<int64_t>(row) * p.heads + head) * p.qk_dim + 2 * (lane & 3);
  }
  const int first_tile = head * (p.qk_dim + p.v_dim) / 16;
  const uint8_t* tile =
      p.kv_b + (static_cast<int64_t>(first_tile) * groups + group) * 2048 + 16 * lane + 512 * j0;
  float acc[W][NT][4] = {};
#pragma unroll(W == 4 ? 2 : 8)
  for (int i = 0; i < p.qk_dim / 16; ++i) {
    uint4 w[W];
#pragma unroll
    for (int j = 0; j < W; ++j) w[j] = *reinterpret_cast<const uint4*>(tile + 512 * j);
    tile += static_cast<int64_t>(groups) * 2048;
    uint32_t b0[NT], b1[NT];
#pragma unroll
    for (int t = 0; t < NT; ++t) {
      b0[t] = *reinterpret_cast<const uint32_t*>(q[t] + 16 * i);
      b1[t] = *reinterpret_cast<const uint32_t*>(q[t] + 16 * i + 8);
    }
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const uint32_t a[4] = {transpose8(w[j].x), transpose8(w[j].z), transpose8(w[j].y), transpose8(w[j].w)};
#pragma unroll
      for (int t = 0; t < NT; ++t) mma<false>(acc[j][t], a, b0[t], b1[t]);
    }
  }
  // Slot g of part j is latent 64·group + 32·(j/2) + 8·(g/2) + 4·(j%2) + g%2, slot g + 8 two further.
  const int g = lane >> 2;
#pragma unroll
  for (int t = 0; t < NT; ++t)
#pragma unroll
    for (int i = 0; i < W; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = (blockIdx.z * NT + t) * 8 + 2 * (lane & 3) + (r & 1), j = j0 + i;
        const int latent = 64 * group + 32 * (j >> 1) + 8 * (g >> 1) + 4 * (j & 1) + (g & 1) + 2 * (r >> 1);
        if (row < p.rows && latent < p.latent) {
          p.y[(static_cast<int64_t>(row) * p.heads + head) * p.latent + latent] = to_bf16(acc[i][t][r]);
        }
      }
}
extern "C" __global__ void __launch_bounds__(128) absorb_few(const __grid_constant__ AbsorbParams p) {
  absorb_rows<1, 1>(p);
}
extern "C" __global__ void __launch_bounds__(128) absorb_many(const __grid_constant__ AbsorbParams p) {
  absorb_rows<4, 4>(p);
}

/// grid: (heads, ⌈v_dim / 64⌉, ⌈rows / 8·NT⌉), 4 warps of 16 channels each.
template <int NT>
__device__ __forceinline__ void expand_rows(const AbsorbParams& p) {
  begin_kernel();
  const int head = blockIdx.x, lane = threadIdx.x & 31;
  const int channel0 = (blockIdx.y * 4 + (threadIdx.x >> 5)) * 16, groups = (p.latent + 63) / 64;
  if (channel0 >= p.v_dim) return;
  const Bits16* x[NT];
#pragma unroll
  for (int t = 0; t < NT; ++t) {
    const int row = min(static_cast<int>(blockIdx.z * NT + t) * 8 + (lane >> 2), p.rows - 1);
    x[t] = p.x + (static_cast<int64_t>(row) * p.heads + head) * p.latent + 8 * (lane & 3);
  }
  const int tile = (head * (p.qk_dim + p.v_dim) + p.qk_dim + channel0) / 16;
  const uint8_t* w = p.kv_b + static_cast<int64_t>(tile) * groups * 2048 + 16 * lane;
  float acc[NT][4] = {};
#pragma unroll(NT == 1 ? 4 : 2)
  for (int g = 0; g < groups; ++g) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = *reinterpret_cast<const uint4*>(w + g * 2048 + 512 * j);
#pragma unroll
    for (int t = 0; t < NT; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint4 b = *reinterpret_cast<const uint4*>(x[t] + 64 * g + 32 * h);
        const uint32_t a0[4] = {v[2 * h].x, v[2 * h].y, v[2 * h].z, v[2 * h].w};
        const uint32_t a1[4] = {v[2 * h + 1].x, v[2 * h + 1].y, v[2 * h + 1].z, v[2 * h + 1].w};
        mma<false>(acc[t], a0, b.x, b.y);
        mma<false>(acc[t], a1, b.z, b.w);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < NT; ++t)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = (blockIdx.z * NT + t) * 8 + 2 * (lane & 3) + (r & 1),
                channel = channel0 + (lane >> 2) + 8 * (r >> 1);
      if (row < p.rows && channel < p.v_dim) {
        p.y[(static_cast<int64_t>(row) * p.heads + head) * p.v_dim + channel] = to_bf16(acc[t][r]);
      }
    }
}
extern "C" __global__ void __launch_bounds__(128) expand_few(const __grid_constant__ AbsorbParams p) {
  expand_rows<1>(p);
}
extern "C" __global__ void __launch_bounds__(128) expand_many(const __grid_constant__ AbsorbParams p) {
  expand_rows<8>(p);
}

namespace {

struct AttendShared {
  // Wide rows: two stages of a block's latents. FP8 rows: the decoded block, then two stages of codes.
  union {
    Bits16 c[2][kBlock][kPitch];
    struct {
      Bits16 decoded[kBlock][kPitch];
      uint8_t codes[2][kBlock][kLatent + 16];
    } fp8;
  };
  float score[4][kHeads][kBlock + 8];  // of each slice
  Bits16 weight[kHeads][kBlock + 8];
  float rescale[kHeads], merge_old[kHeads], merge_new[kHeads], total[kHeads];
  const uint8_t* row[2][kChunk];  // the latents of this and the next chunk's tokens
};
static_assert(sizeof(AttendShared) <= 99 * 1024 && sizeof(AttendShared) == kAttendShared);

/// The listed tokens of a row.
struct TokenList {
  const int32_t* pools;
  const int32_t* pages;
  int pooled, tail, total, kpool;

  __device__ TokenList(const AttentionParams& p, int row) {
    const Segment s = segment_at(p.batch, p.batch.row_segment[row]);
    const int position = s.start + row - s.first_row;
    pools = p.pools + static_cast<int64_t>(row) * p.sel_stride;
    pages = p.batch.page_table + s.page_begin;
    kpool = p.kpool;
    pooled = p.count[row] * kpool;
    tail = (position + 1) / kpool * kpool;
    total = pooled + position + 1 - tail;
  }
  __device__ int pool(int at) const { return at < pooled ? pools[at / kpool] : 0; }
  __device__ int token(int at, int pool) const {
    return at < pooled ? pool * kpool + at % kpool : tail + at - pooled;
  }
  __device__ const uint8_t* latent(const AttentionParams& p, int token, int page) const {
    return p.latents + page * p.page_stride + static_cast<int64_t>(token % kPage) * p.row_bytes;
  }
};

template <bool kFp8>
__device__ __forceinline__ void stage_block(const AttentionParams& p, AttendShared& sh, int stage,
                                            const uint8_t* const* rows, int count) {
  if constexpr (kFp8) {
    const int pieces = p.latent / 16 + 1;  // the last one has the scale
    for (int i = threadIdx.x; i < kBlock * pieces; i += 256) {
      const int t = i / pieces, c = i % pieces * 16;
      copy_async16(&sh.fp8.codes[stage][t][c], rows[min(t, count - 1)] + c, t < count);
    }
  } else {
    const int pieces = p.latent / 8;
    for (int i = threadIdx.x; i < kBlock * pieces; i += 256) {
      const int t = i / pieces, c = i % pieces * 8;
      copy_async16(&sh.c[stage][t][c], rows[min(t, count - 1)] + 2 * c, t < count);
    }
  }
  copy_async_commit();
}

/// FP8: rows past the end are zeros of scale 0, which decode to zeros.
__device__ __forceinline__ void decode_block(const AttentionParams& p, AttendShared& sh, int stage) {
  const int pieces = p.latent / 16;
  for (int i = threadIdx.x; i < kBlock * pieces; i += 256) {
    const int t = i / pieces, c = i % pieces * 16;
    const uint8_t* row = sh.fp8.codes[stage][t];
    const uint32_t factor = kv_factor(row[p.latent]);
    const uint4 codes = *reinterpret_cast<const uint4*>(row + c);
    *reinterpret_cast<uint4*>(&sh.fp8.decoded[t][c]) = kv_decode8(make_uint2(codes.x, codes.y), factor);
    *reinterpret_cast<uint4*>(&sh.fp8.decoded[t][c + 8]) = kv_decode8(make_uint2(codes.z, codes.w), factor);
  }
}

/// kWhole: a block a row, grid (rows of this pass, ⌈heads / 32⌉), õ to p.out. Else a block a chunk, grid
/// (rows of this pass, ⌈heads / 32⌉, chunks), its part to p.part_o and p.part_ml. 8 warps.
template <bool kFp8, bool kWhole>
__device__ __forceinline__ void attend_tokens(const AttentionParams& p) {
  begin_kernel();
  extern __shared__ __align__(16) uint8_t raw[];
  AttendShared& sh = *reinterpret_cast<AttendShared*>(raw);
  const int row = p.first_row + blockIdx.x, head0 = blockIdx.y * kHeads, chunk = kWhole ? 0 : blockIdx.z;
  const int heads = min(kHeads, p.heads - head0);
  const TokenList list(p, row);
  const int begin = chunk * kChunk, end = kWhole ? list.total : min(list.total, begin + kChunk);
  if (begin >= end) return;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int slice = warp & 3, tokens0 = 16 * (warp >> 2);  // of scores
  const int steps = p.latent / 64;                         // of 16 columns, of a slice

  // The query lies in the second stage until its fragments are in registers.
  if (threadIdx.x < kChunk) {
    const int at = min(begin + static_cast<int>(threadIdx.x), end - 1), token = list.token(at, list.pool(at));
    sh.row[0][threadIdx.x] = list.latent(p, token, list.pages[token / kPage]);
  }
  __syncthreads();
  stage_block<kFp8>(p, sh, 0, sh.row[0], end - begin);
  Bits16(*query)[kPitch] = kFp8 ? sh.fp8.decoded : sh.c[1];
  for (int i = threadIdx.x; i < kHeads * p.latent / 8; i += 256) {
    const int h = i / (p.latent / 8), c = i % (p.latent / 8) * 8;
    const Bits16* from =
        p.q + (static_cast<int64_t>(row) * p.heads + head0 + min(h, heads - 1)) * p.latent + c;
    copy_async16(&query[h][c], from, h < heads);
  }
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
  uint32_t q[2][8][4];
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    if (k < steps) {
      const int column = 16 * (slice * steps + k) + 8 * (lane >> 4);
      load_matrix4(q[0][k], &query[lane & 15][column]);
      load_matrix4(q[1][k], &query[16 + (lane & 15)][column]);
    }
  }
  __syncthreads();

  float out[2][8][4] = {};
  float whole[kWhole ? 2 : 1][8][4] = {};
  float most[4], sum[4], whole_most[4], whole_sum[4];  // of heads 4·warp + i
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    most[i] = whole_most[i] = -INFINITY;
    sum[i] = whole_sum[i] = 0.0f;
  }

  // Of the next chunk's tokens, a thread each: what one block fetches the next one uses.
  int pool = 0, token = 0, page = 0;
  int stage = 0;
  for (int block = begin; block < end; block += kBlock, stage ^= 1) {
    if (block > begin) {
      copy_async_wait<0>();
      __syncthreads();
    }
    if constexpr (kFp8) {
      decode_block(p, sh, stage);
      __syncthreads();
    }
    const int at = block - begin, next = at + kBlock;
    if (block + kBlock < end) {
      stage_block<kFp8>(p, sh, stage ^ 1, sh.row[(next / kChunk) & 1] + next % kChunk, end - block - kBlock);
    }
    const int listed = block - at % kChunk + kChunk + static_cast<int>(threadIdx.x);
    if (kWhole && threadIdx.x < kChunk && listed < end) {
      if (at % kChunk == 0) {
        pool = list.pool(listed);
      } else if (at % kChunk == kBlock) {
        token = list.token(listed, pool);
        page = list.pages[token / kPage];
      } else if (at % kChunk == 2 * kBlock) {
        sh.row[(at / kChunk + 1) & 1][threadIdx.x] = list.latent(p, token, page);
      }
    }
    const Bits16(*c)[kPitch] = kFp8 ? sh.fp8.decoded : sh.c[stage];

    {  // Scores: warp w takes slice w % 4 and 16 tokens (w / 4) of all heads.
      float d[2][2][4] = {};
      const Bits16* b_row = &c[tokens0 + (lane & 7) + 8 * (lane >> 4)][8 * ((lane >> 3) & 1)];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (k < steps) {
          uint32_t b[4];
          load_matrix4(b, b_row + 16 * (slice * steps + k));
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            mma<false>(d[m][0], q[m][k], b[0], b[1]);
            mma<false>(d[m][1], q[m][k], b[2], b[3]);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int r = 0; r < 4; r += 2) {
            *reinterpret_cast<float2*>(
                &sh.score[slice][16 * m + (lane >> 2) + 4 * r][tokens0 + 8 * n + 2 * (lane & 3)]) =
                make_float2(d[m][n][r], d[m][n][r + 1]);
          }
    }
    __syncthreads();
    const bool chunk_ends = block + kBlock >= end || next % kChunk == 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // softmax: a lane is a token
      const int h = 4 * warp + i;
      const float dot =
          ((sh.score[0][h][lane] + sh.score[1][h][lane]) + sh.score[2][h][lane]) + sh.score[3][h][lane];
      const float v = block + lane < end ? dot * p.scale : -INFINITY;
      float top = v;
#pragma unroll
      for (int mask = 16; mask > 0; mask >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
      top = fmaxf(top, most[i]);
      const float e = expf(v - top), keep = expf(most[i] - top);
      most[i] = top;
      sum[i] = fmaf(sum[i], keep, warp_sum(e));
      sh.weight[h][lane] = to_bf16(e);
      if (lane == 0) sh.rescale[h] = keep;
      if (kWhole && chunk_ends) {
        const float both = fmaxf(whole_most[i], most[i]);
        const float a = expf(whole_most[i] - both), b = expf(most[i] - both);
        whole_sum[i] = fmaf(b, sum[i], whole_sum[i] * a);
        whole_most[i] = both;
        most[i] = -INFINITY;
        sum[i] = 0.0f;
        if (lane == 0) {
          sh.merge_old[h] = a;
          sh.merge_new[h] = b;
          sh.total[h] = whole_sum[i];
        }
      }
    }
    __syncthreads();
    // Mix: warp w takes latents 64w to 64w + 63 of all heads.
    if (64 * warp < p.latent) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const float k0 = sh.rescale[16 * m + (lane >> 2)], k1 = sh.rescale[16 * m + (lane >> 2) + 8];
        if (__any_sync(0xffffffffu, k0 != 1.0f || k1 != 1.0f)) {  // times 1 changes nothing
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            out[m][n][0] *= k0;
            out[m][n][1] *= k0;
            out[m][n][2] *= k1;
            out[m][n][3] *= k1;
          }
        }
      }
#pragma unroll
      for (int k = 0; k < kBlock; k += 16) {
        uint32_t a[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) load_matrix4(a[m], &sh.weight[16 * m + (lane & 15)][k + 8 * (lane >> 4)]);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
          uint32_t b[4];
          load_matrix4_t(b, &c[k + (lane & 15)][64 * warp + 8 * n + 8 * (lane >> 4)]);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            mma<false>(out[m][n], a[m], b[0], b[1]);
            mma<false>(out[m][n + 1], a[m], b[2], b[3]);
          }
        }
      }
      if constexpr (kWhole) {
        if (chunk_ends) {
#pragma unroll
          for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              const int h = 16 * m + (lane >> 2) + 8 * (r >> 1);
              const float a = sh.merge_old[h], b = sh.merge_new[h];
#pragma unroll
              for (int n = 0; n < 8; ++n) {
                whole[m][n][r] = fmaf(b, out[m][n][r], whole[m][n][r] * a);
                out[m][n][r] = 0.0f;
              }
            }
        }
      }
    }
  }

  if constexpr (kWhole) {
    if (64 * warp >= p.latent) return;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int r = 0; r < 4; r += 2) {
        const int h = 16 * m + (lane >> 2) + 4 * r;
        if (h >= heads) continue;
        const float total = sh.total[h];
        Bits16* to =
            p.out + (static_cast<int64_t>(row) * p.heads + head0 + h) * p.latent + 64 * warp + 2 * (lane & 3);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          *reinterpret_cast<uint32_t*>(to + 8 * n) =
              pack_bf16(whole[m][n][r] / total, whole[m][n][r + 1] / total);
        }
      }
    return;
  }
  const int64_t part = (static_cast<int64_t>(blockIdx.x) * p.chunks + chunk) * p.heads + head0;
  if (64 * warp < p.latent) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int r = 0; r < 4; r += 2) {
          const int h = 16 * m + (lane >> 2) + 4 * r;
          if (h < heads) {
            *reinterpret_cast<float2*>(p.part_o + (part + h) * p.latent + 64 * warp + 8 * n +
                                       2 * (lane & 3)) = make_float2(out[m][n][r], out[m][n][r + 1]);
          }
        }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int h = 4 * warp + i;
    if (lane == 0 && h < heads) {
      p.part_ml[(part + h) * 2] = most[i];
      p.part_ml[(part + h) * 2 + 1] = sum[i];
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) attend_chunk(const __grid_constant__ AttentionParams p) {
  attend_tokens<false, false>(p);
}
extern "C" __global__ void __launch_bounds__(256)
    attend_chunk_fp8(const __grid_constant__ AttentionParams p) {
  attend_tokens<true, false>(p);
}
extern "C" __global__ void __launch_bounds__(256) attend_row(const __grid_constant__ AttentionParams p) {
  attend_tokens<false, true>(p);
}
extern "C" __global__ void __launch_bounds__(256) attend_row_fp8(const __grid_constant__ AttentionParams p) {
  attend_tokens<true, true>(p);
}

/// The chunks of a row in ascending order, as attend_row merges them. grid: (heads, rows of this pass); a
/// thread takes four latents.
extern "C" __global__ void __launch_bounds__(128) attend_merge(const __grid_constant__ AttentionParams p) {
  begin_kernel();
  const int head = blockIdx.x, row = p.first_row + blockIdx.y, at = 4 * threadIdx.x;
  const int chunks = (TokenList(p, row).total + kChunk - 1) / kChunk;
  const int64_t part = static_cast<int64_t>(blockIdx.y) * p.chunks * p.heads + head;
  if (at >= p.latent) return;
  float most = -INFINITY, sum = 0.0f;
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
  for (int c = 0; c < chunks; ++c) {
    const int64_t i = part + static_cast<int64_t>(c) * p.heads;
    const float2 ml = *reinterpret_cast<const float2*>(p.part_ml + 2 * i);
    const float4 o = *reinterpret_cast<const float4*>(p.part_o + i * p.latent + at);
    const float both = fmaxf(most, ml.x), a = expf(most - both), b = expf(ml.x - both);
    sum = fmaf(b, ml.y, sum * a);
    most = both;
    v.x = fmaf(b, o.x, v.x * a);
    v.y = fmaf(b, o.y, v.y * a);
    v.z = fmaf(b, o.z, v.z * a);
    v.w = fmaf(b, o.w, v.w * a);
  }
  *reinterpret_cast<uint2*>(p.out + (static_cast<int64_t>(row) * p.heads + head) * p.latent + at) =
      make_uint2(pack_bf16(v.x / sum, v.y / sum), pack_bf16(v.z / sum, v.w / sum));
}

}  // namespace firesteel::cuda
