// Conversions against their definition: every narrow value, every boundary between two neighbours, and random
// floats against a search for the nearest representable value.
#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace firesteel {
namespace {

/// The value of a small format read from its fields in float64.
double value_of(uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t exponent = (bits >> fraction_bits) & ((1u << exponent_bits) - 1);
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const double sign = (bits >> (exponent_bits + fraction_bits)) & 1 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign *
         std::ldexp((1u << fraction_bits) + fraction, static_cast<int>(exponent) - bias - fraction_bits);
}

TEST(DType, NamesAndSizesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i) {
    const auto type = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(dtype_name(type)), type);
    EXPECT_GE(dtype_size(type), 1u);
  }
  EXPECT_EQ(dtype_size(DType::kBf16), 2u);
  EXPECT_EQ(dtype_size(DType::kF8E4M3), 1u);
  EXPECT_EQ(dtype_size(DType::kI64), 8u);
  EXPECT_EQ(parse_dtype("BF16"), DType::kBf16);
  EXPECT_FALSE(parse_dtype("bf16"));
  EXPECT_FALSE(parse_dtype("F8_E5M2"));
  EXPECT_FALSE(parse_dtype(""));
}

TEST(DType, EveryHalfWidensExactlyAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float f = f16_to_f32(static_cast<uint16_t>(bits));
    if ((bits & 0x7C00) == 0x7C00) {
      EXPECT_EQ(std::isnan(f), (bits & 0x3FF) != 0);
      EXPECT_EQ(std::signbit(f), (bits & 0x8000) != 0);
      if (std::isnan(f)) {
        EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f))));
        continue;
      }
    } else {
      ASSERT_EQ(static_cast<double>(f), value_of(bits, 5, 10)) << bits;
      ASSERT_EQ(std::signbit(f), (bits & 0x8000) != 0);
    }
    ASSERT_EQ(f32_to_f16(f), bits);
  }
}

TEST(DType, EveryBf16WidensExactlyAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float f = bf16_to_f32(static_cast<uint16_t>(bits));
    ASSERT_EQ(std::bit_cast<uint32_t>(f), bits << 16);
    if (std::isnan(f)) {
      ASSERT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(f)))) << bits;
    } else {
      ASSERT_EQ(f32_to_bf16(f), bits);
    }
  }
  // The smallest NaN payload must not round down to infinity, nor a full one wrap to zero.
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7FFFFFFFu)))));
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
}

TEST(DType, EveryE4m3WidensExactlyAndComesBack) {
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    const float f = f8e4m3_to_f32(static_cast<uint8_t>(bits));
    if ((bits & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(f));
      EXPECT_EQ(f32_to_f8e4m3(f) & 0x7F, 0x7F);
    } else {
      EXPECT_EQ(static_cast<double>(f), value_of(bits, 4, 3)) << bits;
      EXPECT_EQ(f32_to_f8e4m3(f), bits);
    }
  }
  EXPECT_EQ(f8e4m3_to_f32(0x7E), 448.0f);
  EXPECT_EQ(f32_to_f8e4m3(449.0f), 0x7E);
  EXPECT_EQ(f32_to_f8e4m3(1e30f), 0x7E);
  EXPECT_EQ(f32_to_f8e4m3(-std::numeric_limits<float>::infinity()), 0xFE);
}

/// Checks `narrow` at the midpoint of each pair of neighbours and at the floats beside it.
template <typename Narrow, typename Widen>
void check_midpoints(uint32_t last_finite, uint32_t sign_bit, Narrow narrow, Widen widen) {
  for (uint32_t lo = 0; lo < last_finite; ++lo) {
    const float mid =
        static_cast<float>((static_cast<double>(widen(lo)) + static_cast<double>(widen(lo + 1))) / 2);
    const uint32_t even = lo & 1 ? lo + 1 : lo;
    ASSERT_EQ(narrow(mid), even) << lo;
    ASSERT_EQ(narrow(-mid), even | sign_bit) << lo;
    ASSERT_EQ(narrow(std::nextafter(mid, 0.0f)), lo) << lo;
    ASSERT_EQ(narrow(std::nextafter(mid, std::numeric_limits<float>::infinity())), lo + 1) << lo;
  }
}

TEST(DType, TiesGoToEvenAndNeighboursDoNot) {
  check_midpoints(
      0x7BFF, 0x8000, [](float f) { return f32_to_f16(f); },
      [](uint32_t b) { return f16_to_f32(static_cast<uint16_t>(b)); });
  check_midpoints(
      0x7F7E, 0x8000, [](float f) { return f32_to_bf16(f); },
      [](uint32_t b) { return bf16_to_f32(static_cast<uint16_t>(b)); });
  check_midpoints(
      0x7E, 0x80, [](float f) { return f32_to_f8e4m3(f); },
      [](uint32_t b) { return f8e4m3_to_f32(static_cast<uint8_t>(b)); });
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);  // the midpoint to 2^16 is even there
}

TEST(DType, RandomFloatsGoToTheNearest) {
  const uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 rng(seed);
  std::vector<double> halves, eights;
  for (uint32_t b = 0; b < 0x7C00; ++b) halves.push_back(value_of(b, 5, 10));
  for (uint32_t b = 0; b < 0x7F; ++b) eights.push_back(value_of(b, 4, 3));
  const auto nearest = [](const std::vector<double>& values, double x) {
    const auto it = std::lower_bound(values.begin(), values.end(), x);
    if (it == values.end()) return values.size() - 1;
    const auto hi = static_cast<size_t>(it - values.begin());
    if (hi == 0) return hi;
    const double above = *it - x, below = x - values[hi - 1];
    return above < below || (above == below && hi % 2 == 0) ? hi : hi - 1;
  };
  for (int i = 0; i < 200000; ++i) {
    const double exponent = -30.0 + 46.0 * static_cast<double>(rng() >> 11) * 0x1p-53;
    const auto x = static_cast<float>(std::exp2(exponent));
    if (x < 65504.0f) {
      ASSERT_EQ(f32_to_f16(x), nearest(halves, x)) << x;
    }
    ASSERT_EQ(f32_to_f8e4m3(x), nearest(eights, x)) << x;
  }
}

}  // namespace
}  // namespace firesteel
