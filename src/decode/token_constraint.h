// TokenConstraint: what decides which tokens may come next in one reply, such as a grammar. The engine asks it
// for the mask of each row of the answer and tells it the tokens that were drawn.
//
// One reply's own; the engine thread of rank 0 alone calls it (other ranks receive the masks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace firesteel {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  /// Bit i % 32 of word i / 32: token i may come next. Overwrites all of `mask`. Allocates nothing that grows
  /// with the length of the reply.
  virtual void fill_mask(std::span<uint32_t> mask) = 0;
  /// False: the token does not fit, nothing changed. Never for a token of the last mask.
  virtual bool accept(int32_t token) = 0;
};

inline size_t mask_words(int32_t vocab) { return (static_cast<size_t>(vocab) + 31) / 32; }

/// −∞ for the tokens that may not come; `logits` are those of ids [first_id, first_id + size).
inline void apply_mask(std::span<const uint32_t> mask, int32_t first_id, std::span<float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    const size_t id = static_cast<size_t>(first_id) + i;
    if ((mask[id >> 5] >> (id & 31) & 1u) == 0) logits[i] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace firesteel
