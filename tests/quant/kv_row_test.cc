// FP8 rows of KV planes against the definition in float64: least scale, nearest code, ties to even, clipping,
// zeros, NaN, and that values are exact in bf16.
#include "quant/kv_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/random.h"
#include "tensor/dtype.h"

namespace firesteel {
namespace {

using test::Random;
using Bytes = std::vector<std::byte>;

double code_value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double v = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -v : v;
}

/// Nearest of the 127 magnitudes; of two equally near the even code.
int nearest_code(double x) {
  int best = 0;
  for (int c = 1; c <= 0x7E; ++c) {
    const double d = std::abs(std::abs(x) - code_value(c)), e = std::abs(std::abs(x) - code_value(best));
    if (d < e || (d == e && c % 2 == 0)) best = c;
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

Bytes quantized(const std::vector<float>& x) {
  Bytes row(kv_row_bytes(static_cast<int32_t>(x.size())), std::byte{0xA5});
  kv_row_quantize(x.data(), static_cast<int32_t>(x.size()), row.data());
  return row;
}

int wanted_exponent(const std::vector<float>& x) {
  double most = 0;
  for (const float v : x) most = std::max(most, std::abs(static_cast<double>(v)));
  int e = kKvLeastExponent;
  while (e < kKvMostExponent && most / std::ldexp(1.0, e) > 448) ++e;
  return e;
}

void check_row(const std::vector<float>& x) {
  const auto n = static_cast<int32_t>(x.size());
  const Bytes row = quantized(x);
  const int exponent = static_cast<int>(row[x.size()]) - kKvScaleBias;
  ASSERT_EQ(exponent, wanted_exponent(x));
  std::vector<float> back(x.size());
  kv_row_dequantize(row.data(), n, back.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const int want = nearest_code(std::ldexp(static_cast<double>(x[i]), -exponent));
    ASSERT_EQ(static_cast<int>(row[i]), want) << "value " << i << ": " << x[i];
    ASSERT_EQ(static_cast<double>(back[i]), std::ldexp(code_value(want), exponent));
    ASSERT_EQ(bf16_to_f32(f32_to_bf16(back[i])), back[i]) << "not exact in bf16";
  }
  for (size_t i = x.size() + 1; i < row.size(); ++i) ASSERT_EQ(row[i], std::byte{0});
}

TEST(KvRow, RowsAreAligned) {
  EXPECT_EQ(kv_row_bytes(512), 528u);
  EXPECT_EQ(kv_row_bytes(128), 144u);
  EXPECT_EQ(kv_row_bytes(15), 16u);
  EXPECT_EQ(kv_row_bytes(16), 32u);
}

TEST(KvRow, MatchesTheDefinition) {
  Random random;
  for (const int n : {1, 7, 45, 128, 512}) {
    for (const double size : {1e-40, 1e-33, 1e-28, 1e-3, 1.0, 30.0, 5e4, 1e9, 1e38}) {
      std::vector<float> x = random.normals(static_cast<size_t>(n), 1.0);
      for (float& v : x) v = static_cast<float>(std::clamp(v * size, -3e38, 3e38));
      check_row(x);
    }
  }
}

TEST(KvRow, TiesGoToEvenAndTheScaleIsTheLeast) {
  std::vector<float> x = {448.0f};  // scale 1
  for (int c = 0; c < 0x7E; ++c) {
    const double middle = (code_value(c) + code_value(c + 1)) / 2;
    x.push_back(static_cast<float>(middle));
    x.push_back(static_cast<float>(-middle));
    x.push_back(std::nextafter(static_cast<float>(middle), 0.0f));
    x.push_back(std::nextafter(static_cast<float>(middle), 1e9f));
  }
  check_row(x);
  EXPECT_EQ(wanted_exponent(x), 0);
  x[0] = std::nextafter(448.0f, 449.0f);
  EXPECT_EQ(wanted_exponent(x), 1);
  check_row(x);
  // The checker sees a code that is one off.
  EXPECT_NE(nearest_code(1.0624), nearest_code(1.0626));
}

TEST(KvRow, ZerosAndClipping) {
  check_row({0.0f, -0.0f, 0.0f});
  EXPECT_EQ(static_cast<int>(quantized({0.0f, 0.0f})[2]), kKvLeastExponent + kKvScaleBias);
  const Bytes clipped = quantized({1e6f, -3e38f, 57344.0f});
  float back[3];
  kv_row_dequantize(clipped.data(), 3, back);
  EXPECT_EQ(back[0], 57344.0f);
  EXPECT_EQ(back[1], -57344.0f);
  EXPECT_EQ(back[2], 57344.0f);
}

TEST(KvRow, ANonFiniteValueMakesTheRowNaN) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    const Bytes row = quantized({1.0f, bad, 0.0f});
    float back[3];
    kv_row_dequantize(row.data(), 3, back);
    for (const float v : back) EXPECT_TRUE(std::isnan(v));
  }
}

}  // namespace
}  // namespace firesteel
