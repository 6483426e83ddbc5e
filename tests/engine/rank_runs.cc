#include "rank_runs.h"

#include <spawn.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "engine/follower.h"
#include "engine/model_engine.h"

extern char** environ;

namespace firesteel {
namespace {

void or_exit(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  std::exit(1);
}

GroupOptions group_options(int ranks, TestLink link, CommLimits limits) {
  GroupOptions options;
  options.ranks = ranks;
  options.leader_port = 0;
  options.link = link == TestLink::kShm ? LinkKind::kShm : LinkKind::kTcp;
  options.timeout = std::chrono::seconds(20);
  options.limits = limits;
  return options;
}

constexpr const char* kMember = "--member";  // rank, ranks, port, link, model, device, requests, streams
constexpr int kMemberArguments = 10;

pid_t start_member(int rank, const GroupOptions& group, TestLink link, const std::string& model,
                   const std::string& device, size_t requests, int32_t streams) {
  const std::string arguments[kMemberArguments] = {"engine_ranks",
                                                   kMember,
                                                   std::to_string(rank),
                                                   std::to_string(group.ranks),
                                                   std::to_string(group.leader_port),
                                                   std::to_string(static_cast<int>(link)),
                                                   model,
                                                   device,
                                                   std::to_string(requests),
                                                   std::to_string(streams)};
  std::array<char*, kMemberArguments + 1> argv{};
  for (int i = 0; i < kMemberArguments; ++i)
    argv[static_cast<size_t>(i)] = const_cast<char*>(arguments[i].c_str());
  pid_t child = -1;
  if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv.data(), environ) != 0)
    or_exit(Error{ErrorCode::kInternal, "a rank's process cannot be started"});
  return child;
}

void follow(Model& model, const EngineConfig& config, Communicator& comm) {
  const ModelLimits& limits = model.limits();
  Follower follower(model, config, limits.pages * kPageTokens, limits.pages);
  or_exit(follower.run(comm));
}

}  // namespace

const char* link_name(TestLink link) {
  return link == TestLink::kThreads ? "threads" : link == TestLink::kShm ? "shared memory" : "TCP";
}

std::vector<std::unique_ptr<Communicator>> connect_ranks(int ranks, TestLink link, CommLimits limits) {
  if (link == TestLink::kThreads) return make_local_group(ranks, limits);
  GroupOptions options = group_options(ranks, link, limits);
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
    threads.emplace_back([&, r] { follow(*ranks[r].model, config, *comms[r]); });
  OneGroup group(std::move(comms[0]));
  std::vector<Ids> out = serve(*ranks[0].model, requests, streams, &group);
  for (std::thread& t : threads) t.join();
  return out;
}

std::vector<Ids> serve_on_processes(const std::string& model, const std::string& device, int ranks,
                                    TestLink link, const std::vector<GenerationRequest>& requests,
                                    int32_t streams) {
  GroupOptions options = group_options(ranks, link, {});
  auto leader = Leader::listen(options);
  if (!leader.ok()) or_exit(leader.error());
  options.leader_port = leader->port();
  std::vector<pid_t> members;
  for (int r = 1; r < ranks; ++r)
    members.push_back(start_member(r, options, link, model, device, requests.size(), streams));
  const std::unique_ptr<Ops> ops = test_ops(device, 1);
  const std::unique_ptr<Model> part = ops == nullptr ? nullptr : load_test_model(model, *ops, {0, ranks});
  if (part == nullptr) std::exit(1);
  auto formed = leader->form();
  if (!formed.ok()) or_exit(formed.error());
  std::vector<Ids> out;
  {
    OneGroup group(std::move(formed->comm));
    out = serve(*part, requests, streams, &group);
  }
  for (const pid_t member : members) {
    int status = 0;
    waitpid(member, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      std::fprintf(stderr, "a rank's process ended with status %d\n", status);
      std::exit(1);
    }
  }
  return out;
}

int run_member(int argc, char** argv) {
  if (argc != kMemberArguments || std::strcmp(argv[1], kMember) != 0) return -1;
  const int rank = std::atoi(argv[2]), ranks = std::atoi(argv[3]);
  GroupOptions options = group_options(ranks, static_cast<TestLink>(std::atoi(argv[5])), {});
  options.rank = rank;
  options.leader_port = static_cast<uint16_t>(std::atoi(argv[4]));
  const std::unique_ptr<Ops> ops = test_ops(argv[7], 1);
  const std::unique_ptr<Model> part =
      ops == nullptr ? nullptr : load_test_model(argv[6], *ops, {rank, ranks});
  if (part == nullptr) return 1;
  auto group = join_group(options);
  if (!group.ok()) or_exit(group.error());
  const std::vector<GenerationRequest> requests(static_cast<size_t>(std::atoi(argv[8])));
  follow(*part, serve_config(requests, std::atoi(argv[9])), *group->comm);
  return 0;
}

}  // namespace firesteel
