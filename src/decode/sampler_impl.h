// Inside of the keyed sampler, templated on the width of the noise: sampler.cc takes 52 bits, tests also the
// older 53.
#pragma once

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "base/check.h"
#include "base/math64.h"
#include "decode/sampler.h"

namespace firesteel::sampler_internal {

inline constexpr float kMasked = -std::numeric_limits<float>::infinity();
inline constexpr int32_t kBlock = 64;

// ----------------------------------------------------------------------------------------------- noise

inline uint64_t mix(uint64_t x) {  // the splitmix64 finaliser
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// The part of the hash that a whole row shares.
inline uint64_t row_key(uint64_t seed, int64_t position) {
  return mix(mix(seed + 0x9E3779B97F4A7C15ull) ^ (static_cast<uint64_t>(position) * 0xD1B54A32D192ED03ull));
}
inline uint64_t token_hash(uint64_t row, int32_t id) { return mix(row ^ static_cast<uint64_t>(id)); }

// bound() is a cheap upper bound of gumbel(): with v = 1 − u, −ln u ≥ v, so g ≤ −ln v, and v is at least a
// power of two that the leading zeros of ~hash give. The slack covers the rounding of the logarithms.
inline constexpr double kBoundLn2 = 0.6931471806;
inline constexpr double kBoundSlack = 1e-9;

struct Noise52 {
  static double gumbel(uint64_t hash) {
    return -log64(-log64((static_cast<double>(hash >> 12) + 0.5) * 0x1p-52));
  }
  static double bound(uint64_t hash) {
    return static_cast<double>(53 - std::bit_width(~hash >> 12)) * kBoundLn2 + kBoundSlack;
  }
  static constexpr double kMax = 36.7369;
};

struct Noise53 {  // the form of the first published engines; +inf with probability 2^-53
  static double gumbel(uint64_t hash) {
    return -log64(-log64(static_cast<double>(hash >> 11) * 0x1p-53 + 0x1p-54));
  }
  static double bound(uint64_t hash) {
    const int bits = std::bit_width(~hash >> 11);
    return bits == 0 ? std::numeric_limits<double>::infinity() : (54 - bits) * kBoundLn2 + kBoundSlack;
  }
  static constexpr double kMax = std::numeric_limits<double>::infinity();
};

// ------------------------------------------------------------------------------------------------- the
// settings

enum class Path : uint8_t {
  kGreedy,
  kTopK,     // path B
  kNucleus,  // path C with top_p
  kOpen,     // path C without: everything, or everything down to min_p
};

inline bool top_p_active(const SamplingParams& p) { return p.top_p > 0.0 && p.top_p < 1.0; }

inline Path path_of(const SamplingParams& p) {
  if (!(p.temperature > 0.0)) return Path::kGreedy;
  if (p.top_k >= 1) return Path::kTopK;
  return top_p_active(p) ? Path::kNucleus : Path::kOpen;
}

inline double temperature_of(const SamplingParams& p) { return std::max(p.temperature, 1e-6); }
inline float finite(float v) { return std::min(v, FLT_MAX); }
inline double scaled(float v, double temperature) { return static_cast<double>(v) / temperature; }

/// s_i ≥ this is what min_p keeps.
inline double min_p_floor(const SamplingParams& p, double best) {
  return p.min_p > 0.0 ? best + log64(p.min_p) : -std::numeric_limits<double>::infinity();
}

/// ⌈top_p · total⌉ with top_p as the exact rational of its double; total < 2^58.
inline int64_t nucleus_need(double top_p, int64_t total) {
  const uint64_t bits = std::bit_cast<uint64_t>(top_p);
  const int exponent = static_cast<int>(bits >> 52);  // below 1023, since top_p < 1
  uint64_t mantissa = bits & 0x000FFFFFFFFFFFFFull;
  if (exponent > 0) mantissa |= 0x0010000000000000ull;
  const int shift = 1075 - std::max(exponent, 1);  // top_p = mantissa · 2^-shift
  const unsigned __int128 product = static_cast<unsigned __int128>(mantissa) * static_cast<uint64_t>(total);
  if (shift >= 128) return product != 0 ? 1 : 0;
  const unsigned __int128 one = 1;
  return static_cast<int64_t>((product + ((one << shift) - 1)) >> shift);
}

/// ⌊exp(s − M) · 2^40⌋ for s ≤ M; below −28 it is 0, so the clamp changes nothing (and takes NaN to 0). An s
/// above M is that of an infinite logit and counts as M. Without branches, so that a loop over it becomes
/// vector code.
inline int64_t fixed_mass(double s, double best) {
  double d = s - best;
  d = d > -28.0 ? d : -28.0;
  d = d < 0.0 ? d : 0.0;
  const double e = exp64_bounded(d) * 0x1p40;
  // ⌊e⌋ without a conversion instruction that AVX2 lacks: 0 ≤ e ≤ 2^40.
  const double rounded = (e + 0x1p52) - 0x1p52;
  const double floored = rounded - (rounded > e ? 1.0 : 0.0);
  return static_cast<int64_t>(std::bit_cast<uint64_t>(floored + 0x1p52) & 0x000FFFFFFFFFFFFFull);
}

// ------------------------------------------------------------------------------------------- the order

/// Larger key = earlier in the order. `index` is below 2^32.
inline uint64_t order_key(float v, uint32_t index) {
  const uint32_t bits = std::bit_cast<uint32_t>(v + 0.0f);  // −0 becomes +0
  const uint32_t ordered = (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
  return (static_cast<uint64_t>(ordered) << 32) | (~index & 0xFFFFFFFFull);
}
inline uint64_t order_key(const Candidate& c) { return order_key(c.value, static_cast<uint32_t>(c.id)); }

/// Keeps the candidate with the largest s + g; exact ties go to the earlier in the order.
template <typename Noise>
class Winner {
 public:
  explicit Winner(uint64_t row) : row_(row) {}
  void offer(float value, int32_t id, double s) {
    const uint64_t hash = token_hash(row_, id);
    if (id_ >= 0 && s + Noise::bound(hash) < score_) return;
    const double score = s + Noise::gumbel(hash);
    if (id_ < 0 || score > score_ ||
        (score == score_ &&
         order_key(value, static_cast<uint32_t>(id)) > order_key(value_, static_cast<uint32_t>(id_))))
      score_ = score, value_ = value, id_ = id;
  }
  /// False if nothing with this s or less can win any more.
  bool can_win(double s) const { return id_ < 0 || s + Noise::kMax >= score_; }
  int32_t id() const { return id_; }
  float value() const { return value_; }

 private:
  uint64_t row_;
  double score_ = 0;
  float value_ = 0;
  int32_t id_ = -1;
};

// ------------------------------------------------------------------------------------------- one shard

int64_t shard_mass(std::span<const float> logits, double temperature, double best,
                   const SamplerScratch& scratch);
/// Writes the first `capacity` tokens in the order to scratch.candidates (mass 0); returns how many there
/// are.
int32_t collect_best(std::span<const float> logits, int32_t first_id, int32_t capacity,
                     SamplerScratch& scratch);

template <typename Noise>
ShardCandidates open_winner(std::span<const float> logits, int32_t first_id, const SampleKey& key,
                            double best, double temperature, SamplerScratch& scratch) {
  const double floor = min_p_floor(key.params, best);
  Winner<Noise> winner(row_key(key.seed, key.position));
  const int32_t n = static_cast<int32_t>(logits.size());
  for (int32_t b = 0; b * kBlock < n; ++b) {
    const double top = scaled(scratch.block_max[static_cast<size_t>(b)], temperature);
    if (top < floor || !winner.can_win(top)) continue;
    for (int32_t i = b * kBlock, end = std::min(n, i + kBlock); i < end; ++i) {
      if (!(logits[static_cast<size_t>(i)] > kMasked)) continue;
      const float v = finite(logits[static_cast<size_t>(i)]);
      const double s = scaled(v, temperature);
      if (s >= floor) winner.offer(v, first_id + i, s);
    }
  }
  if (winner.id() < 0) return {.best = {}, .mass = 0, .complete = true};
  scratch.candidates[0] = {winner.value(), winner.id(), 0};
  return {.best = std::span(scratch.candidates).first(1), .mass = 0, .complete = true};
}

template <typename Noise>
ShardCandidates shard_candidates(std::span<const float> logits, int32_t first_id, const SampleKey& key,
                                 float global_max, int32_t stage, SamplerScratch& scratch) {
  if (!(global_max > kMasked)) return {.best = {}, .mass = 0, .complete = true};
  const double temperature = temperature_of(key.params);
  const double best = scaled(finite(global_max), temperature);
  const Path path = path_of(key.params);
  // min_p above 1 keeps the first token alone; the order finds it without noise.
  if (path == Path::kOpen && !(key.params.min_p > 1.0))
    return open_winner<Noise>(logits, first_id, key, best, temperature, scratch);
  const int32_t capacity = shard_capacity(key.params, static_cast<int32_t>(logits.size()), stage);
  const int32_t count = collect_best(logits, first_id, capacity, scratch);
  ShardCandidates out{.best = std::span(scratch.candidates).first(static_cast<size_t>(count)),
                      .mass = 0,
                      .complete = count < capacity || count == static_cast<int32_t>(logits.size())};
  if (path == Path::kNucleus) {
    if (stage == 0) scratch.mass = shard_mass(logits, temperature, best, scratch);
    out.mass = scratch.mass;
    for (Candidate& c : std::span(scratch.candidates).first(static_cast<size_t>(count)))
      c.mass = fixed_mass(scaled(c.value, temperature), best);
  }
  return out;
}

// --------------------------------------------------------------------------------------------- merging

/// Walks the candidates of up to four shards in the order.
class Merge {
 public:
  explicit Merge(std::span<const ShardCandidates> shards) : shards_(shards) { CHECK(shards.size() <= 4); }
  /// The next candidate, or null at the end. After a candidate that was the last of an incomplete shard what
  /// follows is not known: open() turns false.
  const Candidate* next() {
    const Candidate* first = nullptr;
    size_t from = 0;
    for (size_t r = 0; r < shards_.size(); ++r) {
      if (at_[r] == shards_[r].best.size()) continue;
      const Candidate& c = shards_[r].best[at_[r]];
      if (first == nullptr || order_key(c) > order_key(*first)) first = &c, from = r;
    }
    if (first != nullptr && ++at_[from] == shards_[from].best.size() && !shards_[from].complete)
      known_ = false;
    return first;
  }
  bool known() const { return known_; }

 private:
  std::span<const ShardCandidates> shards_;
  size_t at_[4] = {0, 0, 0, 0};
  bool known_ = true;
};

template <typename Noise>
Choice draw(std::span<const Candidate> kept, const SampleKey& key, double temperature) {
  Winner<Noise> winner(row_key(key.seed, key.position));
  for (const Candidate& c : kept) {
    const double s = scaled(c.value, temperature);
    if (!winner.can_win(s)) break;  // the rest is lower still
    winner.offer(c.value, c.id, s);
  }
  return {winner.id(), static_cast<int32_t>(kept.size()), kept.back().id};
}

/// Path B: top_k, then top_p over the survivors, then min_p.
template <typename Noise>
Choice choose_top_k(std::span<const ShardCandidates> shards, const SampleKey& key, SamplerScratch& scratch) {
  const double temperature = temperature_of(key.params);
  Merge merge(shards);
  size_t n = 0;
  for (const size_t k = static_cast<size_t>(key.params.top_k); n < k && n < scratch.merged.size(); ++n) {
    const Candidate* c = merge.next();
    if (c == nullptr) break;
    scratch.merged[n] = *c;
  }
  if (n == 0) return {};
  const std::span<const Candidate> first(scratch.merged.data(), n);
  const double best = scaled(first[0].value, temperature);
  size_t keep = n;
  if (top_p_active(key.params)) {
    const auto weight = [&](const Candidate& c) { return exp64(scaled(c.value, temperature) - best); };
    double sum = 0, cumulated = 0;
    for (const Candidate& c : first) sum += weight(c);
    for (keep = 0; keep < n;) {
      cumulated += weight(first[keep++]) / sum;
      if (!(cumulated < key.params.top_p)) break;
    }
  }
  const double floor = min_p_floor(key.params, best);
  while (keep > 1 && scaled(first[keep - 1].value, temperature) < floor) --keep;
  return draw<Noise>(first.first(keep), key, temperature);
}

/// Path C with top_p: the fixed-point nucleus.
template <typename Noise>
Choice choose_nucleus(std::span<const ShardCandidates> shards, const SampleKey& key, float global_max,
                      SamplerScratch& scratch) {
  const double temperature = temperature_of(key.params);
  const double floor = min_p_floor(key.params, scaled(finite(global_max), temperature));
  int64_t total = 0, cumulated = 0;
  for (const ShardCandidates& shard : shards) total += shard.mass;
  const int64_t need = nucleus_need(key.params.top_p, total);
  Merge merge(shards);
  size_t keep = 0;
  for (;;) {
    if (!merge.known()) return {kNeedMore, 0, 0};
    const Candidate* c = merge.next();
    if (c == nullptr || (keep > 0 && scaled(c->value, temperature) < floor)) break;
    scratch.merged[keep++] = *c;
    cumulated += c->mass;
    if (cumulated >= need) break;
  }
  if (keep == 0) return {};
  return draw<Noise>(std::span<const Candidate>(scratch.merged.data(), keep), key, temperature);
}

template <typename Noise>
Choice choose(std::span<const ShardCandidates> shards, const SampleKey& key, float global_max,
              SamplerScratch& scratch) {
  switch (path_of(key.params)) {
    case Path::kTopK:
      return choose_top_k<Noise>(shards, key, scratch);
    case Path::kNucleus:
      return choose_nucleus<Noise>(shards, key, global_max, scratch);
    case Path::kGreedy: {
      const Candidate* c = Merge(shards).next();
      return c == nullptr ? Choice{} : Choice{c->id, 1, c->id};
    }
    case Path::kOpen:
      break;
  }
  if (key.params.min_p > 1.0) {
    const Candidate* c = Merge(shards).next();
    return c == nullptr ? Choice{} : Choice{c->id, 0, 0};
  }
  // Each shard sent its own winner; the winner of the winners.
  Winner<Noise> winner(row_key(key.seed, key.position));
  for (const ShardCandidates& shard : shards)
    for (const Candidate& c : shard.best)
      winner.offer(c.value, c.id, scaled(c.value, temperature_of(key.params)));
  return {winner.id(), 0, 0};
}

// ------------------------------------------------------------------------------------------------- one
// wide shard

// A flat row keeps tens of thousands of tokens; sorting them would take most of the time of a draw. Their
// order matters only where the nucleus ends: masses are added up by distance from the maximum, and only the
// tokens of the step in which the sum reaches `need` are sorted.
inline constexpr double kStepsPerUnit = 16;
inline constexpr int32_t kSteps = 28 * 16 + 1;  // exp(−28) · 2^40 < 1

/// Step of a token with this s; falls with s, equal for equal logits.
inline int32_t step_of(double s, double best) {
  const double steps = (best - s) * kStepsPerUnit;
  return steps < kSteps - 1 ? static_cast<int32_t>(steps) : kSteps - 1;
}

/// Fills scratch.histogram with the mass of each step.
void mass_by_step(std::span<const float> logits, double temperature, double best, SamplerScratch& scratch);

template <typename Noise>
Choice choose_wide_nucleus(std::span<const float> logits, const SampleKey& key, float global_max,
                           SamplerScratch& scratch) {
  const double temperature = temperature_of(key.params);
  const double best = scaled(finite(global_max), temperature);
  const double floor = min_p_floor(key.params, best);
  const int64_t need = nucleus_need(key.params.top_p, scratch.mass);
  mass_by_step(logits, temperature, best, scratch);
  int32_t last_step = 0;
  int64_t cumulated = 0;
  while (cumulated + scratch.histogram[static_cast<size_t>(last_step)] < need)
    cumulated += scratch.histogram[static_cast<size_t>(last_step++)];

  Winner<Noise> winner(row_key(key.seed, key.position));
  Choice choice;
  uint64_t last_key = ~uint64_t{0};
  const auto keep = [&](float v, int32_t id, double s, uint64_t order) {
    ++choice.kept;
    if (order < last_key) last_key = order, choice.last_kept = id;
    winner.offer(v, id, s);
  };
  size_t in_step = 0;
  const int32_t n = static_cast<int32_t>(logits.size());
  for (int32_t b = 0; b * kBlock < n; ++b) {
    const double top = scaled(scratch.block_max[static_cast<size_t>(b)], temperature);
    if (top < floor || step_of(top, best) > last_step) continue;
    for (int32_t i = b * kBlock, end = std::min(n, i + kBlock); i < end; ++i) {
      if (!(logits[static_cast<size_t>(i)] > kMasked)) continue;
      const float v = finite(logits[static_cast<size_t>(i)]);
      const double s = scaled(v, temperature);
      const int32_t step = step_of(s, best);
      if (step > last_step || s < floor) continue;
      const uint64_t order = order_key(v, static_cast<uint32_t>(i));
      if (step == last_step)
        scratch.keys[in_step++] = order;
      else
        keep(v, i, s, order);
    }
  }
  const auto begin = scratch.keys.begin();
  std::sort(begin, begin + static_cast<ptrdiff_t>(in_step), std::greater<>());
  for (size_t k = 0; k < in_step && cumulated < need; ++k) {
    const uint32_t i = ~static_cast<uint32_t>(scratch.keys[k]);
    const float v = finite(logits[i]);
    const double s = scaled(v, temperature);
    cumulated += fixed_mass(s, best);
    keep(v, static_cast<int32_t>(i), s, scratch.keys[k]);
  }
  choice.id = winner.id();
  return choice;
}

template <typename Noise>
Choice sample_one_shard(std::span<const float> logits, const SampleKey& key, SamplerScratch& scratch) {
  const float best = firesteel::shard_max(logits, scratch);
  const ShardCandidates shard = shard_candidates<Noise>(logits, 0, key, best, 0, scratch);
  const Choice choice = choose<Noise>(std::span(&shard, 1), key, best, scratch);
  return choice.id == kNeedMore ? choose_wide_nucleus<Noise>(logits, key, best, scratch) : choice;
}

}  // namespace firesteel::sampler_internal
