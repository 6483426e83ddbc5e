#include "base/math64.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace firesteel {
namespace {

/// |got − want| in units of the last place of want's double.
double ulp_error(double got, long double want) {
  const double w = static_cast<double>(want);
  if (w == 0 || std::isinf(w)) return got == w ? 0 : 1e9;
  int exponent = 0;
  std::frexp(w, &exponent);
  const long double unit = std::ldexp(1.0L, std::max(exponent - 53, -1074));
  return static_cast<double>(std::fabs(static_cast<long double>(got) - want) / unit);
}

uint64_t fnv(uint64_t h, double v) {
  const uint64_t bits = std::bit_cast<uint64_t>(v);
  for (int i = 0; i < 8; ++i) h = (h ^ ((bits >> (8 * i)) & 255)) * 0x100000001B3ull;
  return h;
}

TEST(Math64, ExpIsWithinOneUlp) {
  if (sizeof(long double) <= sizeof(double) || std::numeric_limits<long double>::digits < 64)
    GTEST_SKIP() << "no wide oracle";
  std::mt19937_64 rng(1);
  double worst = 0;
  for (double span : {1e-9, 0.5, 3.0, 40.0, 744.0}) {
    std::uniform_real_distribution<double> uniform(-span, std::min(span, 709.7));
    for (int i = 0; i < 200000; ++i) {
      const double x = uniform(rng);
      worst = std::max(worst, ulp_error(exp64(x), std::exp(static_cast<long double>(x))));
    }
  }
  EXPECT_LT(worst, 1.0);
  RecordProperty("worst_ulp", std::to_string(worst));
  std::printf("exp64 worst error %.3f ulp\n", worst);
}

TEST(Math64, LogIsWithinOneUlp) {
  if (std::numeric_limits<long double>::digits < 64) GTEST_SKIP() << "no wide oracle";
  std::mt19937_64 rng(2);
  double worst = 0;
  const auto check = [&](double x) {
    worst = std::max(worst, ulp_error(log64(x), std::log(static_cast<long double>(x))));
  };
  for (int i = 0; i < 400000; ++i) {
    check(std::bit_cast<double>(rng() % 0x7FF0000000000000ull + 1));  // every exponent
    check(1.0 +
          std::ldexp(static_cast<double>(static_cast<int64_t>(rng())), -64 - static_cast<int>(rng() % 50)));
    check(std::ldexp(static_cast<double>(rng() >> 12) + 0.5, -52));  // what the noise feeds it
    check(0.5 + std::ldexp(static_cast<double>(rng() >> 11), -53) * 1.2);
  }
  EXPECT_LT(worst, 1.0);
  std::printf("log64 worst error %.3f ulp\n", worst);
}

TEST(Math64, SpecialValues) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(exp64(0.0), 1.0);
  EXPECT_EQ(exp64(-0.0), 1.0);
  EXPECT_EQ(exp64(inf), inf);
  EXPECT_EQ(exp64(-inf), 0.0);
  EXPECT_EQ(exp64(1000), inf);
  EXPECT_EQ(exp64(-746.5), 0.0);
  EXPECT_EQ(exp64(-745.0), std::numeric_limits<double>::denorm_min());
  EXPECT_TRUE(std::isnan(exp64(NAN)));
  EXPECT_EQ(log64(1.0), 0.0);
  EXPECT_EQ(log64(0.0), -inf);
  EXPECT_EQ(log64(-0.0), -inf);
  EXPECT_EQ(log64(inf), inf);
  EXPECT_TRUE(std::isnan(log64(-1.0)));
  EXPECT_TRUE(std::isnan(log64(NAN)));
  EXPECT_NEAR(log64(std::numeric_limits<double>::denorm_min()), -744.44007192138126, 1e-12);
}

TEST(Math64, BoundedFormHasTheSameBits) {
  std::mt19937_64 rng(3);
  std::uniform_real_distribution<double> uniform(-708.0, 709.0);
  std::vector<double> x(4096), y(4096);
  for (auto& v : x) v = uniform(rng);
  for (size_t i = 0; i < x.size(); ++i) y[i] = exp64_bounded(x[i]);  // a vector loop in release builds
  for (size_t i = 0; i < x.size(); ++i) {
    volatile double alone = x[i];
    ASSERT_EQ(std::bit_cast<uint64_t>(y[i]), std::bit_cast<uint64_t>(exp64(alone)));
  }
}

// The bits on every machine: a digest over fixed inputs, the same on x86-64 and aarch64, in debug and release
// builds.
TEST(Math64, BitsAreTheSameEverywhere) {
  uint64_t exp_digest = 0xCBF29CE484222325ull, log_digest = exp_digest, x = 88172645463325252ull;
  for (int i = 0; i < 100000; ++i) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    exp_digest = fnv(exp_digest, exp64(std::ldexp(static_cast<double>(static_cast<int64_t>(x)), -53)));
    log_digest = fnv(log_digest, log64(std::bit_cast<double>(x >> 2)));
  }
  EXPECT_EQ(exp_digest, 0x9ba91904144925b2ull);
  EXPECT_EQ(log_digest, 0x3d1ba99594393fe9ull);
}

}  // namespace
}  // namespace firesteel
