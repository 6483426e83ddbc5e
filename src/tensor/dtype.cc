#include "tensor/dtype.h"

#include <array>
#include <bit>

#include "base/check.h"

namespace firesteel {
namespace {

struct DTypeRow {
  DType type;
  uint8_t size;
  std::string_view name;
};

constexpr std::array<DTypeRow, 11> kRows = {{
    {DType::kF32, 4, "F32"},
    {DType::kF16, 2, "F16"},
    {DType::kBf16, 2, "BF16"},
    {DType::kF8E4M3, 1, "F8_E4M3"},
    {DType::kI64, 8, "I64"},
    {DType::kI32, 4, "I32"},
    {DType::kI16, 2, "I16"},
    {DType::kI8, 1, "I8"},
    {DType::kU8, 1, "U8"},
    {DType::kBool, 1, "BOOL"},
    {DType::kF64, 8, "F64"},
}};

const DTypeRow& row_of(DType type) {
  const auto index = static_cast<size_t>(type);
  CHECK(index < kRows.size() && kRows[index].type == type);
  return kRows[index];
}

}  // namespace

size_t dtype_size(DType type) { return row_of(type).size; }

std::string_view dtype_name(DType type) { return row_of(type).name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DTypeRow& row : kRows) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

uint16_t f32_to_f16(float value) {
  const auto u = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000);
  const uint32_t a = u & 0x7FFFFFFF;
  if (a > 0x7F800000) {  // NaN: quiet, with what fits of its payload
    return static_cast<uint16_t>(sign | 0x7E00 | ((a >> 13) & 0x1FF));
  }
  if (a >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // 65520 and above round to infinity
  if (a < 0x38800000) {
    // Below 2^-14 the result is a multiple of 2^-24. Adding 0.5 puts that unit in the last place of the sum,
    // so the addition itself rounds to nearest even.
    const float sum = std::bit_cast<float>(a) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f)));
  }
  const uint32_t rounded = a + 0xFFF + ((a >> 13) & 1) - ((127u - 15u) << 23);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

float f8e4m3_to_f32(uint8_t bits) {
  const uint32_t sign = (bits & 0x80u) << 24;
  const uint32_t exponent = (bits >> 3) & 0xF;
  const uint32_t fraction = bits & 0x7;
  if ((bits & 0x7F) == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (exponent == 0) {  // multiples of 2^-9
    const float magnitude = static_cast<float>(fraction) * 0.001953125f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 127 - 7) << 23) | (fraction << 20));
}

uint8_t f32_to_f8e4m3(float value) {
  const auto u = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((u >> 24) & 0x80);
  const uint32_t a = u & 0x7FFFFFFF;
  if (a > 0x7F800000) return static_cast<uint8_t>(sign | 0x7F);
  if (a < 0x3C800000) {
    // Below 2^-6 the unit is 2^-9, the last place of a sum in [2^14, 2^15).
    const float sum = std::bit_cast<float>(a) + 16384.0f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(16384.0f)));
  }
  if (a >= 0x43E00000) return static_cast<uint8_t>(sign | 0x7E);  // 448 and above, infinity included
  const uint32_t rounded = a + 0x7FFFF + ((a >> 20) & 1) - ((127u - 7u) << 23);
  const uint32_t code = rounded >> 20;
  return static_cast<uint8_t>(sign | (code > 0x7E ? 0x7E : code));
}

}  // namespace firesteel
