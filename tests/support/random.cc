#include "support/random.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "support/hash_weights.h"

namespace firesteel::test {

uint64_t fresh_seed() {
  const int chosen = GTEST_FLAG_GET(random_seed);
  // GoogleTest takes seeds up to 99999.
  const uint64_t seed = chosen > 0 ? static_cast<uint64_t>(chosen) : 1 + std::random_device{}() % 99999;
  std::printf("seed %llu (repeat with --gtest_random_seed=%llu)\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(seed));
  return seed;
}

uint64_t Random::bits() { return hash_at(state_++ * 0xD1342543DE82EF95, 0); }

uint64_t Random::below(uint64_t n) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(bits()) * n >> 64);
}

int64_t Random::between(int64_t lo, int64_t hi) {
  return lo + static_cast<int64_t>(below(static_cast<uint64_t>(hi - lo) + 1));
}

double Random::uniform(double lo, double hi) {
  return lo + (hi - lo) * (static_cast<double>(bits() >> 11) * 0x1p-53);
}

double Random::normal() {
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(bits() >> 32) * 0x1p-32;
  return sum - 6.0;
}

std::vector<float> Random::normals(size_t count, double std) {
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(std * normal());
  return out;
}

std::vector<uint16_t> Random::words(size_t count) {
  std::vector<uint16_t> out(count);
  for (uint16_t& x : out) x = static_cast<uint16_t>(bits());
  return out;
}

}  // namespace firesteel::test
