// The transform against its definition in float64, its order of arithmetic, and the column form against the
// row form.
#include "quant/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "support/random.h"

namespace firesteel {
namespace {

using test::Random;

std::vector<double> by_definition(const float* x) {
  std::vector<double> out(128);
  for (uint32_t i = 0; i < 128; ++i) {
    for (uint32_t j = 0; j < 128; ++j) out[i] += (std::popcount(i & j) & 1 ? -1.0 : 1.0) * x[j];
    out[i] /= std::sqrt(128.0);
  }
  return out;
}

TEST(Hadamard, MatchesTheDefinition) {
  Random random;
  for (int round = 0; round < 20; ++round) {
    std::vector<float> x = random.normals(128, 1.0);
    const std::vector<double> want = by_definition(x.data());
    std::vector<float> half_done = x;
    hadamard_128(x.data());
    for (int i = 0; i < 128; ++i) ASSERT_NEAR(x[i], want[i], 2e-6) << i;
    // The check sees a missing stage.
    for (int64_t h = 1; h < 64; h *= 2) {
      for (int i = 0; i < 128; ++i) {
        if (i & h) continue;
        const float a = half_done[i], b = half_done[i + h];
        half_done[i] = a + b, half_done[i + h] = a - b;
      }
    }
    double most = 0;
    for (int i = 0; i < 128; ++i) most = std::max(most, std::abs(half_done[i] * kHadamardScale - want[i]));
    ASSERT_GT(most, 0.1);
  }
}

TEST(Hadamard, IsItsOwnInverse) {
  Random random;
  const std::vector<float> x = random.normals(128 * 5, 3.0);
  std::vector<float> y = x;
  hadamard_blocks(y.data(), 128 * 5);
  EXPECT_NE(x, y);
  hadamard_blocks(y.data(), 128 * 5);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-5);
}

/// The documented order, spelled differently: every output of a stage from the pair of inputs it names.
std::vector<float> documented(std::vector<float> x, bool ascending) {
  for (int s = 0; s < 7; ++s) {
    const uint32_t h = 1u << (ascending ? s : 6 - s);
    std::vector<float> y(128);
    for (uint32_t i = 0; i < 128; ++i) y[i] = i & h ? x[i ^ h] - x[i] : x[i] + x[i ^ h];
    x = y;
  }
  for (float& v : x) v *= 0.08838834764831845f;
  return x;
}

TEST(Hadamard, BitsFollowTheDocumentedOrder) {
  Random random;
  int differ_from_descending = 0;
  for (int round = 0; round < 50; ++round) {
    std::vector<float> x = random.normals(128, 1.0);
    const std::vector<float> want = documented(x, true);
    differ_from_descending += documented(x, false) != want;
    hadamard_128(x.data());
    ASSERT_EQ(x, want);
  }
  EXPECT_EQ(differ_from_descending, 50) << "another order must show";
}

TEST(Hadamard, ColumnsHaveTheBitsOfRows) {
  Random random;
  const int64_t columns = 300, stride = 307;
  std::vector<float> matrix = random.normals(128 * stride, 1.0);
  const std::vector<float> before = matrix;
  hadamard_128_columns(matrix.data(), columns, stride);
  for (int64_t c = 0; c < stride; ++c) {
    std::vector<float> column(128);
    for (int64_t r = 0; r < 128; ++r) column[r] = before[r * stride + c];
    if (c < columns) hadamard_128(column.data());
    for (int64_t r = 0; r < 128; ++r) ASSERT_EQ(matrix[r * stride + c], column[r]) << c;
  }
}

}  // namespace
}  // namespace firesteel
