// Element types of checkpoint tensors and device buffers. Pure values, any thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace firesteel {

enum class DType : uint8_t { kF32, kF16, kBf16, kF8E4M3, kI64, kI32, kI16, kI8, kU8, kBool, kF64 };

/// Bytes of one element.
size_t dtype_size(DType type);
/// The safetensors spelling ("F32", "BF16", "F8_E4M3", …).
std::string_view dtype_name(DType type);
std::optional<DType> parse_dtype(std::string_view name);

// Exact widenings and round-to-nearest-even narrowings; NaN stays NaN. None of them meets a subnormal float
// operand on the way, so the flush-to-zero mode of a thread cannot change an fp16 or bf16 result. The
// widenings are inline because loaders run them over whole tensors.
inline float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t f32_to_bf16(float value) {
  const auto u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((u >> 16) | 0x0040);  // NaN, made quiet
  return static_cast<uint16_t>((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

inline float f16_to_f32(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t shifted = (bits & 0x7FFFu) << 13;
  const uint32_t exponent = shifted & 0x0F800000u;
  uint32_t u = shifted + ((127u - 15u) << 23);
  if (exponent == 0x0F800000u) {
    u += (128u - 16u) << 23;  // infinity, NaN
  } else if (exponent == 0) {
    // Zero or subnormal: give it the implicit bit of 2^-14 and take that away again, which is exact.
    u = std::bit_cast<uint32_t>(std::bit_cast<float>(u + (1u << 23)) - 6.103515625e-05f);
  }
  return std::bit_cast<float>(sign | u);
}

uint16_t f32_to_f16(float value);
/// OCP E4M3, finite-only (0x7F and 0xFF are NaN), maximum 448.
float f8e4m3_to_f32(uint8_t bits);
/// Saturates at ±448.
uint8_t f32_to_f8e4m3(float value);

}  // namespace firesteel
