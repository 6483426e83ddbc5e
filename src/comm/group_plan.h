// What ranks settle between being connected and serving: the pages and the window that all of them have room
// for, and that all have loaded their weights. Called on every rank of a group in the same order.
#pragma once

#include <chrono>
#include <cstdint>

#include "comm/communicator.h"

namespace firesteel {

/// How long ranks wait for each other to read their weights: those of the largest models take minutes.
inline constexpr std::chrono::minutes kLoadPatience{60};

struct GroupPlan {
  int64_t pages = 0, window = 0;
};

/// The least of what the ranks bring. Loading may take minutes: ranks wait up to `patience` for each other.
Result<GroupPlan> settle_plan(Communicator& comm, const GroupPlan& mine, std::chrono::milliseconds patience);
/// Returns when every rank is ready.
Status await_ready(Communicator& comm, std::chrono::milliseconds patience);

}  // namespace firesteel
