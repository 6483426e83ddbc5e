// How the product kernels (matmul.cuh) read and decode a packed group of weights: 16 output channels × 64
// columns of each format, as A fragments of four k-steps.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/exl3.cuh"

namespace firesteel::cuda {

template <int kValue>
struct Half {
  static constexpr int value = kValue;
};

struct Bf16Weights {
  static constexpr bool kHalf = false, kExl3 = false, kScaled = false, kBlockScales = false;
  static constexpr float kFactor = 1.0f;
  static constexpr int kUnitColumns = kUnit, kGroupBytes = 2048, kMinTiles = 1;
  uint4 r[4];
  __device__ __forceinline__ void load(const uint8_t* group) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = load_stream16(group + 512 * i + 16 * lane);
  }
  __device__ __forceinline__ void load_staged(const uint8_t* group) {
    const uint4* from = reinterpret_cast<const uint4*>(group) + (threadIdx.x & 31);
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = from[32 * i];
  }
  __device__ __forceinline__ void ready() {}
  template <int kTile>
  __device__ __forceinline__ void fragment(uint32_t (&a)[4]) const {
    a[0] = r[kTile].x, a[1] = r[kTile].y, a[2] = r[kTile].z, a[3] = r[kTile].w;
  }
};

/// e4m3 codes, scaled per 128×128 block after the product.
struct Fp8Weights {
  static constexpr bool kHalf = false, kExl3 = false, kScaled = true, kBlockScales = true;
  static constexpr float kFactor = 1.0f;
  static constexpr int kUnitColumns = kFp8Unit, kGroupBytes = 1024, kMinTiles = 1;
  uint4 r[2];
  __device__ __forceinline__ void load(const uint8_t* group) {
    const int lane = threadIdx.x & 31;
    r[0] = load_stream16(group + 16 * lane);
    r[1] = load_stream16(group + 512 + 16 * lane);
  }
  __device__ __forceinline__ void load_staged(const uint8_t* group) {
    const uint4* from = reinterpret_cast<const uint4*>(group) + (threadIdx.x & 31);
    r[0] = from[0];
    r[1] = from[32];
  }
  __device__ __forceinline__ void ready() {}
  /// Two codes in bytes 1 and 3 to two bf16 values: the fields moved into place are value · 2^-120, `scale`
  /// two bf16 numbers. 2^120 gives the codes' own values, exactly.
  __device__ __forceinline__ static uint32_t widen(uint32_t codes, uint32_t scale = 0x7b807b80u) {
    const uint32_t raw = (codes & 0x80008000u) | ((codes & 0x7f007f00u) >> 4);
    return multiply_bf16x2(raw, scale);
  }
  template <int kTile>
  __device__ __forceinline__ void fragment(uint32_t (&a)[4]) const {
    // The eight codes of a k-step: two words, each two registers' pairs.
    const uint4& v = r[kTile / 2];
    const uint32_t w0 = (kTile & 1) ? v.z : v.x, w1 = (kTile & 1) ? v.w : v.y;
    a[0] = widen(__byte_perm(w0, 0, 0x1404));
    a[1] = widen(__byte_perm(w0, 0, 0x3424));
    a[2] = widen(__byte_perm(w1, 0, 0x1404));
    a[3] = widen(__byte_perm(w1, 0, 0x3424));
  }
};

/// Narrowed to FP8 while loading: e4m3 codes, each row's scale for these columns behind them.
struct Fp8RowsWeights {
  static constexpr bool kHalf = false, kExl3 = false, kScaled = true, kBlockScales = false;
  static constexpr float kFactor = 0x1p32f;  // 2^kNarrowShift
  static constexpr int kUnitColumns = kUnit, kGroupBytes = kFp8RowsGroupBytes, kMinTiles = 1;
  Fp8Weights codes;
  uint32_t scales;  // of rows g and g + 8
  __device__ __forceinline__ void load(const uint8_t* group) {
    codes.load(group);
    scales = load_stream4(group + 1024 + (threadIdx.x & 28));
  }
  __device__ __forceinline__ void load_staged(const uint8_t* group) {
    codes.load_staged(group);
    scales = *reinterpret_cast<const uint32_t*>(group + 1024 + (threadIdx.x & 28));
  }
  __device__ __forceinline__ void ready() {}
  template <int kTile>
  __device__ __forceinline__ void fragment(uint32_t (&a)[4]) const {
    const uint32_t low = __byte_perm(scales, 0, 0x1010), high = __byte_perm(scales, 0, 0x3232);
    const uint4& v = codes.r[kTile / 2];
    const uint32_t w0 = (kTile & 1) ? v.z : v.x, w1 = (kTile & 1) ? v.w : v.y;
    a[0] = Fp8Weights::widen(__byte_perm(w0, 0, 0x1404), low);
    a[1] = Fp8Weights::widen(__byte_perm(w0, 0, 0x3424), high);
    a[2] = Fp8Weights::widen(__byte_perm(w1, 0, 0x1404), low);
    a[3] = Fp8Weights::widen(__byte_perm(w1, 0, 0x3424), high);
  }
};

/// Narrowed to 4 bits while loading. A code in the low bits of a bf16 number is that many steps of 2^-133
/// (bits 0 to 3) or 2^-129 (bits 4 to 7: the exponent's last bit goes on where the fraction ends), so that
/// one fused multiply-add gives bf16(code · scale + offset) · 2^-kNarrowShift.
struct Q4Weights {
  static constexpr bool kHalf = false, kExl3 = false, kScaled = true, kBlockScales = false;
  static constexpr float kFactor = 0x1p32f;
  static constexpr int kUnitColumns = kUnit, kGroupBytes = kQ4GroupBytes, kMinTiles = 1;
  uint4 r;
  uint2 scales;  // scale and offset of row g; of row g + 8
  __device__ __forceinline__ void load(const uint8_t* group) {
    const int lane = threadIdx.x & 31;
    r = load_stream16(group + 16 * lane);
    scales = load_stream8(group + 512 + 8 * (lane >> 2));
  }
  __device__ __forceinline__ void load_staged(const uint8_t* group) {
    const int lane = threadIdx.x & 31;
    r = reinterpret_cast<const uint4*>(group)[lane];
    scales = reinterpret_cast<const uint2*>(group + 512)[lane >> 2];
  }
  __device__ __forceinline__ void ready() {}
  template <int kTile>
  __device__ __forceinline__ void fragment(uint32_t (&a)[4]) const {
    const uint32_t s0 = __byte_perm(scales.x, 0, 0x1010), b0 = __byte_perm(scales.x, 0, 0x3232);
    const uint32_t s1 = __byte_perm(scales.y, 0, 0x1010), b1 = __byte_perm(scales.y, 0, 0x3232);
    const uint32_t w = kTile == 0 ? r.x : kTile == 1 ? r.y : kTile == 2 ? r.z : r.w, h = w >> 8;
    a[0] = fma_bf16x2(w & 0x000f000fu, s0, b0);
    a[1] = fma_bf16x2(w & 0x00f000f0u, s1, b1);
    a[2] = fma_bf16x2(h & 0x000f000fu, s0, b0);
    a[3] = fma_bf16x2(h & 0x00f000f0u, s1, b1);
  }
};

template <int kBits, int kCode>
struct Exl3Weights {
  static constexpr bool kHalf = true, kExl3 = true, kScaled = false, kBlockScales = false;
  static constexpr float kFactor = 1.0f;
  static constexpr int kUnitColumns = kUnit, kGroupBytes = 128 * kBits, kMinTiles = 8;
  Exl3Group<kBits> g;
  __device__ __forceinline__ void load(const uint8_t* group) { g.load(group); }
  __device__ __forceinline__ void ready() { g.exchange(); }
  template <int kTile>
  __device__ __forceinline__ void fragment(uint32_t (&a)[4]) const {
    g.template fragment<kCode, kTile>(a);
  }
};

}  // namespace firesteel::cuda
