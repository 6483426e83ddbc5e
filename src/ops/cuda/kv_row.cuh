// Rows of KV planes in FP8 on the device: the format of quant/kv_row.h, bit for bit.
#pragma once

#include "ops/cuda/common.cuh"
#include "quant/kv_row.h"

namespace firesteel::cuda {

/// Of a row's greatest magnitude, as bits of a finite float.
__device__ __forceinline__ int kv_scale_exponent(uint32_t absmax) {
  const int e = static_cast<int>(absmax >> 23) - 135 + ((absmax & 0x7fffffu) > 0x600000u);
  return min(max(e, kKvLeastExponent), kKvMostExponent);
}

/// e4m3, nearest even, saturating; v is finite.
__device__ __forceinline__ uint8_t e4m3_code(float v) {
  const uint32_t u = __float_as_uint(v), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
  if (a < 0x3c800000u)  // below 2^-6 the unit is 2^-9, the last place of a sum in [2^14, 2^15)
    return static_cast<uint8_t>(sign | (__float_as_uint(__uint_as_float(a) + 16384.0f) - 0x46800000u));
  if (a >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);
  const uint32_t code = (a + 0x7ffffu + ((a >> 20) & 1u) - (120u << 23)) >> 20;
  return static_cast<uint8_t>(sign | min(code, 0x7eu));
}

/// Greatest value over a block of kThreads threads; `shared` has 32 words.
template <int kThreads>
__device__ __forceinline__ uint32_t block_max(uint32_t v, uint32_t* shared) {
  v = __reduce_max_sync(0xffffffffu, v);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
  __syncthreads();
  uint32_t most = shared[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) most = max(most, shared[i]);
  return most;
}

/// Writes value i of a row (every thread its own values; absmax is that of the whole row).
__device__ __forceinline__ void store_kv_fp8(uint8_t* row, int i, float v, uint32_t absmax) {
  const bool finite = absmax < 0x7f800000u;
  row[i] = finite
               ? e4m3_code(v * __uint_as_float(static_cast<uint32_t>(127 - kv_scale_exponent(absmax)) << 23))
               : uint8_t{0};
}
/// The scale byte and the padding behind n codes.
__device__ __forceinline__ void store_kv_scale(uint8_t* row, int n, uint32_t absmax) {
  row[n] =
      static_cast<uint8_t>(absmax < 0x7f800000u ? kv_scale_exponent(absmax) + kKvScaleBias : kKvScaleNan);
  for (int i = n + 1; i % 16 != 0; ++i) row[i] = 0;
}

/// What the bits of codes, put where bf16 has its own, must be multiplied by: 2^(120 + exponent), twice.
__device__ __forceinline__ uint32_t kv_factor(uint8_t scale) {
  const uint32_t bits = scale == kKvScaleNan ? 0x7fffu : (scale + 120u) << 7;
  return bits | bits << 16;
}
/// Codes 2i, 2i + 1 of a word to bf16; exact.
template <int i>
__device__ __forceinline__ uint32_t kv_decode2(uint32_t codes, uint32_t factor) {
  uint32_t v, r;
  // Bytes b, sign of b (all bits) for both codes.
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(v) : "r"(codes), "n"(i == 0 ? 0x9180 : 0xb3a2));
  v = (v << 4) & 0x87f087f0u;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(v), "r"(factor), "r"(0x80008000u));
  return r;
}
__device__ __forceinline__ uint4 kv_decode8(uint2 codes, uint32_t factor) {
  return make_uint4(kv_decode2<0>(codes.x, factor), kv_decode2<1>(codes.x, factor),
                    kv_decode2<0>(codes.y, factor), kv_decode2<1>(codes.y, factor));
}

/// The four codes of a word to fp16, without the row's scale; exact.
__device__ __forceinline__ uint2 kv_decode4_f16(uint32_t codes) {
  uint2 r;
#if __CUDA_ARCH__ >= 890
  asm("{\n.reg .b16 lo, hi;\nmov.b32 {lo, hi}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, lo;\ncvt.rn.f16x2.e4m3x2 %1, hi;\n}"
      : "=r"(r.x), "=r"(r.y)
      : "r"(codes));
#else
  const auto decode2 = [](uint32_t v) {  // codes in the high bytes; 2^8 makes up for fp16's exponent
    v = (v & 0x80008000u) | ((v & 0x7f007f00u) >> 1);
    const __half2 h = __hmul2(*reinterpret_cast<const __half2*>(&v), __float2half2_rn(256.0f));
    return *reinterpret_cast<const uint32_t*>(&h);
  };
  r.x = decode2(__byte_perm(codes, 0, 0x1404));
  r.y = decode2(__byte_perm(codes, 0, 0x3424));
#endif
  return r;
}

/// Value i of a row of n, in either format.
__device__ __forceinline__ float kv_value(const uint8_t* row, int i, int n, bool fp8) {
  if (!fp8) return from_bf16(reinterpret_cast<const Bits16*>(row)[i]);
  const uint32_t v = kv_decode2<0>(row[i], kv_factor(row[n]));
  return bf16_low(v);
}

}  // namespace firesteel::cuda
