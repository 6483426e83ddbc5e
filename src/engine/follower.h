// Follower: the engine of the ranks above 0. It plans nothing and talks to nobody but the group: each round's
// record comes from rank 0, is applied to the same state, and gives the same tokens.
//
// One thread calls it. Between two groups it keeps nothing: rank 0 ended every request when the group broke.
#pragma once

#include "comm/communicator.h"
#include "engine/executor.h"
#include "engine/record_codec.h"
#include "engine/round.h"

namespace firesteel {

class Follower {
 public:
  /// `window` and `pages` as agreed with rank 0; config as rank 0's.
  Follower(Model& model, const EngineConfig& config, int32_t window, int32_t pages);

  /// Applies rounds until rank 0 stops in order (success) or the group breaks (why).
  Status run(Communicator& comm);

 private:
  Status round(std::span<const std::byte> bytes, bool* stop);
  void clear(const Error& why);

  EngineState state_;
  Executor executor_;
  RoundRecord record_;
  RoundOutcome outcome_;
  KnownRequests known_;
};

}  // namespace firesteel
