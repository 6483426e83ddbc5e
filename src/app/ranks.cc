#include "app/ranks.h"

#include <algorithm>
#include <thread>

#include "app/version.h"
#include "base/log.h"
#include "cluster/rank_launcher.h"
#include "comm/group_plan.h"
#include "comm/watch.h"
#include "engine/follower.h"
#include "model/fingerprint.h"

namespace firesteel {
namespace {

constexpr std::chrono::hours kJoinPatience{24 * 365};

Result<GroupOptions> group_options(const ModelOptions& model, const RankOptions& ranks,
                                   const OpenRequest& request, const EngineConfig& engine) {
  GroupOptions out;
  out.ranks = ranks.ranks;
  out.rank = std::max(ranks.rank, 0);
  if (!ranks.leader.empty()) {
    ASSIGN_OR_RETURN(const auto address, parse_address(ranks.leader, kLeaderPort));
    out.leader_host = address.first;
    out.leader_port = address.second;
  }
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::open(model.dir));
  ASSIGN_OR_RETURN(const std::string weights, model_fingerprint(*checkpoint));
  out.facts = {{"version", std::string(program_version()) + " (" + program_commit() + ")"},
               {"weights", weights},
               {"device", model.device},
               {"formats", model.exact ? "exact" : "dense " + model.dense + ", kv " + model.kv},
               {"exchange", ranks.exchange},
               {"streams", std::to_string(engine.max_streams)},
               {"context", request.window == 0 ? "auto" : std::to_string(request.window)},
               {"rows of a forward", std::to_string(request.max_rows)},
               {"headroom", std::to_string(engine.headroom_tokens)}};
  return out;
}

std::vector<std::string> follower_arguments(const ModelOptions& model, const RankOptions& ranks, int rank,
                                            uint16_t port, const OpenRequest& request,
                                            const EngineConfig& engine) {
  std::vector<std::string> out = {"serve",
                                  "--model",
                                  model.dir,
                                  "--device",
                                  model.device,
                                  "--threads",
                                  std::to_string(model.threads),
                                  "--streams",
                                  std::to_string(engine.max_streams),
                                  "--context",
                                  request.window == 0 ? "auto" : std::to_string(request.window),
                                  "--ranks",
                                  std::to_string(ranks.ranks),
                                  "--rank",
                                  std::to_string(rank),
                                  "--leader",
                                  "127.0.0.1:" + std::to_string(port),
                                  "--exchange",
                                  ranks.exchange};
  if (model.exact) {
    out.push_back("--exact");
  } else {
    out.insert(out.end(), {"--dense", model.dense, "--kv", model.kv});
  }
  if (ranks.quiet) out.push_back("--quiet");
  return out;
}

ExchangeChoice exchange_choice(const RankOptions& ranks) {
  return ranks.exchange == "nccl"   ? ExchangeChoice::kNccl
         : ranks.exchange == "host" ? ExchangeChoice::kHost
                                    : ExchangeChoice::kAuto;
}

/// Threads of each rank when all run on this machine.
int threads_of_each(const ModelOptions& model, int ranks) {
  if (model.threads > 0) return model.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
}

}  // namespace

LedModel::LedModel() = default;
LedModel::~LedModel() = default;
LedModel::LedModel(LedModel&&) noexcept = default;

Status check_rank_options(const RankOptions& ranks) {
  const auto invalid = [](const std::string& what) { return Error{ErrorCode::kInvalidArgument, what}; };
  if (ranks.ranks != 1 && ranks.ranks != 2 && ranks.ranks != 4) return invalid("--ranks must be 1, 2 or 4");
  if (ranks.rank >= ranks.ranks)
    return invalid("--rank " + std::to_string(ranks.rank) + " is not below --ranks " +
                   std::to_string(ranks.ranks));
  if (ranks.rank >= 0 && ranks.ranks == 1) return invalid("--rank needs --ranks 2 or 4");
  if (ranks.rank > 0 && ranks.leader.empty())
    return invalid("--rank " + std::to_string(ranks.rank) + " needs --leader, the address of rank 0");
  if (ranks.rank < 0 && !ranks.leader.empty()) return invalid("--leader needs --rank: which one is this?");
  return {};
}

Result<LedModel> open_led_model(const ModelOptions& model_options, const RankOptions& ranks,
                                const OpenRequest& request, EngineConfig* engine) {
  LedModel out;
  ModelOptions model = model_options;
  const bool here = ranks.ranks > 1 && ranks.rank < 0;
  if (here) model.threads = threads_of_each(model, ranks.ranks);
  OpenRequest mine = request;
  mine.placement = {0, ranks.ranks};
  ASSIGN_OR_RETURN(out.open.ops, make_ops(model, mine.placement.rank, exchange_choice(ranks)));
  out.open.formats = model_formats(model, *out.open.ops);
  engine->formats = formats_text(out.open.formats);
  // Ranks on one machine share its memory; the others offer what they find, and the least counts.
  const uint64_t usable = usable_memory(*out.open.ops, here ? ranks.ranks : 1);
  ASSIGN_OR_RETURN(const PlannedModel planned, plan_model(model, *out.open.ops, mine, usable));
  GroupPlan plan{planned.plan.pages, planned.plan.window};
  if (ranks.ranks > 1) {
    ASSIGN_OR_RETURN(GroupOptions options, group_options(model, ranks, request, *engine));
    if (here) {
      options.leader_host = "127.0.0.1";
      options.leader_port = 0;
      options.link = LinkKind::kShm;
    } else if (ranks.leader.empty()) {
      options.leader_host.clear();  // every address of this machine
    }
    ASSIGN_OR_RETURN(out.group, LeaderGroup::listen(options));
    if (here) {
      std::vector<std::vector<std::string>> arguments;
      for (int r = 1; r < ranks.ranks; ++r)
        arguments.push_back(follower_arguments(model, ranks, r, out.group->port(), request, *engine));
      out.launcher = std::make_unique<RankLauncher>(std::move(arguments));
    } else {
      LOG_INFO("rank 0 of {} waits for the others at port {}", ranks.ranks, out.group->port());
    }
    ASSIGN_OR_RETURN(plan, out.group->form(plan));
  }
  RETURN_IF_ERROR(load_planned(planned, mine, static_cast<int32_t>(plan.pages), out.open));
  if (out.group != nullptr) RETURN_IF_ERROR(out.group->start(plan));
  engine->pages = static_cast<int32_t>(plan.pages);
  engine->window = static_cast<int32_t>(plan.window);
  return out;
}

Status follow_rank(const ModelOptions& model, const RankOptions& ranks, const OpenRequest& request,
                   const EngineConfig& engine) {
  ASSIGN_OR_RETURN(GroupOptions options, group_options(model, ranks, request, engine));
  options.timeout = kJoinPatience;
  const std::string who = "rank " + std::to_string(ranks.rank);
  OpenRequest mine = request;
  mine.placement = {ranks.rank, ranks.ranks};
  OpenModel open;
  ASSIGN_OR_RETURN(open.ops, make_ops(model, ranks.rank, exchange_choice(ranks)));
  ASSIGN_OR_RETURN(const PlannedModel planned,
                   plan_model(model, *open.ops, mine, usable_memory(*open.ops, 1)));
  const GroupPlan room{planned.plan.pages, planned.plan.window};
  LOG_INFO("{} of {} looks for rank 0 at {}:{}", who, ranks.ranks, options.leader_host, options.leader_port);
  for (;;) {
    auto joined = join_group(options);
    if (!joined.ok() && joined.error().code == ErrorCode::kInvalidArgument) return joined.error();
    if (!joined.ok()) {
      LOG_DEBUG("{}: {}", who, joined.error().message);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      continue;
    }
    const std::shared_ptr<Communicator> comm = std::move(joined->comm);
    const Watch watch(std::move(joined->watch), {"rank 0"}, WatchLimits{}, [comm](const std::string& lost) {
      comm->abort({ErrorCode::kUnavailable, lost});
    });
    const auto serve_once = [&]() -> Status {
      const GroupPlan offer =
          open.model != nullptr ? GroupPlan{open.model->limits().pages, room.window} : room;
      ASSIGN_OR_RETURN(const GroupPlan plan, settle_plan(*comm, offer, kLoadPatience));
      if (open.model == nullptr)
        RETURN_IF_ERROR(load_planned(planned, mine, static_cast<int32_t>(plan.pages), open));
      RETURN_IF_ERROR(await_ready(*comm, kLoadPatience));
      LOG_INFO("{} serves: {} pages, window {}", who, plan.pages, plan.window);
      Follower follower(*open.model, engine, static_cast<int32_t>(plan.window),
                        static_cast<int32_t>(plan.pages));
      return follower.run(*comm);
    };
    const Status over = serve_once();
    if (!over.ok() && over.error().code != ErrorCode::kUnavailable && open.model == nullptr) return over;
    LOG_INFO("{}: {}; looking for rank 0 again", who, over.ok() ? "rank 0 stopped" : over.error().message);
  }
}

}  // namespace firesteel
