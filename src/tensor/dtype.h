// Element types of checkpoint tensors and device buffers. Pure values, any thread.
#pragma once

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

// Exact widenings and round-to-nearest-even narrowings; NaN stays NaN.
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);
/// OCP E4M3, finite-only (0x7F and 0xFF are NaN), maximum 448.
float f8e4m3_to_f32(uint8_t bits);
/// Saturates at ±448.
uint8_t f32_to_f8e4m3(float value);

}  // namespace firesteel
