// The keyed sampler (spec/decoding.md section 1): every choice is a pure function of (logits, settings, seed,
// absolute position). Noise has 52 bits. Pure functions, any thread, no allocation beyond the caller's
// scratch.
//
// One order is used everywhere: logit descending, then token id ascending. −inf and NaN logits are never
// chosen; +inf counts as the largest finite float. The vocabulary may lie in one to four contiguous shards:
// each shard gives its maximum (shard_max), then its best candidates under the global maximum
// (shard_candidates), and choose() draws the token from all of them, the same one for every way to cut the
// vocabulary. sample_token() is that for one shard.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/draw.h"

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

/// What one token draw depends on besides the logits.
struct SampleKey {
  SamplingParams params;
  uint64_t seed = 0;
  int64_t position = 0;  // absolute position that the token will have
};

/// What one shard contributes; `best` is in the order and lies in the scratch that made it (or in a received
/// buffer).
struct ShardCandidates {
  std::span<const Candidate> best;
  int64_t mass = 0;       // of the whole shard
  bool complete = false;  // no token outside `best` can be kept
};

/// Scratch of one sampler, sized once for a vocabulary (all shards together).
struct SamplerScratch {
  explicit SamplerScratch(int32_t vocab);
  std::vector<float> block_max;       // maximum of each block of 64 logits, written by shard_max
  std::vector<float> block_order;     // the same, permuted by selection
  std::vector<uint64_t> keys;         // (ordered value, ~index) of collected tokens
  std::vector<Candidate> candidates;  // of this shard
  std::vector<Candidate> merged;      // of all shards
  std::vector<int64_t> histogram;     // mass by distance from the maximum
  int64_t mass = 0;                   // of this shard, kept between the stages of a row
};

/// The largest usable logit of a shard, −inf if there is none. Fills scratch.block_max for shard_candidates.
float shard_max(std::span<const float> logits, SamplerScratch& scratch);

inline constexpr int32_t kSamplerStages = 4;
/// How many candidates a shard offers at a stage (0 to 3): as many as can matter, or, for a nucleus, 64,
/// 1,024, 16,384 and at last the whole shard.
int32_t shard_capacity(const SamplingParams& params, int32_t shard_size, int32_t stage);

/// The first shard_capacity() tokens of a shard in the order (without top_k and top_p: its own winner), after
/// shard_max of the same logits. `first_id` is the id of logits[0], `global_max` the maximum of shard_max
/// over all shards. Stages of one row are asked for in turn, from 0.
ShardCandidates shard_candidates(std::span<const float> logits, int32_t first_id, const SampleKey& key,
                                 float global_max, int32_t stage, SamplerScratch& scratch);

/// The drawn token; or kNoToken if every logit is masked, kNeedMore if the nucleus may reach past the
/// candidates that some shard sent (ask again at the next stage; never at the last).
inline constexpr int32_t kNoToken = -1, kNeedMore = -2;
struct Choice {
  int32_t id = kNoToken;
  int32_t kept = 0;  // size and last id of the kept prefix of the order, where it was cut here; 0 without
  int32_t last_kept = 0;  // top_k and top_p, since then every shard cuts for itself
};
Choice choose(std::span<const ShardCandidates> shards, const SampleKey& key, float global_max,
              SamplerScratch& scratch);

/// Chooses one token from `logits` (−inf = masked). `position` is the absolute position the token will have.
/// kNoToken if all are masked.
int32_t sample_token(std::span<const float> logits, const SamplingParams& params, uint64_t seed,
                     int64_t position, SamplerScratch& scratch);

}  // namespace firesteel
