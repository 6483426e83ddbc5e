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
  static constexpr bool kHalf = false, kExl3 = false, kScaled = false;
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
  static constexpr bool kHalf = false, kExl3 = false, kScaled = true;
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
  /// Two codes in bytes 1 and 3 to two bf16 values, exactly: the fields moved into place are value · 2^-120.
  __device__ __forceinline__ static uint32_t widen(uint32_t codes) {
    const uint32_t raw = (codes & 0x80008000u) | ((codes & 0x7f007f00u) >> 4);
    const __nv_bfloat162 scale =
        __halves2bfloat162(__ushort_as_bfloat16(0x7b80), __ushort_as_bfloat16(0x7b80));
    const __nv_bfloat162 v = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&raw), scale);
    return *reinterpret_cast<const uint32_t*>(&v);
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

template <int kBits, int kCode>
struct Exl3Weights {
  static constexpr bool kHalf = true, kExl3 = true, kScaled = false;
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
