// Several ranks in one process, each with its own part of a model, its own backend and its own thread, linked
// through threads, shared memory or TCP as processes would be; or in processes of their own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/rank_group.h"
#include "comm/rendezvous.h"
#include "engine/round.h"
#include "model_runs.h"

namespace firesteel {

enum class TestLink { kThreads, kShm, kTcp };
const char* link_name(TestLink link);

/// A formed group; ends the program when it cannot be formed.
std::vector<std::unique_ptr<Communicator>> connect_ranks(int ranks, TestLink link, CommLimits limits = {});

/// A group that stands until it breaks, and never again.
class OneGroup final : public RankGroup {
 public:
  explicit OneGroup(std::shared_ptr<Communicator> comm) : comm_(std::move(comm)) {}
  std::shared_ptr<Communicator> current() override { return comm_->broken() ? nullptr : comm_; }
  void set_listener(std::function<void()>) override {}

 private:
  std::shared_ptr<Communicator> comm_;
};

struct RankModel {
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
};
/// The parts of all ranks; empty after one line on standard error.
std::vector<RankModel> load_rank_models(const std::string& name, int ranks,
                                        const std::string& device = "cpu");

/// The replies of a ModelEngine on rank 0 with Followers on the others.
std::vector<Ids> serve_on_ranks(std::vector<RankModel>& ranks,
                                std::vector<std::unique_ptr<Communicator>> comms,
                                const std::vector<GenerationRequest>& requests, int32_t streams);

/// The same, with each rank in a process of its own that loads its part (this one is rank 0). For ranks that
/// share a GPU: within one process they share a context of the driver, which instantiates a graph only when
/// nothing of the context runs, and a rank that waits for another does run. Links: shared memory and TCP.
std::vector<Ids> serve_on_processes(const std::string& model, const std::string& device, int ranks,
                                    TestLink link, const std::vector<GenerationRequest>& requests,
                                    int32_t streams);
/// What main() does with the arguments that serve_on_processes starts this program with again; -1: none of
/// its.
int run_member(int argc, char** argv);

}  // namespace firesteel
