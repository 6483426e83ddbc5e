// Random weights of a plausible size, as a MatrixSource: for measuring speed without a checkpoint. An element
// follows from the seed and its place in the whole matrix, so that ranks hold parts of the same weights.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace firesteel {

/// Plain matrices: uniform with the standard deviation 1/√k. EXL3: random bits (which decode to near-Gaussian
/// values), signs as input scales, output scales that give the same deviation.
class RandomSource : public MatrixSource {
 public:
  RandomSource(const MatrixSpec& spec, const RandomWeights& weights) : spec_(spec), weights_(weights) {}
  Status read_rows(MatrixPart part, int64_t first, int64_t count, void* dst) override;

 private:
  MatrixSpec spec_;
  RandomWeights weights_;
};

/// splitmix64: the i-th 64 random bits of a seed.
inline uint64_t random_bits(uint64_t seed, uint64_t i) {
  uint64_t x = seed + (i + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

/// Root mean square of what random EXL3 trellis bits decode to (spec/exl3.md 2.3).
float random_trellis_deviation(Codebook codebook);

}  // namespace firesteel
