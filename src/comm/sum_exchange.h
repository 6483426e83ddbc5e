// SumExchange: the sum over ranks of equally long fp32 vectors, in the fixed order of the four K-slices.
//
// Rank r holds the sum of its own slices (DESIGN section 4), so two ranks give p0 + p1 and four ranks
// (p0 + p1) + (p2 + p3); every rank computes each element in that order and gets the same bits. Two ways to
// move the data, chosen by operation size alone: short vectors go whole to everyone, long ones among four
// ranks are summed in quarters which are then handed round (half the bytes, one more turn). The result does
// not depend on the way. Used by the thread that owns the communicator; allocates nothing.
#pragma once

#include <cstddef>
#include <span>

#include "comm/communicator.h"

namespace firesteel {

class SumExchange {
 public:
  /// Bytes that an exchange of up to `count` floats among `ranks` ranks keeps while it runs.
  static size_t buffer_bytes(int ranks, size_t count);

  /// Posts `part`, which must stay unchanged until end(); `buffer` (buffer_bytes, aligned for float) is the
  /// exchange's until then.
  Status begin(Communicator& comm, std::span<float> part, std::span<std::byte> buffer);
  /// Waits; `part` is then the sum. After an error its contents mean nothing.
  Status end();

 private:
  std::span<float> piece(std::span<float> whole, size_t rank) const;
  Communicator* comm_ = nullptr;
  std::span<float> part_;
  std::span<float> all_;  // [ranks, n] whole vectors, or [ranks, the own piece]
  bool in_pieces_ = false;
};

}  // namespace firesteel
