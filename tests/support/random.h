// Random test data that a failure can be repeated with: each test prints its seed, and --gtest_random_seed=N
// sets it. The same seed gives the same bits on every machine (integers and exact float arithmetic only).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace firesteel::test {

/// A new seed per call (or the one from --gtest_random_seed), printed with the way to repeat it.
uint64_t fresh_seed();

class Random {
 public:
  explicit Random(uint64_t seed = fresh_seed()) : state_(seed) {}

  uint64_t bits();
  /// In [0, n), n > 0.
  uint64_t below(uint64_t n);
  /// In [lo, hi].
  int64_t between(int64_t lo, int64_t hi);
  /// In [lo, hi).
  double uniform(double lo, double hi);
  /// Near-Gaussian, mean 0, variance 1, |x| < 6: a sum of twelve uniforms.
  double normal();

  std::vector<float> normals(size_t count, double std);
  std::vector<uint16_t> words(size_t count);

 private:
  uint64_t state_;
};

}  // namespace firesteel::test
