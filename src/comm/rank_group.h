// RankGroup: what rank 0's engine knows of the other ranks: the communicator of the group as it stands, or
// nothing while ranks are missing. Whoever implements it brings the group back by itself.
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace firesteel {

class RankGroup {
 public:
  virtual ~RankGroup() = default;
  /// The group that stands now; null while it is being formed. A broken communicator that was handed out is
  /// given up by the caller's dropping it, after which a new one appears here. Any thread.
  virtual std::shared_ptr<Communicator> current() = 0;
  /// Called (any thread, must not block) when the group breaks and when a new one stands. Null: nobody
  /// listens.
  virtual void set_listener(std::function<void()> changed) = 0;
};

}  // namespace firesteel
