// Several processes that share one model: what the command line says of them, and both sides of starting.
//
// With --ranks alone this process is rank 0 and starts the others on this machine (they live and die with it
// and are restarted when they fail); with --rank and --leader each process is started by whoever runs the
// machines.
#pragma once

#include <memory>
#include <string>

#include "app/commands.h"
#include "app/open_model.h"
#include "comm/leader_group.h"
#include "engine/round.h"

namespace firesteel {

inline constexpr uint16_t kLeaderPort = 29551;

/// Checks --ranks, --rank and --leader together. kInvalidArgument names the option.
Status check_rank_options(const RankOptions& ranks);

/// A model opened on rank 0, with the ranks that share it. Members are destroyed in reverse order.
class RankLauncher;
struct LedModel {
  LedModel();
  ~LedModel();
  LedModel(LedModel&&) noexcept;
  OpenModel open;
  std::unique_ptr<LeaderGroup> group;      // null where there is one rank
  std::unique_ptr<RankLauncher> launcher;  // of the ranks on this machine
};

/// Rank 0 (of 1, 2 or 4): waits for the other ranks, starting them if it is to, settles the plan with them,
/// loads. `engine` gives the settings that all must share and receives the pages and the window.
Result<LedModel> open_led_model(const ModelOptions& model, const RankOptions& ranks,
                                const OpenRequest& request, EngineConfig* engine);

/// A rank above 0: serves its group until killed, joining again whenever rank 0 comes back. Returns only with
/// an error that waiting does not cure.
Status follow_rank(const ModelOptions& model, const RankOptions& ranks, const OpenRequest& request,
                   const EngineConfig& engine);

}  // namespace firesteel
