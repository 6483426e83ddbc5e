#include "rank_runs.h"

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "engine/follower.h"
#include "engine/model_engine.h"

namespace firesteel {
namespace {

void or_exit(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  std::exit(1);
}

}  // namespace

const char* link_name(TestLink link) {
  return link == TestLink::kThreads ? "threads" : link == TestLink::kShm ? "shared memory" : "TCP";
}

std::vector<std::unique_ptr<Communicator>> connect_ranks(int ranks, TestLink link, CommLimits limits) {
  if (link == TestLink::kThreads) return make_local_group(ranks, limits);
  GroupOptions options;
  options.ranks = ranks;
  options.leader_port = 0;
  options.link = link == TestLink::kShm ? LinkKind::kShm : LinkKind::kTcp;
  options.timeout = std::chrono::seconds(20);
  options.limits = limits;
  auto leader = Leader::listen(options);
  if (!leader.ok()) or_exit(leader.error());
  options.leader_port = leader->port();
  std::vector<std::unique_ptr<Communicator>> out(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 1; r < ranks; ++r)
    threads.emplace_back([&out, options, r]() mutable {
      options.rank = r;
      auto group = join_group(options);
      if (!group.ok()) or_exit(group.error());
      out[static_cast<size_t>(r)] = std::move(group->comm);
    });
  auto group = leader->form();
  if (!group.ok()) or_exit(group.error());
  out[0] = std::move(group->comm);
  for (std::thread& t : threads) t.join();
  return out;
}

std::vector<RankModel> load_rank_models(const std::string& name, int ranks, const std::string& device) {
  std::vector<RankModel> out(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    RankModel& m = out[static_cast<size_t>(r)];
    m.ops = test_ops(device, ranks == 1 ? 0 : 1);
    if (m.ops == nullptr) return {};
    m.model = load_test_model(name, *m.ops, {r, ranks});
    if (m.model == nullptr) return {};
  }
  return out;
}

std::vector<Ids> serve_on_ranks(std::vector<RankModel>& ranks,
                                std::vector<std::unique_ptr<Communicator>> comms,
                                const std::vector<GenerationRequest>& requests, int32_t streams) {
  if (ranks.size() == 1) return serve(*ranks[0].model, requests, streams);
  const EngineConfig config = serve_config(requests, streams);
  std::vector<std::thread> threads;
  for (size_t r = 1; r < ranks.size(); ++r)
    threads.emplace_back([&, r] {
      const ModelLimits& limits = ranks[r].model->limits();
      Follower follower(*ranks[r].model, config, limits.pages * kPageTokens, limits.pages);
      or_exit(follower.run(*comms[r]));
    });
  OneGroup group(std::move(comms[0]));
  std::vector<Ids> out = serve(*ranks[0].model, requests, streams, &group);
  for (std::thread& t : threads) t.join();
  return out;
}

}  // namespace firesteel
