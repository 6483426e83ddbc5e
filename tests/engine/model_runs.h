// Loading the test models, and running requests through the engine. For test programs: failures end the
// program.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/rank_group.h"
#include "engine/engine.h"
#include "engine/round.h"
#include "model/model.h"

namespace firesteel {

using Ids = std::vector<int32_t>;
inline constexpr int32_t kCompany = 8;  // streams that the test models are loaded for

/// The backend of --device: "cpu", "cuda", or "cuda-nccl" (ranks that share the GPU go through NCCL);
/// null after one line on standard error.
std::unique_ptr<Ops> test_ops(const std::string& device, int threads);

/// "tiny" (generated from its manifest) or "demo" (the bundled model); null after one line on standard error.
/// `placement`: one rank's part.
std::unique_ptr<Model> load_test_model(const std::string& name, Ops& ops, const Placement& placement = {});

/// The replies through a ModelEngine of `streams` streams, all requests waiting from the start.
/// `group`: the other ranks, where the model is a part.
std::vector<Ids> serve(Model& model, const std::vector<GenerationRequest>& requests, int32_t streams,
                       RankGroup* group = nullptr);
EngineConfig serve_config(const std::vector<GenerationRequest>& requests, int32_t streams);

/// --model NAME --device cpu|cuda|cuda-nccl --ranks R --first I --requests N, with tiny, cpu, all, 0 and 320
/// where they are left out.
struct RunArguments {
  std::string model = "tiny", device = "cpu";
  int ranks = 0;  // all numbers of them
  int first = 0, requests = 320;
};
/// Ends the program with code 2 and one line when they make no sense.
RunArguments parse_run_arguments(int argc, char** argv);

}  // namespace firesteel
