// TokenConstraint: what decides which tokens may come next in one reply, such as a grammar. The engine asks it
// for the mask of each row of the answer and tells it the tokens that were drawn.
//
// One reply's own; the engine thread of rank 0 alone calls it (other ranks receive the masks).
#pragma once

#include <cstdint>
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

}  // namespace firesteel
