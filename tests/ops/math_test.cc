// exp, log and their kin of the CPU backend against double: a few ulp over the whole range, extremes
// included.
#include <cmath>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"
#include "ops/cpu/math.h"
#include "ops/cpu/matrix.h"
#include "quant/hadamard.h"
#include "support/random.h"

namespace firesteel::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Distance in units of the last place of the right answer.
double ulps(float got, double want) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) == std::isnan(got) ? 0 : HUGE_VAL;
  const float nearest = static_cast<float>(want);
  if (std::isinf(nearest) || std::isinf(got)) return got == nearest ? 0 : HUGE_VAL;
  const double ulp = std::max(std::ldexp(1.0, std::ilogb(std::max(std::fabs(want), 1e-300)) - 23), 0x1p-149);
  return std::fabs(got - want) / ulp;
}

/// Walks fp32 bit patterns from 0 to infinity in odd steps, both signs.
template <typename Got, typename Want>
void sweep(Got got, Want want, double limit, float lowest, float highest, const char* what) {
  double worst = 0;
  float at = 0;
  for (uint64_t bits = 0; bits <= 0x7F800000u; bits += 1777) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const uint32_t pattern = static_cast<uint32_t>(bits) | sign;
      float x;
      std::memcpy(&x, &pattern, 4);
      if (x < lowest || x > highest) continue;
      const double off = ulps(got(x), want(double{x}));
      if (off > worst) {
        worst = off;
        at = x;
      }
    }
  }
  EXPECT_LE(worst, limit) << what << " at " << at << ": " << got(at) << " for " << want(double{at});
}

TEST(CpuMath, ExpWithinTwoUlps) {
  sweep([](float x) { return exp1(x); }, [](double x) { return std::exp(x); }, 1.5, -kInf, kInf, "exp");
  EXPECT_EQ(exp1(0.0f), 1.0f);
  EXPECT_EQ(exp1(-0.0f), 1.0f);
  EXPECT_EQ(exp1(-kInf), 0.0f);
  EXPECT_EQ(exp1(kInf), kInf);
  EXPECT_EQ(exp1(-103.0f), static_cast<float>(std::exp(-103.0)));  // subnormal
  EXPECT_TRUE(std::isnan(exp1(NAN)));
}
TEST(CpuMath, LogWithinTwoUlps) {
  sweep([](float x) { return log1(x); }, [](double x) { return std::log(x); }, 1.5, 0, kInf, "log");
  EXPECT_EQ(log1(1.0f), 0.0f);
  EXPECT_EQ(log1(0.0f), -kInf);
  EXPECT_TRUE(std::isnan(log1(-1.0f)));
  EXPECT_TRUE(std::isnan(log1(NAN)));
}
TEST(CpuMath, SigmoidWithinThreeUlps) {
  sweep([](float x) { return sigmoid1(x); }, [](double x) { return 1 / (1 + std::exp(-x)); }, 2.5, -kInf,
        kInf, "sigmoid");
  EXPECT_EQ(sigmoid1(0.0f), 0.5f);
  EXPECT_TRUE(std::isnan(sigmoid1(NAN)));
}
TEST(CpuMath, SoftplusWithinThreeUlps) {
  sweep([](float x) { return softplus1(x); }, [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); },
        3, -kInf, kInf, "softplus");
  EXPECT_TRUE(std::isnan(softplus1(NAN)));
}
TEST(CpuMath, SiluWithinFourUlps) {
  const auto silu1 = [](float x) {
    alignas(64) float t[kLanes];
    store16(silu16(set16(x)), t);
    return t[5];
  };
  sweep(
      silu1, [](double x) { return x / (1 + std::exp(-x)); }, 4, -87.0f, kInf, "silu");
  // Below, the sigmoid is subnormal: exact to a hundred of the smallest numbers.
  for (float x = -87.0f; x > -120.0f; x -= 0.01f) {
    EXPECT_NEAR(silu1(x), x / (1 + std::exp(-double{x})), 120 * 0x1p-149);
  }
  EXPECT_TRUE(std::isnan(silu1(NAN)));
}

TEST(CpuMath, ScalarsHaveTheBitsOfVectors) {
  test::Random random;
  for (int round = 0; round < 2000; ++round) {
    float x[kLanes], e[kLanes], s[kLanes], p[kLanes];
    for (float& v : x) v = static_cast<float>(random.normal() * 20);
    store16(exp16(load16(x)), e);
    store16(sigmoid16(load16(x)), s);
    store16(softplus16(load16(x)), p);
    for (size_t i = 0; i < kLanes; ++i) {
      ASSERT_EQ(exp1(x[i]), e[i]);
      ASSERT_EQ(sigmoid1(x[i]), s[i]);
      ASSERT_EQ(softplus1(x[i]), p[i]);
    }
  }
}

TEST(CpuMath, RecordedBits) {
  // Recorded on x86-64; the same on AArch64.
  uint64_t h = 0xCBF29CE484222325u;
  for (uint64_t pattern = 0; pattern <= 0xFFFFFFFFu; pattern += 65521) {
    const uint32_t from = static_cast<uint32_t>(pattern);
    float x;
    std::memcpy(&x, &from, 4);
    for (float y : {exp1(x), log1(std::fabs(x)), sigmoid1(x), softplus1(x), rsqrt1(std::fabs(x))}) {
      uint32_t bits;
      if (std::isnan(y)) y = 1234;  // which NaN is not defined
      std::memcpy(&bits, &y, 4);
      h = (h ^ bits) * 0x100000001B3u;
    }
  }
  EXPECT_EQ(h, 15286124437104930256u);
}

TEST(CpuMath, TheHorizontalSumIsOneTree) {
  test::Random random;
  for (int round = 0; round < 200; ++round) {
    float x[4][kLanes], want[4];
    for (auto& row : x) {
      for (float& v : row) v = static_cast<float>(random.normal());
    }
    for (int r = 0; r < 4; ++r) {
      float f[8], g[4];
      for (int i = 0; i < 8; ++i) f[i] = x[r][i] + x[r][i + 8];
      for (int i = 0; i < 4; ++i) g[i] = f[i] + f[i + 4];
      want[r] = (g[0] + g[2]) + (g[1] + g[3]);
      ASSERT_EQ(sum16(load16(x[r])), want[r]);
    }
    float four[4];
    hn::StoreU(sum16x4(load16(x[0]), load16(x[1]), load16(x[2]), load16(x[3])), D4(), four);
    for (int r = 0; r < 4; ++r) ASSERT_EQ(four[r], want[r]);
  }
}

TEST(CpuMath, RotationsHaveTheBitsOfTheCodecsTransform) {
  test::Random random;
  const std::vector<float> x = random.normals(256, 1), scale = random.normals(256, 1);
  std::vector<float> got(256), want(256);
  rotate_input(scale.data(), x.data(), 256, got.data());
  for (size_t i = 0; i < 256; ++i) want[i] = scale[i] * x[i];
  hadamard_blocks(want.data(), 256);
  EXPECT_EQ(got, want);
  got.assign(x.begin(), x.begin() + 128);
  want = got;
  rotate_output(scale.data(), got.data());
  hadamard_128(want.data());
  for (size_t i = 0; i < 128; ++i) want[i] *= scale[i];
  EXPECT_EQ(got, want);
}

TEST(CpuMath, DotPadsItsTailWithZeros) {
  test::Random random;
  for (size_t n = 0; n < 40; ++n) {
    std::vector<float> a = random.normals(n, 1), b = random.normals(n, 1);
    float lane[kLanes] = {};
    for (size_t i = 0; i < n; ++i) lane[i % kLanes] = std::fma(a[i], b[i], lane[i % kLanes]);
    ASSERT_EQ(dot(a.data(), b.data(), n), sum16(load16(lane)));
  }
}

}  // namespace
}  // namespace firesteel::cpu
