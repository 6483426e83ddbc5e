// What the scoring warps of the attend kernels do: gather the listed tokens and score a slice of them.
#pragma once

#include "ops/cuda/attend.cuh"

namespace firesteel::cuda {

/// 2^(factor - 127) is what a head's queries are multiplied by on the way to fp16.
template <bool kFp8>
__device__ __forceinline__ uint32_t query_factor(const AttendShared<kFp8>& sh, int head) {
  uint32_t e = sh.query_exponent[0][head];
#pragma unroll
  for (int i = 1; i < 4; ++i) e = max(e, sh.query_exponent[i][head]);
  return min(268 - e, 253u);  // its greatest magnitude near 2^14
}

template <bool kFp8>
__device__ __forceinline__ void score_tokens(const AttentionParams& p, const TokenList& list,
                                             const Work& work, AttendShared<kFp8>& sh) {
  constexpr int kTokens = kBlock<kFp8>, kTiles = kTokens / 8, kSteps = kLatent / 64;
  const int lane = threadIdx.x & 31, slice = (threadIdx.x >> 5) - kMixWarps;
  const int begin = work.begin, end = work.end, slice_at = kSliceBytes<kFp8> * slice;

  // A lane looks a token up: what one block fetches the next one uses.
  struct Place {
    int token, page;
  };
  const auto listed = [&](int block) { return min(block + lane % kTokens, end - 1); };
  const auto place_of = [&](int block, int pool) {
    const int token = list.token(listed(block), pool);
    return Place{token, list.pages[token / kPage]};
  };
  const auto stage_in = [&](int block, const Place& place) {
    const auto at = static_cast<uint32_t>(  // in 16 bytes
        (place.page * p.page_stride + static_cast<int64_t>(place.token % kPage) * p.row_bytes) >> 4);
    constexpr int kPieces = kSliceBytes<kFp8> / 16, kTogether = 32 / kPieces;
    const int t0 = lane / kPieces, c = slice_at + 16 * (lane % kPieces), left = end - block;
    uint8_t(*to)[kPitch<kFp8>] = sh.latents[slot_of<kFp8>(block)];
#pragma unroll
    for (int t = 0; t < kTokens; t += kTogether) {
      const uint8_t* from = p.latents + (static_cast<int64_t>(__shfl_sync(0xffffffffu, at, t0 + t)) << 4) + c;
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
    copy_async_commit();
  };
  constexpr int kFirst = 2;  // blocks under way from the start, and ahead of the one that is scored
  Place following;           // of the block to stage next
  int pool;                  // of the one after it
  {
    Place first[kFirst];
    int pools[kFirst + 1];
#pragma unroll
    for (int i = 0; i <= kFirst; ++i) pools[i] = list.pool(listed(begin + i * kTokens));
#pragma unroll
    for (int i = 0; i < kFirst; ++i) first[i] = place_of(begin + i * kTokens, pools[i]);
    following = place_of(begin + kFirst * kTokens, pools[kFirst]);
    pool = list.pool(listed(begin + (kFirst + 1) * kTokens));
#pragma unroll
    for (int i = 0; i < kFirst; ++i) stage_in(begin + i * kTokens, first[i]);
  }

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
  const int part = lane & 3;
  if constexpr (kFp8) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t most = 0;
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
        most =
            __vmaxu2(most, __vmaxu2(q[i / 2][k][i % 2] & 0x7fff7fffu, q[i / 2][k][i % 2 + 2] & 0x7fff7fffu));
      most = max(most >> 16, most & 0xffffu) >> 7;
      most = max(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = max(most, __shfl_xor_sync(0xffffffffu, most, 2));
      if (part == 0) sh.query_exponent[slice][8 * i + (lane >> 2)] = most;
    }
    barrier_sync(kQueries, kScoreThreads);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float f = __uint_as_float(query_factor(sh, 8 * i + (lane >> 2)) << 23);
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
#pragma unroll
        for (int j = i % 2; j < 4; j += 2) {
          uint32_t& v = q[i / 2][k][j];
          const __half2 r = __floats2half2_rn(bf16_low(v) * f, bf16_high(v) * f);
          v = *reinterpret_cast<const uint32_t*>(&r);
        }
    }
  }

  for (int block = begin, odd = 0; block < end; block += kTokens, odd ^= 1) {
    copy_async_wait<kFirst - 1>();
    __syncwarp();
    const uint8_t(*rows)[kPitch<kFp8>] = sh.latents[slot_of<kFp8>(block)];
    const uint8_t* from =
        kFp8 ? &rows[lane][slice_at] : &rows[(lane & 7) + 8 * (lane >> 4)][slice_at + 16 * ((lane >> 3) & 1)];
    uint32_t b[kSteps][4];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) load_matrix4(b[k], from + (kFp8 ? 16 : 32) * k);
    // The place of the block to come is that of the one before the last.
    if (block - begin >= 2 * kTokens) barrier_sync(kMixed + odd, kAllThreads);
    stage_in(block + kFirst * kTokens, following);
    following = place_of(block + (kFirst + 1) * kTokens, pool);
    pool = list.pool(listed(block + (kFirst + 2) * kTokens));
    float d[2][kTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        uint2 c;
        if constexpr (kFp8)
          c = kv_decode4_f16(b[k][n]);
        else
          c = make_uint2(b[k][2 * n], b[k][2 * n + 1]);
#pragma unroll
        for (int m = 0; m < 2; ++m) mma<kFp8>(d[m][n], q[m][k], c.x, c.y);
      }
    if (block > begin) barrier_sync(kRead, kAllThreads);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int r = 0; r < 4; r += 2)
          *reinterpret_cast<float2*>(
              &sh.score[slice][score_at<kFp8>(16 * m + (lane >> 2) + 4 * r, 8 * n + 2 * part)]) =
              make_float2(d[m][n][r], d[m][n][r + 1]);
    barrier_arrive(kScored, kAllThreads);
  }
  copy_async_wait<0>();
}

}  // namespace firesteel::cuda
