// The keyed sampler (spec/decoding.md section 1): every choice is a pure function of (logits, settings, seed, absolute
// position). Noise has 52 bits. Pure functions, any thread, no allocation beyond the caller's scratch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace firesteel {

struct SamplingParams {
  double temperature = 0.0;  // ≤ 0: greedy
  int32_t top_k = 0;         // ≤ 0: off
  double top_p = 1.0;        // active in (0, 1)
  double min_p = 0.0;        // active when > 0
  std::optional<uint64_t> seed;
};

/// spec 1.2: SHA-256 of "id,id,…|salt", first 8 bytes little-endian, top bit cleared.
uint64_t prompt_seed(std::span<const int32_t> prompt, int64_t salt = 0);

/// spec 1.3: standard Gumbel noise; u = ((h >> 12) + 0.5) · 2^-52.
double keyed_noise(uint64_t seed, int64_t position, int32_t id);

/// Scratch of one sampler, sized once for a vocabulary.
struct SamplerScratch {
  explicit SamplerScratch(int32_t vocab);
  std::vector<uint64_t> keys;
  std::vector<double> values;
  std::vector<int64_t> mass;
};

/// Chooses one token from `logits` (−inf = masked). `position` is the absolute position the token will have.
int32_t sample_token(std::span<const float> logits, const SamplingParams& params, uint64_t seed, int64_t position,
                     SamplerScratch& scratch);

}  // namespace firesteel
