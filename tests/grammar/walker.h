// Random replies: tokens drawn from the masks until the grammar ends them.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "grammar/matcher.h"

namespace firesteel::grammar {

struct Walk {
  std::vector<int32_t> tokens;  // with the end id when it was reached
  std::string text;
  bool finished = false;
  bool stuck = false;  // an empty mask, or an allowed token that was refused
};

inline std::vector<int32_t> allowed_ids(const std::vector<uint32_t>& mask) {
  std::vector<int32_t> ids;
  for (size_t w = 0; w < mask.size(); ++w) {
    for (uint32_t rest = mask[w]; rest != 0; rest &= rest - 1)
      ids.push_back(static_cast<int32_t>(w * 32 + static_cast<size_t>(__builtin_ctz(rest))));
  }
  return ids;
}

/// `fill(matcher, mask)` fills the mask before every choice. After `free_tokens` the walk takes what closes
/// strings and containers, so that it ends.
template <typename Fill>
Walk walk_masks(Matcher* matcher, std::mt19937_64* random, size_t free_tokens, size_t most_tokens,
                Fill&& fill) {
  const Vocabulary& vocabulary = matcher->grammar().vocabulary();
  std::vector<uint32_t> mask(vocabulary.mask_words());
  Walk walk;
  while (walk.tokens.size() < most_tokens && !walk.finished) {
    fill(*matcher, mask);
    const std::vector<int32_t> ids = allowed_ids(mask);
    if (ids.empty()) {
      walk.stuck = true;
      break;
    }
    int32_t chosen = ids[(*random)() % ids.size()];
    const bool closing = walk.tokens.size() >= free_tokens;
    // Rare tokens matter most: half of the time one of the single bytes, which are the first 256 ids.
    const auto bytes_end = std::lower_bound(ids.begin(), ids.end(), 256);
    if (!closing && (*random)() % 2 == 0 && bytes_end != ids.begin())
      chosen = ids[(*random)() % static_cast<size_t>(bytes_end - ids.begin())];
    if (closing) {
      // Ends first, then what closes, then what is harmless, then what opens more.
      const bool shut = (*random)() % 3 != 0;
      const auto rank = [&](int32_t id) -> uint64_t {  // the lowest is taken
        if (vocabulary.is_end(id)) return 0;
        if (id >= 256) return 400;
        const char c = static_cast<char>(id);
        const uint64_t any = (*random)() % 64;
        if (shut && std::string_view("\"}]").find(c) != std::string_view::npos) return 1 + any % 3;
        if (std::string_view(" \t\n,[{\\").find(c) != std::string_view::npos) return 200 + any;
        return 100 + any;
      };
      uint64_t best = 1000;
      for (int32_t id : ids) {
        if (id >= 256 && id != ids.back()) continue;
        const uint64_t own = rank(id);
        if (own >= best) continue;
        best = own;
        chosen = id;
      }
    }
    if (!matcher->accept(chosen)) {
      walk.stuck = true;
      break;
    }
    walk.tokens.push_back(chosen);
    walk.text += vocabulary.bytes(chosen);
    walk.finished = matcher->is_finished();
  }
  return walk;
}

}  // namespace firesteel::grammar
