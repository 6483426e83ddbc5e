// Attention over selected latents: scores, softmax and mix of 32 heads, in a thread block that walks a row's
// tokens. Four warps score, eight mix, side by side: what one kind waits for, the other fills.
//
// A warp of the first kind gathers and scores a slice of 128 latents, then takes eight heads through the
// softmax; a score is the sum of the four slices, in order. A warp of the second kind mixes 64 latents. FP8
// latents stay codes in shared memory: fragments are decoded to fp16 on the way to the tensor cores. A
// token's scale 2^e goes into its score, and into its weight as 2^(s + e - M), where M is a bound of s + e:
// so weights fit fp16 whatever the scales. The sum of weights is that of 2^(s - M).
//
// Few rows: a thread block a chunk, and attend_merge; many rows: a thread block walks all chunks of its row.
// Both do the same sums.
#include "ops/cuda/attend.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kMixWarps = 8, kScoreWarps = 4, kSlots = 4;
constexpr int kAllThreads = 32 * (kMixWarps + kScoreWarps), kScoreThreads = 32 * kScoreWarps;
constexpr float kSlack = 8.0f;  // M moves on when a score passes it by more

template <bool kFp8>
constexpr int kBlock = kFp8 ? 32 : 16;  // tokens staged together
template <bool kFp8>
constexpr int kSliceBytes = kFp8 ? 128 : 256;
template <bool kFp8>  // of a token in shared memory: eight tokens fall into distinct banks
constexpr int kPitch = 4 * kSliceBytes<kFp8> + 16;

template <bool kFp8>
struct AttendShared {
  uint8_t latents[kSlots][kBlock<kFp8>][kPitch<kFp8>];
  uint32_t scale[kSlots][32];             // FP8: the tokens' scale bytes
  float score[4][kHeads * kBlock<kFp8>];  // of each slice
  // Of even and odd blocks:
  Bits16 weight[2][kHeads * kBlock<kFp8>];
  float rescale[2][kHeads], merge_old[2][kHeads], merge_new[2][kHeads];
  uint32_t rescales[2];  // a byte a score warp: some head's M has moved on
  float total[kHeads];
  uint32_t query_exponent[4][kHeads];
};
static_assert(sizeof(AttendShared<true>) <= kAttendShared && sizeof(AttendShared<false>) <= kAttendShared);
static_assert(kAttendShared <= 99 * 1024);

/// Where a head's token lies, so that what a warp reads or writes together falls into distinct banks.
template <bool kFp8>
__device__ __forceinline__ int weight_at(int head, int token) {
  return head * kBlock<kFp8> + (token ^ 8 * (kFp8 ? (head >> 1) & 3 : (head >> 2) & 1));
}
template <bool kFp8>
__device__ __forceinline__ int score_at(int head, int token) {
  return head * kBlock<kFp8> + (token ^ (8 * ((head >> 1) & 1) + (kFp8 ? 16 * (head & 1) : 0)));
}

// Barriers of some of the warps; 0 is __syncthreads.
enum Barrier { kWeights = 1, kMixed = 3, kScores = 5 };  // kWeights, kMixed: two each, of even and odd blocks
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// The tokens of a thread block, from a multiple of kChunk on.
struct Work {
  int row, head0, heads, begin, end;
};
template <bool kFp8>
__device__ __forceinline__ unsigned slot_of(int block) {
  static_assert(kChunk % (kSlots * kBlock<kFp8>) == 0);
  return static_cast<unsigned>(block) / kBlock<kFp8> % kSlots;
}

template <bool kFp8, bool kWhole>
__device__ __forceinline__ void score_tokens(const AttentionParams& p, const TokenList& list,
                                             const Work& work, AttendShared<kFp8>& sh) {
  constexpr int kTokens = kBlock<kFp8>, kTiles = kTokens / 8, kSteps = kLatent / 64;
  const int lane = threadIdx.x & 31, slice = (threadIdx.x >> 5) - kMixWarps;
  const int begin = work.begin, end = work.end, slice_at = kSliceBytes<kFp8> * slice;

  // A lane looks a token up: what one block fetches the next one uses.
  const auto listed = [&](int block) { return min(block + lane % kTokens, end - 1); };
  int pool = list.pool(listed(begin)), token = list.token(listed(begin), pool),
      page = list.pages[token / kPage];
  pool = list.pool(listed(begin + kTokens));
  const auto stage_in = [&](int block) {
    if (block < end) {
      const auto at = static_cast<uint32_t>(  // in 16 bytes
          (page * p.page_stride + static_cast<int64_t>(token % kPage) * p.row_bytes) >> 4);
      token = list.token(listed(block + kTokens), pool);
      page = list.pages[token / kPage];
      pool = list.pool(listed(block + 2 * kTokens));
      constexpr int kPieces = kSliceBytes<kFp8> / 16, kTogether = 32 / kPieces;
      const int t0 = lane / kPieces, c = slice_at + 16 * (lane % kPieces), left = end - block;
      uint8_t(*to)[kPitch<kFp8>] = sh.latents[slot_of<kFp8>(block)];
#pragma unroll
      for (int t = 0; t < kTokens; t += kTogether) {
        const uint8_t* from =
            p.latents + (static_cast<int64_t>(__shfl_sync(0xffffffffu, at, t0 + t)) << 4) + c;
        copy_async16(&to[t0 + t][c], from, t0 + t < left);
      }
      if constexpr (kFp8) {  // the scales
        const int t = 8 * slice + (lane & 7);
        const int64_t from = static_cast<int64_t>(__shfl_sync(0xffffffffu, at, t)) << 4;
        uint32_t* scale = &sh.scale[slot_of<kFp8>(block)][t];
        if (lane < 8 && t < left)
          copy_async4(scale, p.latents + from + kLatent);
        else if (lane < 8)
          *scale = 0;  // with codes of 0: zeros
      }
    }
    copy_async_commit();
  };
  stage_in(begin);
  stage_in(begin + kTokens);

  // The queries. FP8: columns 4t to 4t + 3 of a step are those of lane t, as the codes lie.
  uint32_t q[2][kSteps][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int m = i / 2, half = i % 2, h = 8 * i + (lane >> 2);
    const Bits16* from =
        p.q + (static_cast<int64_t>(work.row) * p.heads + work.head0 + min(h, work.heads - 1)) * kLatent +
        128 * slice + (kFp8 ? 4 : 2) * (lane & 3);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint2 v;
      if constexpr (kFp8)
        v = *reinterpret_cast<const uint2*>(from + 16 * k);
      else
        v = make_uint2(*reinterpret_cast<const uint32_t*>(from + 16 * k),
                       *reinterpret_cast<const uint32_t*>(from + 16 * k + 8));
      q[m][k][half] = h < work.heads ? v.x : 0;
      q[m][k][half + 2] = h < work.heads ? v.y : 0;
    }
  }
  const int head = 8 * slice + (lane >> 2), part = lane & 3;  // of the softmax
  float scale = p.scale;
  if constexpr (kFp8) {  // to fp16, each head's greatest magnitude near 2^14
    const auto exponent_of = [&](int h) {
      uint32_t e = sh.query_exponent[0][h];
#pragma unroll
      for (int i = 1; i < 4; ++i) e = max(e, sh.query_exponent[i][h]);
      return min(268 - e, 253u);
    };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t most = 0;
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
        most = __vmaxu2(most, __vmaxu2(q[i / 2][k][i % 2] & 0x7fff7fffu, q[i / 2][k][i % 2 + 2] & 0x7fff7fffu));
      most = max(most >> 16, most & 0xffffu) >> 7;
      most = max(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = max(most, __shfl_xor_sync(0xffffffffu, most, 2));
      if (part == 0) sh.query_exponent[slice][8 * i + (lane >> 2)] = most;
    }
    barrier_sync(kScores, kScoreThreads);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float f = __uint_as_float(exponent_of(8 * i + (lane >> 2)) << 23);
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int j = i % 2; j < 4; j += 2) {
          uint32_t& v = q[i / 2][k][j];
          const __half2 r = __floats2half2_rn(bf16_low(v) * f, bf16_high(v) * f);
          v = *reinterpret_cast<const uint32_t*>(&r);
        }
    }
    scale *= __uint_as_float((254 - exponent_of(head)) << 23);
  }

  float d[2][kTiles][4];
  const auto score = [&](int block) {
    const uint8_t(*rows)[kPitch<kFp8>] = sh.latents[slot_of<kFp8>(block)];
    const uint8_t* from = kFp8 ? &rows[lane][slice_at]
                               : &rows[(lane & 7) + 8 * (lane >> 4)][slice_at + 16 * ((lane >> 3) & 1)];
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) d[m][n][r] = 0.0f;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t b[4];
      load_matrix4(b, from + (kFp8 ? 16 : 32) * k);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        uint2 c;
        if constexpr (kFp8)
          c = kv_decode4_f16(b[n]);
        else
          c = make_uint2(b[2 * n], b[2 * n + 1]);
#pragma unroll
        for (int m = 0; m < 2; ++m) mma<kFp8>(d[m][n], q[m][k], c.x, c.y);
      }
    }
  };
  const auto put_scores = [&] {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int r = 0; r < 4; r += 2)
          *reinterpret_cast<float2*>(
              &sh.score[slice][score_at<kFp8>(16 * m + (lane >> 2) + 4 * r, 8 * n + 2 * part)]) =
              make_float2(d[m][n][r], d[m][n][r + 1]);
  };
  copy_async_wait<1>();
  __syncwarp();
  score(begin);
  put_scores();

  float most = -INFINITY, sum = 0.0f, whole_most = -INFINITY, whole_sum = 0.0f;
  for (int block = begin, odd = 0; block < end; block += kTokens, odd ^= 1) {
    const int next = block + kTokens;
    barrier_sync(kScores, kScoreThreads);  // all slices are there
    constexpr int kEach = kTokens / 4;
    float s[kEach], t[kEach];  // scores; with the token's scale
#pragma unroll
    for (int i = 0; i < kEach; i += 4) {
      const int at = score_at<kFp8>(head, 4 * part + 4 * i);
      float4 v = *reinterpret_cast<const float4*>(&sh.score[0][at]);
#pragma unroll
      for (int j = 1; j < 4; ++j) {
        const float4 u = *reinterpret_cast<const float4*>(&sh.score[j][at]);
        v.x += u.x, v.y += u.y, v.z += u.z, v.w += u.w;
      }
      s[i] = v.x * scale, s[i + 1] = v.y * scale, s[i + 2] = v.z * scale, s[i + 3] = v.w * scale;
      uint32_t code[4];  // of the scale 2^(code - 127); 255, of a row that is NaN, gives 0 · ∞
      if constexpr (kFp8) {
        const uint4 c = *reinterpret_cast<const uint4*>(&sh.scale[slot_of<kFp8>(block)][4 * part + 4 * i]);
        code[0] = c.x, code[1] = c.y, code[2] = c.z, code[3] = c.w;
      }
#pragma unroll
      for (int j = i; j < i + 4; ++j) {
        t[j] = s[j];
        if constexpr (kFp8) {
          s[j] *= __uint_as_float(code[j - i] << 23);
          t[j] = s[j] + (__uint_as_float(code[j - i] | 0x4b000000u) - (0x1p23f + 127.0f));
        }
      }
    }
    if (next > end) {
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (block + 4 * part + 4 * (i & 4) + (i & 3) >= end) s[i] = t[i] = -INFINITY;
    }
    if (block - begin >= 2 * kTokens) barrier_sync(kMixed + odd, kAllThreads);  // the block before the last
    stage_in(block + 2 * kTokens);
    copy_async_wait<1>();
    __syncwarp();
    if (kWhole || next < end) score(next);  // of a row, one time too many: that spares it a branch

    float top = t[0];
#pragma unroll
    for (int i = 1; i < kEach; ++i) top = fmaxf(top, t[i]);
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    top = top > most + kSlack ? top : most;
#pragma unroll
    for (int i = 0; i < kEach; i += 4) {
      uint2 w;
      if constexpr (kFp8) {
        const __half2 lo = __floats2half2_rn(exp2_fast(t[i] - top), exp2_fast(t[i + 1] - top));
        const __half2 hi = __floats2half2_rn(exp2_fast(t[i + 2] - top), exp2_fast(t[i + 3] - top));
        w = make_uint2(*reinterpret_cast<const uint32_t*>(&lo), *reinterpret_cast<const uint32_t*>(&hi));
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i + j] = exp2_fast(s[i + j] - top);
      if constexpr (!kFp8) w = make_uint2(pack_bf16(s[i], s[i + 1]), pack_bf16(s[i + 2], s[i + 3]));
      *reinterpret_cast<uint2*>(&sh.weight[odd][weight_at<kFp8>(head, 4 * part + 4 * i)]) = w;
    }
    const float keep = exp2_fast(most - top);
    const bool moved = __any_sync(0xffffffffu, most != -INFINITY && top != most);
    if (lane == 0) reinterpret_cast<uint8_t*>(&sh.rescales[odd])[slice] = moved;
    if (part == 0) sh.rescale[odd][head] = keep;
    most = top;
    float total = (s[0] + s[1]) + (s[2] + s[3]);
    if constexpr (kFp8) total += (s[4] + s[5]) + (s[6] + s[7]);
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    sum = fmaf(sum, keep, total);
    if (kWhole && (next % kChunk == 0 || next >= end)) {
      const float both = fmaxf(whole_most, most), merge_old = exp2_fast(whole_most - both),
                  merge_new = exp2_fast(most - both);
      whole_sum = fmaf(merge_new, sum, whole_sum * merge_old);
      whole_most = both;
      most = -INFINITY;
      sum = 0.0f;
      if (part == 0) {
        sh.merge_old[odd][head] = merge_old;
        sh.merge_new[odd][head] = merge_new;
        if (next >= end) sh.total[head] = whole_sum;
      }
    }
    barrier_arrive(kWeights + odd, kAllThreads);
    if (next < end) {
      barrier_sync(kScores, kScoreThreads);  // the slices have been read
      put_scores();
    }
  }
  if (!kWhole && part == 0 && head < work.heads) {
    const int64_t at =
        (static_cast<int64_t>(blockIdx.x) * p.chunks + blockIdx.z) * p.heads + work.head0 + head;
    *reinterpret_cast<float2*>(p.part_ml + 2 * at) = make_float2(most, sum);
  }
}

template <bool kFp8, bool kWhole>
__device__ __forceinline__ void mix_tokens(const AttentionParams& p, const Work& work,
                                           AttendShared<kFp8>& sh) {
  constexpr int kTokens = kBlock<kFp8>;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2;
  const int column0 = kSliceBytes<kFp8> / 2 * warp;  // in bytes
  float out[2][8][4] = {};
  float whole[kWhole ? 2 : 1][8][4] = {};
  for (int block = work.begin, odd = 0; block < work.end; block += kTokens, odd ^= 1) {
    const int next = block + kTokens;
    const bool chunk_ends = next % kChunk == 0 || next >= work.end;
    barrier_sync(kWeights + odd, kAllThreads);
    if (sh.rescales[odd] != 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float keep = sh.rescale[odd][8 * i + g];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          out[i / 2][n][2 * (i % 2)] *= keep;
          out[i / 2][n][2 * (i % 2) + 1] *= keep;
        }
      }
    }
    const uint8_t(*rows)[kPitch<kFp8>] = sh.latents[slot_of<kFp8>(block)];
#pragma unroll
    for (int k = 0; k < kTokens; k += 16) {
      uint32_t a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m)
        load_matrix4(a[m], &sh.weight[odd][weight_at<kFp8>(16 * m + (lane & 15), k + 8 * (lane >> 4))]);
      const uint8_t* from = &rows[k + (lane & 15)][column0 + 16 * (lane >> 4)];
      if constexpr (kFp8) {  // an element of the tile is a pair of latents: tiles 2i of even, 2i + 1 of odd ones
#pragma unroll
        for (int n = 0; n < 8; n += 4) {
          uint32_t codes[4];
          load_matrix4_t(codes, from + 8 * n);
#pragma unroll
          for (int i = 0; i < 4; i += 2) {
            const uint2 lo = kv_decode4_f16(__byte_perm(codes[i], 0, 0x3120)),
                        hi = kv_decode4_f16(__byte_perm(codes[i + 1], 0, 0x3120));
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              mma<true>(out[m][n + i], a[m], lo.x, hi.x);
              mma<true>(out[m][n + i + 1], a[m], lo.y, hi.y);
            }
          }
        }
      } else {
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
          uint32_t b[4];
          load_matrix4_t(b, from + 16 * n);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            mma<false>(out[m][n], a[m], b[0], b[1]);
            mma<false>(out[m][n + 1], a[m], b[2], b[3]);
          }
        }
      }
    }
    if (kWhole && chunk_ends) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float a = sh.merge_old[odd][8 * i + g], b = sh.merge_new[odd][8 * i + g];
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
          for (int r = 2 * (i % 2); r < 2 * (i % 2) + 2; ++r) {
            whole[i / 2][n][r] = fmaf(b, out[i / 2][n][r], whole[i / 2][n][r] * a);
            out[i / 2][n][r] = 0.0f;
          }
      }
    }
    if (block + 2 * kTokens < work.end) barrier_arrive(kMixed + odd, kAllThreads);
  }

  // FP8: a lane's values of tiles n and n + 1 are four latents in a row.
  const int64_t part = (static_cast<int64_t>(blockIdx.x) * p.chunks + blockIdx.z) * p.heads + work.head0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int m = i / 2, r = 2 * (i % 2), h = 8 * i + g, at = 64 * warp + (kFp8 ? 4 : 2) * (lane & 3);
    if (h >= work.heads) continue;
    const float total = kWhole ? sh.total[h] : 1.0f;
    Bits16* to = p.out + (static_cast<int64_t>(work.row) * p.heads + work.head0 + h) * kLatent + at;
    float* to_part = p.part_o + (part + h) * kLatent + at;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      if constexpr (kWhole) {
        const float v0 = whole[m][n][r] / total, v1 = whole[m][n][r + 1] / total,
                    u0 = whole[m][n + 1][r] / total, u1 = whole[m][n + 1][r + 1] / total;
        if constexpr (kFp8) {
          *reinterpret_cast<uint2*>(to + 8 * n) = make_uint2(pack_bf16(v0, u0), pack_bf16(v1, u1));
        } else {
          *reinterpret_cast<uint32_t*>(to + 8 * n) = pack_bf16(v0, v1);
          *reinterpret_cast<uint32_t*>(to + 8 * n + 8) = pack_bf16(u0, u1);
        }
      } else {
        const float v0 = out[m][n][r], v1 = out[m][n][r + 1], u0 = out[m][n + 1][r],
                    u1 = out[m][n + 1][r + 1];
        if constexpr (kFp8) {
          *reinterpret_cast<float4*>(to_part + 8 * n) = make_float4(v0, u0, v1, u1);
        } else {
          *reinterpret_cast<float2*>(to_part + 8 * n) = make_float2(v0, v1);
          *reinterpret_cast<float2*>(to_part + 8 * n + 8) = make_float2(u0, u1);
        }
      }
    }
  }
}

/// kWhole: a block a row, grid (rows of this pass, ⌈heads / 32⌉), õ to p.out. Else a block a chunk, grid
/// (rows of this pass, ⌈heads / 32⌉, chunks), its part to p.part_o and p.part_ml.
template <bool kFp8, bool kWhole>
__device__ __forceinline__ void attend_tokens(const AttentionParams& p) {
  begin_kernel();
  extern __shared__ __align__(16) uint8_t raw[];
  AttendShared<kFp8>& sh = *reinterpret_cast<AttendShared<kFp8>*>(raw);
  Work work;
  work.row = p.first_row + blockIdx.x;
  work.head0 = blockIdx.y * kHeads;
  work.heads = min(kHeads, p.heads - work.head0);
  const TokenList list(p, work.row);
  work.begin = kWhole ? 0 : blockIdx.z * kChunk;
  work.end = kWhole ? list.total : min(list.total, work.begin + kChunk);
  if (work.begin >= work.end) return;
  if (threadIdx.x >= 32 * kMixWarps)
    score_tokens<kFp8, kWhole>(p, list, work, sh);
  else
    mix_tokens<kFp8, kWhole>(p, work, sh);
}

}  // namespace

#define FS_ATTEND(name, fp8, whole)                            \
  extern "C" __global__ void __launch_bounds__(kAllThreads, 1) \
  name(const __grid_constant__ AttentionParams p) {            \
    attend_tokens<fp8, whole>(p);                              \
  }
FS_ATTEND(attend_chunk, false, false)
FS_ATTEND(attend_chunk_fp8, true, false)
FS_ATTEND(attend_row, false, true)
FS_ATTEND(attend_row_fp8, true, true)
#undef FS_ATTEND

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
