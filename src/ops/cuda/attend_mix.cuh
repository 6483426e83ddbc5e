// What the mixing warps of the attend kernels do: the softmax of four heads each, the mix of 64 latents.
#pragma once

#include "ops/cuda/attend.cuh"

namespace firesteel::cuda {

/// kEach neighbouring values.
template <int kEach, typename T>
__device__ __forceinline__ void load_each(const T* from, T (&to)[kEach]) {
  static_assert(sizeof(T) == 4);
  if constexpr (kEach == 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    memcpy(to, &v, sizeof v);
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    memcpy(to, &v, sizeof v);
  }
}

template <bool kFp8, bool kWhole>
__device__ __forceinline__ void mix_tokens(const AttentionParams& p, const Work& work,
                                           AttendShared<kFp8>& sh) {
  constexpr int kTokens = kBlock<kFp8>, kEach = kTokens / 8;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2;
  const int column0 = kSliceBytes<kFp8> / 2 * warp;  // in bytes
  const int end = work.end;

  // Softmax: eight lanes a head, kEach tokens each.
  const int head = 4 * warp + (lane >> 3), token0 = kEach * (lane & 7);
  float most = -INFINITY, sum = 0.0f, whole_most = -INFINITY, whole_sum = 0.0f, scale = p.scale;
  float s[kEach], t[kEach];  // scores; with the token's scale
  const auto read_scores = [&](int block) {
    const int at = score_at<kFp8>(head, token0);
    load_each(&sh.score[0][at], s);
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      float v[kEach];
      load_each(&sh.score[i][at], v);
#pragma unroll
      for (int j = 0; j < kEach; ++j) s[j] += v[j];
    }
    uint32_t code[kEach];  // of the scale 2^(code - 127); 255, of a row that is NaN, gives 0 · ∞
    if constexpr (kFp8) load_each(&sh.scale[slot_of<kFp8>(block)][token0], code);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      s[j] *= scale;
      t[j] = s[j];
      if constexpr (kFp8) {
        s[j] *= __uint_as_float(code[j] << 23);
        t[j] = s[j] + (__uint_as_float(code[j] | 0x4b000000u) - (0x1p23f + 127.0f));
      }
      if (block + token0 + j >= end) s[j] = t[j] = -INFINITY;
    }
  };
  const auto put_weights = [&](int block, int odd) {
    float top = t[0];
#pragma unroll
    for (int j = 1; j < kEach; ++j) top = fmaxf(top, t[j]);
#pragma unroll
    for (int mask = 1; mask < 8; mask <<= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
    top = top > most + kSlack ? top : most;
    Bits16* weight = &sh.weight[odd][weight_at<kFp8>(head, token0)];
    if constexpr (kFp8) {
      const __half2 lo = __floats2half2_rn(exp2_fast(t[0] - top), exp2_fast(t[1] - top));
      const __half2 hi = __floats2half2_rn(exp2_fast(t[2] - top), exp2_fast(t[3] - top));
      *reinterpret_cast<uint2*>(weight) =
          make_uint2(*reinterpret_cast<const uint32_t*>(&lo), *reinterpret_cast<const uint32_t*>(&hi));
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) s[j] = exp2_fast(s[j] - top);
    if constexpr (!kFp8) *reinterpret_cast<uint32_t*>(weight) = pack_bf16(s[0], s[1]);
    const float keep = exp2_fast(most - top);
    const bool moved = __any_sync(0xffffffffu, most != -INFINITY && top != most);
    if (lane == 0) reinterpret_cast<uint8_t*>(&sh.rescales[odd])[warp] = moved;
    if ((lane & 7) == 0) sh.rescale[odd][head] = keep;
    most = top;
    // Fours of tokens; then those 16 apart, and neighbours.
    float total = s[0] + s[1];
    if constexpr (kFp8) {
      total += s[2] + s[3];
      total += __shfl_xor_sync(0xffffffffu, total, 4);
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
    } else {
#pragma unroll
      for (int mask = 1; mask < 8; mask <<= 1) total += __shfl_xor_sync(0xffffffffu, total, mask);
    }
    sum = fmaf(sum, keep, total);
    const int next = block + kTokens;
    if (kWhole && (next % kChunk == 0 || next >= end)) {
      const float both = fmaxf(whole_most, most), merge_old = exp2_fast(whole_most - both),
                  merge_new = exp2_fast(most - both);
      whole_sum = fmaf(merge_new, sum, whole_sum * merge_old);
      whole_most = both;
      most = -INFINITY;
      sum = 0.0f;
      if ((lane & 7) == 0) {
        sh.merge_old[odd][head] = merge_old;
        sh.merge_new[odd][head] = merge_new;
        if (next >= end && block < end) sh.total[head] = whole_sum;
      }
    }
  };
  barrier_sync(kScored, kAllThreads);
  if constexpr (kFp8) scale *= __uint_as_float((254 - query_factor(sh, head)) << 23);
  float out[2][8][4] = {};
  float whole[kWhole ? 2 : 1][8][4] = {};
  for (int block = work.begin, odd = 0; block < end; block += kTokens, odd ^= 1) {
    const int next = block + kTokens;
    const bool chunk_ends = next % kChunk == 0 || next >= end;
    if (block > work.begin) barrier_sync(kScored, kAllThreads);
    read_scores(block);
    barrier_arrive_if(next < end, kRead, kAllThreads);
    put_weights(block, odd);
    barrier_sync(kWeights, kMixThreads);
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
      if constexpr (kFp8) {  // an element is a pair of latents: products 2i are of even, 2i + 1 of odd ones
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
    if (block + 2 * kTokens < end) barrier_arrive(kMixed + odd, kAllThreads);
  }
  if (!kWhole && (lane & 7) == 0 && head < work.heads) {
    const int64_t at =
        (static_cast<int64_t>(blockIdx.x) * p.chunks + blockIdx.z) * p.heads + work.head0 + head;
    *reinterpret_cast<float2*>(p.part_ml + 2 * at) = make_float2(most, sum);
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

}  // namespace firesteel::cuda
