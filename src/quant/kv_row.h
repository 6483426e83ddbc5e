// The FP8 form of one row of a KV plane (a token's latent, a pool's key): e4m3 codes with one power-of-two
// scale.
//
// Row of n values, kv_row_bytes(n) bytes: n codes, the scale byte, zeros up to a multiple of 16.
//   value i = e4m3(code i) · 2^(scale byte - 127)
// The scale is the smallest power of two with absmax / scale ≤ 448, held to 2^-100 … 2^7; codes round to
// nearest even and saturate at ±448 (so rows beyond 57,344 are clipped, and a row of zeros has the smallest
// scale). A row with a NaN or an infinity is NaN altogether: scale byte 255, codes 0. Values are exact in
// bf16.
//
// Pure functions, any thread; the same bits on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace firesteel {

inline constexpr int32_t kKvScaleBias = 127;
inline constexpr int32_t kKvScaleNan = 255;
inline constexpr int32_t kKvLeastExponent = -100, kKvMostExponent = 7;

/// 528 for 512 values, 144 for 128: rows keep 16-byte alignment.
constexpr size_t kv_row_bytes(int32_t n) { return (static_cast<size_t>(n) + 1 + 15) / 16 * 16; }

void kv_row_quantize(const float* x, int32_t n, std::byte* row);
void kv_row_dequantize(const std::byte* row, int32_t n, float* out);

}  // namespace firesteel
