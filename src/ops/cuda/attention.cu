// Attention over selected latents in absorbed form.
//
// absorb: q̃ = W_Kᵀ q per head; attend: scores, softmax and mix; expand: o = W_V õ per head. What defines a
// row's bits: its listed tokens go in blocks of kBlock with a running softmax, kChunk of them from a fresh
// start; chunks are merged in ascending order, M' = max(M, m), O' = O·2^(M - M') + o·2^(m - M'). A score is
// summed over four slices of the latent, added in order. Few rows: a thread block a chunk, and attend_merge;
// many rows: a thread block walks all chunks of its row. Both do the same sums.
#include "ops/cuda/kv_row.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kPage = 256;
constexpr int kChunk = 128;   // listed tokens of a chunk
constexpr int kBlock = 32;    // tokens staged together
constexpr int kHeads = 32;    // heads of a thread block
constexpr int kLatent = 512;  // latent columns of the attend kernels
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

/// What lane's slot r of part j of a group of 64 latents is: slot g of part j is latent 32·(j/2) + 8·(g/2) +
/// 4·(j%2) + g%2 of the group, slot g + 8 two further.
__device__ __forceinline__ int absorbed_latent(int j, int r) {
  const int g = (threadIdx.x & 31) >> 2;
  return 32 * (j >> 1) + 8 * (g >> 1) + 4 * (j & 1) + (g & 1) + 2 * (r >> 1);
}

/// grid: (heads, ⌈latent / 64⌉, ⌈rows / 8⌉), 4 warps of 16 latents each: many warps read weights at once.
extern "C" __global__ void __launch_bounds__(128) absorb_few(const __grid_constant__ AbsorbParams p) {
  begin_kernel();
  constexpr int kAhead = 16;  // steps whose loads are issued together
  const int head = blockIdx.x, lane = threadIdx.x & 31, part = threadIdx.x >> 5;
  const int group = blockIdx.y, groups = (p.latent + 63) / 64, steps = p.qk_dim / 16;
  const int from = min(static_cast<int>(blockIdx.z) * 8 + (lane >> 2), p.rows - 1);
  const Bits16* q = p.x + (static_cast<int64_t>(from) * p.heads + head) * p.qk_dim + 2 * (lane & 3);
  const int first_tile = head * (p.qk_dim + p.v_dim) / 16;
  const uint8_t* tile =
      p.kv_b + (static_cast<int64_t>(first_tile) * groups + group) * 2048 + 16 * lane + 512 * part;
  float acc[4] = {};
  for (int i0 = 0; i0 < steps; i0 += kAhead) {
    uint4 w[kAhead];
    uint32_t b0[kAhead], b1[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i0 + i >= steps) break;
      w[i] = *reinterpret_cast<const uint4*>(tile);
      tile += static_cast<int64_t>(groups) * 2048;
      b0[i] = *reinterpret_cast<const uint32_t*>(q + 16 * (i0 + i));
      b1[i] = *reinterpret_cast<const uint32_t*>(q + 16 * (i0 + i) + 8);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i0 + i >= steps) break;
      const uint32_t a[4] = {transpose8(w[i].x), transpose8(w[i].z), transpose8(w[i].y), transpose8(w[i].w)};
      mma<false>(acc, a, b0[i], b1[i]);
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int row = blockIdx.z * 8 + 2 * (lane & 3) + (r & 1), latent = 64 * group + absorbed_latent(part, r);
    if (row < p.rows && latent < p.latent)
      p.y[(static_cast<int64_t>(row) * p.heads + head) * p.latent + latent] = to_bf16(acc[r]);
  }
}

/// As absorb_few for prompts: grid (heads, ⌈latent / 256⌉, ⌈rows / 64⌉), 4 warps of 64 latents each; the
/// rows' queries are staged, 128 columns at a time.
extern "C" __global__ void __launch_bounds__(128) absorb_many(const __grid_constant__ AbsorbParams p) {
  begin_kernel();
  constexpr int kStaged = 128;
  __shared__ __align__(16) Bits16 x[64][kStaged + 8];
  const int head = blockIdx.x, lane = threadIdx.x & 31, row0 = blockIdx.z * 64;
  const int groups = (p.latent + 63) / 64,
            group = min(static_cast<int>(blockIdx.y * 4 + (threadIdx.x >> 5)), groups - 1);
  const int first_tile = head * (p.qk_dim + p.v_dim) / 16;
  const uint8_t* tile = p.kv_b + (static_cast<int64_t>(first_tile) * groups + group) * 2048 + 16 * lane;
  float acc[4][8][4] = {};
  for (int k0 = 0; k0 < p.qk_dim; k0 += kStaged) {
    const int columns = min(kStaged, p.qk_dim - k0), pieces = columns / 8;
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * pieces; i += 128) {
      const int r = i / pieces, c = i % pieces * 8, row = min(row0 + r, p.rows - 1);
      copy_async16(&x[r][c], p.x + (static_cast<int64_t>(row) * p.heads + head) * p.qk_dim + k0 + c, true);
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll 2
    for (int k = 0; k < columns; k += 16) {
      uint4 w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = *reinterpret_cast<const uint4*>(tile + 512 * j);
      tile += static_cast<int64_t>(groups) * 2048;
      uint32_t b[4][4];  // of rows 16t to 16t + 15
#pragma unroll
      for (int t = 0; t < 4; ++t)
        load_matrix4(b[t], &x[16 * t + (lane & 7) + 8 * (lane >> 4)][k + 8 * ((lane >> 3) & 1)]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t a[4] = {transpose8(w[j].x), transpose8(w[j].z), transpose8(w[j].y),
                               transpose8(w[j].w)};
#pragma unroll
        for (int t = 0; t < 8; ++t)
          mma<false>(acc[j][t], a, b[t / 2][2 * (t & 1)], b[t / 2][2 * (t & 1) + 1]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < 8; ++t)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = row0 + 8 * t + 2 * (lane & 3) + (r & 1), latent = 64 * group + absorbed_latent(j, r);
        if (row < p.rows && latent < p.latent)
          p.y[(static_cast<int64_t>(row) * p.heads + head) * p.latent + latent] = to_bf16(acc[j][t][r]);
      }
}

/// grid: (heads, ⌈v_dim / 64·C⌉, ⌈rows / 8·NT⌉), 4 warps of 16·C channels each.
template <int NT, int C>
__device__ __forceinline__ void expand_rows(const AbsorbParams& p) {
  begin_kernel();
  const int head = blockIdx.x, lane = threadIdx.x & 31;
  const int channel0 = (blockIdx.y * 4 + (threadIdx.x >> 5)) * 16 * C, groups = (p.latent + 63) / 64;
  if (channel0 >= p.v_dim) return;
  const Bits16* x[NT];
#pragma unroll
  for (int t = 0; t < NT; ++t) {
    const int row = min(static_cast<int>(blockIdx.z * NT + t) * 8 + (lane >> 2), p.rows - 1);
    x[t] = p.x + (static_cast<int64_t>(row) * p.heads + head) * p.latent + 8 * (lane & 3);
  }
  const uint8_t* w[C];
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const int channel = min(channel0 + 16 * c, p.v_dim - 16);
    w[c] = p.kv_b +
           static_cast<int64_t>((head * (p.qk_dim + p.v_dim) + p.qk_dim + channel) / 16) * groups * 2048 +
           16 * lane;
  }
  float acc[C][NT][4] = {};
  constexpr int kAhead = NT == 1 ? 4 : 1;  // groups whose loads are issued together
  for (int g0 = 0; g0 < groups; g0 += kAhead) {
    uint4 v[kAhead][C][4], b[kAhead][NT][2];
#pragma unroll
    for (int g = 0; g < kAhead; ++g) {
      if (g0 + g >= groups) break;
#pragma unroll
      for (int c = 0; c < C; ++c)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          v[g][c][j] = *reinterpret_cast<const uint4*>(w[c] + (g0 + g) * 2048 + 512 * j);
#pragma unroll
      for (int t = 0; t < NT; ++t) {
        b[g][t][0] = *reinterpret_cast<const uint4*>(x[t] + 64 * (g0 + g));
        b[g][t][1] = *reinterpret_cast<const uint4*>(x[t] + 64 * (g0 + g) + 32);
      }
    }
#pragma unroll
    for (int g = 0; g < kAhead; ++g) {
      if (g0 + g >= groups) break;
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int c = 0; c < C; ++c) {
          const uint4 lo = v[g][c][2 * h], hi = v[g][c][2 * h + 1];
          const uint32_t a0[4] = {lo.x, lo.y, lo.z, lo.w}, a1[4] = {hi.x, hi.y, hi.z, hi.w};
#pragma unroll
          for (int t = 0; t < NT; ++t) {
            mma<false>(acc[c][t], a0, b[g][t][h].x, b[g][t][h].y);
            mma<false>(acc[c][t], a1, b[g][t][h].z, b[g][t][h].w);
          }
        }
    }
  }
#pragma unroll
  for (int t = 0; t < NT; ++t)
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = (blockIdx.z * NT + t) * 8 + 2 * (lane & 3) + (r & 1),
                  channel = channel0 + 16 * c + (lane >> 2) + 8 * (r >> 1);
        if (row < p.rows && channel < p.v_dim)
          p.y[(static_cast<int64_t>(row) * p.heads + head) * p.v_dim + channel] = to_bf16(acc[c][t][r]);
      }
}
extern "C" __global__ void __launch_bounds__(128) expand_few(const __grid_constant__ AbsorbParams p) {
  expand_rows<1, 1>(p);
}
extern "C" __global__ void __launch_bounds__(128) expand_many(const __grid_constant__ AbsorbParams p) {
  expand_rows<8, 2>(p);
}

namespace {

/// Where a head's token lies, so that what a warp reads or writes together falls into distinct banks.
__device__ __forceinline__ int weight_at(int head, int token) {
  return head * kBlock + (token ^ 8 * ((head >> 1) & 3));
}
__device__ __forceinline__ int score_at(int head, int token) {
  return head * kBlock + (token ^ 8 * (head & 3));
}

struct AttendShared {
  // Latents. Wide rows: of this block and the next. FP8 rows: of this block, and the codes of the next, each
  // warp its own 16 tokens and 128 latents.
  union {
    Bits16 c[2][kBlock][kPitch];
    struct {
      Bits16 decoded[kBlock][kPitch];
      uint8_t codes[8][16][kLatent / 4];
      uint32_t scale[8][16];
    } fp8;
  };
  float score[4][kHeads * kBlock];  // of each slice
  Bits16 weight[kHeads * kBlock];
  float rescale[kHeads], merge_old[kHeads], merge_new[kHeads], total[kHeads];
};
static_assert(sizeof(AttendShared) <= kAttendShared && kAttendShared <= 99 * 1024);

/// The listed tokens of a row.
struct TokenList {
  const int32_t* pools;
  const int32_t* pages;
  int pooled, tail, total, kpool;
  uint32_t reciprocal;

  __device__ TokenList(const AttentionParams& p, int row) {
    const Segment s = segment_at(p.batch, p.batch.row_segment[row]);
    const int position = s.start + row - s.first_row;
    pools = p.pools + static_cast<int64_t>(row) * p.sel_stride;
    pages = p.batch.page_table + s.page_begin;
    kpool = p.kpool;
    reciprocal = 0xffffffffu / kpool;
    pooled = p.count[row] * kpool;
    tail = (position + 1) / kpool * kpool;
    total = pooled + position + 1 - tail;
  }
  // at / kpool: exact while (at + 1) · kpool < 2^32.
  __device__ int pool_index(int at) const { return static_cast<int>(__umulhi(at + 1, reciprocal)); }
  __device__ int pool(int at) const { return at < pooled ? pools[pool_index(at)] : 0; }
  __device__ int token(int at, int pool) const {
    return at < pooled ? (pool - pool_index(at)) * kpool + at : tail + at - pooled;
  }
};

/// Scores and their exponentials are in powers of two: the scale has log2 e in it.
__device__ __forceinline__ float exp2_fast(float v) {
  float r;
  asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

/// kWhole: a block a row, grid (rows of this pass, ⌈heads / 32⌉), õ to p.out. Else a block a chunk, grid
/// (rows of this pass, ⌈heads / 32⌉, chunks), its part to p.part_o and p.part_ml. 8 warps.
///
/// A warp stages and scores 16 tokens of a slice, takes four heads through the softmax and mixes 64 latents.
/// Barriers of a block: scores are there; weights are there; FP8: its latents have been mixed.
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
  constexpr int kSteps = kLatent / 64;                     // of 16 columns, of a slice
  const int column0 = 16 * kSteps * slice;

  // Of a token of the pair of blocks to come, lanes 16 to 31 of the second: what one pair fetches the next
  // one uses.
  const auto listed = [&](int block) {
    return min(block + tokens0 + (lane & 15) + 2 * (lane & 16), end - 1);
  };
  int pool = list.pool(listed(begin)), token = list.token(listed(begin), pool),
      page = list.pages[token / kPage];
  uint32_t at = 0;                       // of its latents, in 16 bytes
  const auto advance = [&](int block) {  // at: of `block` and the next; pool: of the pair after the next pair
    if ((block - begin) % (2 * kBlock) != 0) return;
    at = static_cast<uint32_t>((page * p.page_stride + static_cast<int64_t>(token % kPage) * p.row_bytes) >>
                               4);
    token = list.token(listed(block + 2 * kBlock), pool);
    page = list.pages[token / kPage];
    pool = list.pool(listed(block + 4 * kBlock));
  };
  pool = list.pool(listed(begin + 2 * kBlock));
  advance(begin);
  const auto stage_in = [&](int block, int buffer) {
    constexpr int kPieces = kFp8 ? 8 : 16, kTogether = 32 / kPieces;  // pieces of a token's part of the slice
    const int t0 = lane / kPieces, c = lane % kPieces, left = end - block - tokens0;
    const int first = (block - begin) / kBlock % 2 * 16;
    uint8_t* to = kFp8 ? &sh.fp8.codes[warp][t0][16 * c]
                       : reinterpret_cast<uint8_t*>(&sh.c[buffer][tokens0 + t0][column0 + 8 * c]);
#pragma unroll
    for (int i = 0; i < kPieces / 2; ++i) {
      const int t = t0 + kTogether * i;
      const uint8_t* from = p.latents + (static_cast<int64_t>(__shfl_sync(0xffffffffu, at, first + t)) << 4) +
                            (kFp8 ? 1 : 2) * column0 + 16 * c;
      copy_async16(to + i * kTogether * (kFp8 ? kLatent / 4 : 2 * kPitch), from, t < left);
    }
    if (kFp8 && (lane & 16) == first) {
      const int t = lane & 15;
      if (t < left)
        copy_async4(&sh.fp8.scale[warp][t], p.latents + (static_cast<int64_t>(at) << 4) + kLatent);
      else
        sh.fp8.scale[warp][t] = 0;  // with codes of 0: zeros
    }
    copy_async_commit();
  };
  // FP8: codes are decoded, and the next ones asked for, by the warp that scores them.
  const auto decode_part = [&](int next) {
    const int t0 = lane >> 4, c = 8 * (lane & 15);
    const uint32_t factor = kv_factor(static_cast<uint8_t>(sh.fp8.scale[warp][lane & 15]));
    const uint8_t* from = &sh.fp8.codes[warp][t0][c];
    Bits16* to = &sh.fp8.decoded[tokens0 + t0][column0 + c];
#pragma unroll
    for (int i0 = 0; i0 < 8; i0 += 4) {
      uint2 codes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        codes[i] = *reinterpret_cast<const uint2*>(from + 2 * (i0 + i) * (kLatent / 4));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<uint4*>(to + 2 * (i0 + i) * kPitch) =
            kv_decode8(codes[i], __shfl_sync(0xffffffffu, factor, t0 + 2 * (i0 + i)));
    }
    __syncwarp();
    if (next < end) {
      advance(next);
      stage_in(next, 0);
    }
  };

  // The query lies where a block to come will until its fragments are in registers.
  Bits16(*query)[kPitch] = kFp8 ? sh.fp8.decoded : sh.c[1];
  stage_in(begin, 0);
#pragma unroll
  for (int i = 0; i < kHeads * kLatent / 8 / 256; ++i) {
    const int h = threadIdx.x / 64 + 4 * i, c = threadIdx.x % 64 * 8;
    const Bits16* from =
        p.q + (static_cast<int64_t>(row) * p.heads + head0 + min(h, heads - 1)) * kLatent + c;
    copy_async16(&query[h][c], from, h < heads);
  }
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
  uint32_t q[2][kSteps][4];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const int column = column0 + 16 * k + 8 * (lane >> 4);
    load_matrix4(q[0][k], &query[lane & 15][column]);
    load_matrix4(q[1][k], &query[16 + (lane & 15)][column]);
  }
  float d[2][2][4];
  const auto score = [&](int buffer) {
    const Bits16* b_row =
        &sh.c[buffer][tokens0 + (lane & 7) + 8 * (lane >> 4)][column0 + 8 * ((lane >> 3) & 1)];
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) d[m][n][r] = 0.0f;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t b[4];
      load_matrix4(b, b_row + 16 * k);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma<false>(d[m][0], q[m][k], b[0], b[1]);
        mma<false>(d[m][1], q[m][k], b[2], b[3]);
      }
    }
  };
  const auto put_scores = [&] {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int r = 0; r < 4; r += 2)
          *reinterpret_cast<float2*>(
              &sh.score[slice][score_at(16 * m + (lane >> 2) + 4 * r, tokens0 + 8 * n + 2 * (lane & 3))]) =
              make_float2(d[m][n][r], d[m][n][r + 1]);
  };
  if constexpr (kFp8) {
    __syncthreads();  // the query has been read
    decode_part(begin + kBlock);
  }
  score(0);
  put_scores();

  float out[2][8][4] = {};
  float whole[kWhole ? 2 : 1][8][4] = {};
  const int head = 4 * warp + (lane >> 3), token0 = lane & 7;  // of the softmax
  float most = -INFINITY, sum = 0.0f, whole_most = -INFINITY, whole_sum = 0.0f;

  int buffer = 0;
  for (int block = begin; block < end; block += kBlock) {
    const int next = block + kBlock;
    const bool chunk_ends = next >= end || (next - begin) % kChunk == 0;
    __syncthreads();
    if (!kFp8 && next < end) {
      advance(next);
      stage_in(next, buffer ^ 1);
    }
    float e[4], keep, merge_old = 0.0f, merge_new = 0.0f;
    {  // Softmax: eight lanes a head, each four tokens.
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int s = score_at(head, token0 + 8 * i);
        const float dot = ((sh.score[0][s] + sh.score[1][s]) + sh.score[2][s]) + sh.score[3][s];
        v[i] = block + token0 + 8 * i < end ? dot * p.scale : -INFINITY;
      }
      float top = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
#pragma unroll
      for (int mask = 4; mask > 0; mask >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
      top = fmaxf(top, most);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        e[i] = exp2_fast(v[i] - top);
        sh.weight[weight_at(head, token0 + 8 * i)] = to_bf16(e[i]);
      }
      keep = exp2_fast(most - top);
      most = top;
      if (token0 == 0) sh.rescale[head] = keep;
      if (kWhole && chunk_ends) {
        const float both = fmaxf(whole_most, most);
        merge_old = exp2_fast(whole_most - both);
        merge_new = exp2_fast(most - both);
        whole_most = both;
        most = -INFINITY;
        if (token0 == 0) {
          sh.merge_old[head] = merge_old;
          sh.merge_new[head] = merge_new;
        }
      }
    }
    __syncthreads();
    // Mix: warp w takes latents 64w to 64w + 63 of all heads.
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float k0 = sh.rescale[16 * m + (lane >> 2)], k1 = sh.rescale[16 * m + (lane >> 2) + 8];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        out[m][n][0] *= k0;
        out[m][n][1] *= k0;
        out[m][n][2] *= k1;
        out[m][n][3] *= k1;
      }
    }
#pragma unroll
    for (int k = 0; k < kBlock; k += 16) {
      uint32_t a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m)
        load_matrix4(a[m], &sh.weight[weight_at(16 * m + (lane & 15), k + 8 * (lane >> 4))]);
#pragma unroll
      for (int n = 0; n < 8; n += 2) {
        uint32_t b[4];
        load_matrix4_t(b, &sh.c[buffer][k + (lane & 15)][64 * warp + 8 * n + 8 * (lane >> 4)]);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma<false>(out[m][n], a[m], b[0], b[1]);
          mma<false>(out[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
    // The sum of weights, which nothing waits for: tokens 16 apart first, then 8, 4, 2, 1.
    float total = (e[0] + e[2]) + (e[1] + e[3]);
#pragma unroll
    for (int mask = 4; mask > 0; mask >>= 1) total += __shfl_xor_sync(0xffffffffu, total, mask);
    sum = fmaf(sum, keep, total);
    if (kWhole && chunk_ends) {
      whole_sum = fmaf(merge_new, sum, whole_sum * merge_old);
      sum = 0.0f;
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
    if (next < end) {
      copy_async_wait<0>();
      __syncwarp();
      if constexpr (kFp8) {
        __syncthreads();  // the latents of this block have been mixed
        decode_part(next + kBlock);
      } else {
        buffer ^= 1;
      }
      score(buffer);
      put_scores();
    }
  }

  if constexpr (kWhole) {
    if (token0 == 0) sh.total[head] = whole_sum;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int r = 0; r < 4; r += 2) {
        const int h = 16 * m + (lane >> 2) + 4 * r;
        if (h >= heads) continue;
        const float total = sh.total[h];
        Bits16* to =
            p.out + (static_cast<int64_t>(row) * p.heads + head0 + h) * kLatent + 64 * warp + 2 * (lane & 3);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          *reinterpret_cast<uint32_t*>(to + 8 * n) =
              pack_bf16(whole[m][n][r] / total, whole[m][n][r + 1] / total);
        }
      }
    return;
  }
  const int64_t part = (static_cast<int64_t>(blockIdx.x) * p.chunks + chunk) * p.heads + head0;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int r = 0; r < 4; r += 2) {
        const int h = 16 * m + (lane >> 2) + 4 * r;
        if (h < heads) {
          *reinterpret_cast<float2*>(p.part_o + (part + h) * kLatent + 64 * warp + 8 * n + 2 * (lane & 3)) =
              make_float2(out[m][n][r], out[m][n][r + 1]);
        }
      }
  if (token0 == 0 && head < heads) {
    p.part_ml[(part + head) * 2] = most;
    p.part_ml[(part + head) * 2 + 1] = sum;
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
  float most = -INFINITY, sum = 0.0f;
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
  for (int c = 0; c < chunks; ++c) {
    const int64_t i = part + static_cast<int64_t>(c) * p.heads;
    const float2 ml = *reinterpret_cast<const float2*>(p.part_ml + 2 * i);
    const float4 o = *reinterpret_cast<const float4*>(p.part_o + i * kLatent + at);
    const float both = fmaxf(most, ml.x), a = exp2_fast(most - both), b = exp2_fast(ml.x - both);
    sum = fmaf(b, ml.y, sum * a);
    most = both;
    v.x = fmaf(b, o.x, v.x * a);
    v.y = fmaf(b, o.y, v.y * a);
    v.z = fmaf(b, o.z, v.z * a);
    v.w = fmaf(b, o.w, v.w * a);
  }
  *reinterpret_cast<uint2*>(p.out + (static_cast<int64_t>(row) * p.heads + head) * kLatent + at) =
      make_uint2(pack_bf16(v.x / sum, v.y / sum), pack_bf16(v.z / sum, v.w / sum));
}

}  // namespace firesteel::cuda
