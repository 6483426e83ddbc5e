#include "comm/group_plan.h"

#include <algorithm>
#include <array>

namespace firesteel {

Result<GroupPlan> settle_plan(Communicator& comm, const GroupPlan& mine, std::chrono::milliseconds patience) {
  std::array<GroupPlan, kMaxRanks> all;
  const auto ranks = static_cast<size_t>(comm.size());
  RETURN_IF_ERROR(comm.all_gather(CommOp::kSettings, std::as_bytes(std::span(&mine, 1)),
                                  std::as_writable_bytes(std::span(all).first(ranks)), patience));
  GroupPlan least = mine;
  for (const GroupPlan& plan : std::span(all).first(ranks)) {
    least.pages = std::min(least.pages, plan.pages);
    least.window = std::min(least.window, plan.window);
  }
  return least;
}

Status await_ready(Communicator& comm, std::chrono::milliseconds patience) {
  std::array<uint8_t, kMaxRanks> all{};
  const uint8_t mine = 1;
  const auto ranks = static_cast<size_t>(comm.size());
  return comm.all_gather(CommOp::kSettings, std::as_bytes(std::span(&mine, 1)),
                         std::as_writable_bytes(std::span(all).first(ranks)), patience);
}

}  // namespace firesteel
