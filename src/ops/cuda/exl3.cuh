// EXL3 decoding in registers: the 8 weights of a lane of a 16×16 tile, as the A fragment of Wᵀ.
//
// Packed group (pack.h): for 16 output channels × 64 columns, lane L holds the K bytes of each of the four
// tiles, as one big-endian bit string of 32·K bits in K words. The 16 bits before a lane's own come from the
// lane before it.
#pragma once

#include "ops/cuda/common.cuh"

namespace firesteel::cuda {

enum : int { kCode3Inst = 0, kCodeMcg = 1, kCodeMul1 = 2 };

/// (x & a) ^ b in one instruction.
__device__ __forceinline__ uint32_t and_xor(uint32_t x, uint32_t a, uint32_t b) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(r) : "r"(x), "r"(a), "r"(b));
  return r;
}

/// Multiplier and addend of the codes whose value is the sum of the two halves of a hash.
template <int kCode>
struct HalfSumCode {
  static constexpr uint32_t kFactor = kCode == kCodeMcg ? 0xCBAC1FEDu : 89226354u;
  static constexpr uint32_t kAddend = kCode == kCodeMcg ? 0u : 64248484u;
};

/// Two hashes to two fp16 values. The halves are added in place (the addition picks its halves), so that one
/// permutation a pair is enough: it shares its pipe with all the masks and shifts, the additions do not.
__device__ __forceinline__ uint32_t half_sums(uint32_t x0, uint32_t x1) {
  x0 = and_xor(x0, 0x8FFF8FFFu, 0x3B603B60u);
  x1 = and_xor(x1, 0x8FFF8FFFu, 0x3B603B60u);
  const __half2 h0 = *reinterpret_cast<const __half2*>(&x0), h1 = *reinterpret_cast<const __half2*>(&x1);
  const __half2 v0 = __hadd2(__low2half2(h0), __high2half2(h0));
  const __half2 v1 = __hadd2(__low2half2(h1), __high2half2(h1));
  return __byte_perm(*reinterpret_cast<const uint32_t*>(&v0), *reinterpret_cast<const uint32_t*>(&v1),
                     0x5410);
}

/// Two states (16 bits each, clean above) to two fp16 values.
template <int kCode>
__device__ __forceinline__ uint32_t exl3_pair(uint32_t s0, uint32_t s1) {
  if constexpr (kCode == kCodeMul1) {
    const uint32_t h0 = __dp4a(s0 * 0x83DCD12Du, 0x01010101u, 0x6400u);
    const uint32_t h1 = __dp4a(s1 * 0x83DCD12Du, 0x01010101u, 0x6400u);
    const uint32_t h = __byte_perm(h0, h1, 0x5410);
    const __half2 v = __hfma2(*reinterpret_cast<const __half2*>(&h), __half2half2(__ushort_as_half(0x1EEE)),
                              __half2half2(__ushort_as_half(0xC931)));
    return *reinterpret_cast<const uint32_t*>(&v);
  } else {
    using Code = HalfSumCode<kCode>;
    return half_sums(s0 * Code::kFactor + Code::kAddend, s1 * Code::kFactor + Code::kAddend);
  }
}

/// The words of one packed group of a lane, and the tails of the lane before.
template <int kBits>
struct Exl3Group {
  uint32_t w[kBits];
  // Of the lane before: 4 bits: its words; else the tails of tiles 0 and 1, 2 and 3, low half the even tile.
  uint32_t tail[kBits == 4 ? 4 : 2];

  __device__ __forceinline__ void load(const uint8_t* group) {
    const int lane = threadIdx.x & 31;
    const uint8_t* p = group;
    int i = 0;
#pragma unroll
    for (int q = 0; q < kBits / 4; ++q) {
      const uint4 v = load_stream16(p + 16 * lane);
      w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
      i += 4;
      p += 512;
    }
    if constexpr ((kBits & 2) != 0) {
      const uint2 v = load_stream8(p + 8 * lane);
      w[kBits & ~3] = v.x, w[(kBits & ~3) + 1] = v.y;
      p += 256;
    }
    if constexpr ((kBits & 1) != 0) w[kBits - 1] = load_stream4(p + 4 * lane);
  }

  /// 16 bits ending at bit `kEnd` of the lane's string.
  template <int kEnd>
  __device__ __forceinline__ uint32_t bits_before() const {
    constexpr int last = (kEnd - 1) / 32, shift = (32 - kEnd % 32) % 32;  // shift right inside the last word
    if constexpr (shift + 16 <= 32) {
      return w[last] >> shift;  // garbage above bit 16
    } else {
      return __funnelshift_r(w[last], w[last - 1], shift);
    }
  }

  /// Exchanges the tails; all lanes of the warp.
  __device__ __forceinline__ void exchange() {
    const int from = ((threadIdx.x & 31) + 31) & 31;
    if constexpr (kBits == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tail[i] = __shfl_sync(0xffffffffu, w[i], from);
    } else if constexpr (kBits == 1) {
      const uint32_t one = __shfl_sync(0xffffffffu, w[0], from);
      const uint32_t two = __shfl_sync(0xffffffffu, w[0], (from + 31) & 31);
      // Tile i is byte 3 - i of the word.
      tail[0] = (two >> 24) << 8 | one >> 24 | (two & 0x00ff0000u) << 8 | (one & 0x00ff0000u);
      tail[1] = (two & 0xff00u) | ((one >> 8) & 0xffu) | (two & 0xffu) << 24 | (one & 0xffu) << 16;
    } else {
      const uint32_t t0 = __byte_perm(bits_before<8 * kBits>(), bits_before<16 * kBits>(), 0x5410);
      const uint32_t t1 = __byte_perm(bits_before<24 * kBits>(), bits_before<32 * kBits>(), 0x5410);
      tail[0] = __shfl_sync(0xffffffffu, t0, from);
      tail[1] = __shfl_sync(0xffffffffu, t1, from);
    }
  }

  /// State of element j of tile kTile.
  template <int kTile, int j>
  __device__ __forceinline__ uint32_t state() const {
    constexpr int begin = 8 * kBits * kTile, end = begin + (j + 1) * kBits;
    if constexpr (end - begin >= 16) {
      constexpr int last = (end - 1) / 32, shift = (32 - end % 32) % 32;
      if constexpr (shift == 16) return w[last] >> 16;
      if constexpr (shift == 0) return w[last] & 0xffffu;
      if constexpr (shift == 8) return __byte_perm(w[last], 0, 0x4421);
      return bits_before<end>() & 0xffffu;
    } else {
      // (end - begin) own bits behind the tail of the lane before.
      constexpr int own = end - begin;
      constexpr int last = (end - 1) / 32, shift = (32 - end % 32) % 32;
      const uint32_t t = (kTile & 1) ? tail[kTile / 2] >> 16 : tail[kTile / 2];
      uint32_t low;  // own bits at the bottom, garbage above
      if constexpr (shift + own <= 32) {
        low = w[last] >> shift;
      } else {
        low = __funnelshift_r(w[last], w[last - 1], shift);
      }
      constexpr uint32_t mask = (1u << own) - 1;
      return ((t << own) | (low & mask)) & 0xffffu;
    }
  }

  template <int kCode, int kTile>
  __device__ __forceinline__ void fragment(uint32_t (&a)[4]) const {
    if constexpr (kBits == 4) {
      // Word i holds states i (above) and i + 4 (below).
      uint32_t pairs[4];
      pairs[0] = __funnelshift_r(w[kTile], tail[kTile], 12);
      pairs[1] = __funnelshift_r(w[kTile], tail[kTile], 8);
      pairs[2] = __funnelshift_r(w[kTile], tail[kTile], 4);
      pairs[3] = w[kTile];
      if constexpr (kCode == kCodeMul1) {
        a[0] = exl3_pair<kCode>(pairs[0] >> 16, pairs[1] >> 16);
        a[2] = exl3_pair<kCode>(pairs[2] >> 16, pairs[3] >> 16);
        a[1] = exl3_pair<kCode>(pairs[0] & 0xffffu, pairs[1] & 0xffffu);
        a[3] = exl3_pair<kCode>(pairs[2] & 0xffffu, pairs[3] & 0xffffu);
      } else {
        // The lower state needs no mask: what the upper one adds to the product is taken off again, by the
        // multiplier's pipe, which has room.
        using Code = HalfSumCode<kCode>;
        uint32_t high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t upper = pairs[i] >> 16;
          high[i] = upper * Code::kFactor + Code::kAddend;
          low[i] = upper * (0u - (Code::kFactor << 16)) + (pairs[i] * Code::kFactor + Code::kAddend);
        }
        a[0] = half_sums(high[0], high[1]);
        a[2] = half_sums(high[2], high[3]);
        a[1] = half_sums(low[0], low[1]);
        a[3] = half_sums(low[2], low[3]);
      }
    } else {
      a[0] = exl3_pair<kCode>(state<kTile, 0>(), state<kTile, 1>());
      a[2] = exl3_pair<kCode>(state<kTile, 2>(), state<kTile, 3>());
      a[1] = exl3_pair<kCode>(state<kTile, 4>(), state<kTile, 5>());
      a[3] = exl3_pair<kCode>(state<kTile, 6>(), state<kTile, 7>());
    }
  }
};

}  // namespace firesteel::cuda
