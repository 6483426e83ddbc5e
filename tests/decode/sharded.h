// Draws a token from a vocabulary cut into contiguous shards, each with its own scratch, as several ranks
// would.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "decode/sampler_impl.h"

namespace firesteel {

/// `ends`: the end of each shard; `stages_used`, if given, counts the gathers.
template <typename Noise>
Choice sample_sharded(std::span<const float> logits, const SampleKey& key, std::span<const int32_t> ends,
                      int* stages_used = nullptr) {
  const int32_t vocab = static_cast<int32_t>(logits.size());
  std::vector<SamplerScratch> scratch;
  float best = -INFINITY;
  std::vector<std::span<const float>> parts;
  int32_t from = 0;
  for (const int32_t end : ends) {
    parts.push_back(logits.subspan(static_cast<size_t>(from), static_cast<size_t>(end - from)));
    scratch.emplace_back(end - from + 1);
    best = std::max(best, shard_max(parts.back(), scratch.back()));
    from = end;
  }
  SamplerScratch merge_scratch(vocab);
  for (int32_t stage = 0;; ++stage) {
    std::vector<ShardCandidates> shards;
    std::vector<std::vector<Candidate>> sent;  // as after a gather: nothing lies in the senders' scratch
    sent.reserve(parts.size());
    from = 0;
    for (size_t r = 0; r < parts.size(); ++r) {
      const int32_t size = static_cast<int32_t>(parts[r].size());
      ShardCandidates mine =
          sampler_internal::shard_candidates<Noise>(parts[r], from, key, best, stage, scratch[r]);
      sent.emplace_back(mine.best.begin(), mine.best.end());
      mine.best = sent.back();
      shards.push_back(mine);
      from += size;
    }
    const Choice choice = sampler_internal::choose<Noise>(shards, key, best, merge_scratch);
    if (stages_used != nullptr) *stages_used = stage + 1;
    if (choice.id != kNeedMore) return choice;
  }
}

/// ⌈V / n⌉ ids a shard.
inline std::vector<int32_t> even_shards(int32_t vocab, int32_t n) {
  std::vector<int32_t> ends;
  for (int32_t r = 1; r <= n; ++r) ends.push_back(std::min(vocab, r * ((vocab + n - 1) / n)));
  return ends;
}

}  // namespace firesteel
