#include "quant/kv_row.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "tensor/dtype.h"

namespace firesteel {
namespace {

constexpr uint32_t kInfinity = 0x7F800000;

float power_of_two(int32_t exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

/// Of the bits of a finite absmax. 448 = 1.75 · 2^8.
int32_t scale_exponent(uint32_t absmax) {
  const int32_t exponent = static_cast<int32_t>(absmax >> 23) - 127 - 8 + ((absmax & 0x7FFFFF) > 0x600000);
  return std::clamp(exponent, kKvLeastExponent, kKvMostExponent);
}

}  // namespace

void kv_row_quantize(const float* x, int32_t n, std::byte* row) {
  uint32_t absmax = 0;
  for (int32_t i = 0; i < n; ++i) absmax = std::max(absmax, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFF);
  std::memset(row, 0, kv_row_bytes(n));
  if (absmax >= kInfinity) {
    row[n] = std::byte{kKvScaleNan};
    return;
  }
  const int32_t exponent = scale_exponent(absmax);
  const float inverse = power_of_two(-exponent);
  for (int32_t i = 0; i < n; ++i) row[i] = std::byte{f32_to_f8e4m3(x[i] * inverse)};
  row[n] = static_cast<std::byte>(exponent + kKvScaleBias);
}

void kv_row_dequantize(const std::byte* row, int32_t n, float* out) {
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> values;
    for (size_t i = 0; i < values.size(); ++i) values[i] = f8e4m3_to_f32(static_cast<uint8_t>(i));
    return values;
  }();
  const auto byte = static_cast<int32_t>(row[n]);
  const float scale =
      byte == kKvScaleNan ? std::numeric_limits<float>::quiet_NaN() : power_of_two(byte - kKvScaleBias);
  for (int32_t i = 0; i < n; ++i) out[i] = kValues[static_cast<size_t>(row[i])] * scale;
}

}  // namespace firesteel
