#include "model_runs.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "engine/model_engine.h"
#include "ops/cuda/cuda_ops.h"
#include "support/golden.h"

namespace firesteel {

std::unique_ptr<Ops> test_ops(const std::string& device, int threads) {
  if (device == "cpu") return make_cpu_ops(threads);
  auto ops = make_cuda_ops(0, KvFormat::kWide,
                           device == "cuda-nccl" ? ExchangeChoice::kNccl : ExchangeChoice::kAuto);
  if (ops.ok()) return std::move(ops).value();
  std::fprintf(stderr, "%s\n", ops.error().message.c_str());
  return nullptr;
}

std::unique_ptr<Model> load_test_model(const std::string& name, Ops& ops, const Placement& placement) {
  const std::string dir = name == "demo" ? test::source_dir() + "/models/demo" : test::golden_model_dir(name);
  ModelLimits limits;
  limits.max_rows = 704 + kCompany * 64;  // a whole prompt in one pass; 64 rows of each of 8
  limits.max_logit_rows = kCompany;
  limits.pages = 4 * kCompany;
  limits.slots = kCompany;
  const auto files = open_model_files(dir, placement);
  auto loaded = files.ok() ? load_model(*files, ops, limits, nullptr) : files.error();
  if (loaded.ok()) return std::move(loaded).value();
  std::fprintf(stderr, "%s\n", loaded.error().message.c_str());
  return nullptr;
}

EngineConfig serve_config(const std::vector<GenerationRequest>& requests, int32_t streams) {
  EngineConfig config;
  config.max_streams = streams;
  config.max_queue = static_cast<int32_t>(requests.size());
  return config;
}

std::vector<Ids> serve(Model& model, const std::vector<GenerationRequest>& requests, int32_t streams,
                       RankGroup* group) {
  auto engine = ModelEngine::create(model, serve_config(requests, streams), nullptr, group);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.error().message.c_str());
    std::exit(1);
  }
  std::vector<std::shared_ptr<Generation>> running;
  for (const GenerationRequest& r : requests) running.push_back((*engine)->submit(r, nullptr).value());
  std::vector<Ids> out;
  for (const auto& g : running) {
    while (!g->finished()) std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (g->finish_reason() != FinishReason::kLength) std::fprintf(stderr, "%s\n", g->error().message.c_str());
    out.emplace_back(g->tokens().begin(), g->tokens().end());
  }
  return out;
}

RunArguments parse_run_arguments(int argc, char** argv) {
  RunArguments out;
  bool ok = argc % 2 == 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--model") {
      out.model = argv[i + 1];
    } else if (name == "--device") {
      out.device = argv[i + 1];
    } else if (name == "--ranks") {
      out.ranks = std::atoi(argv[i + 1]);
    } else if (name == "--requests") {
      out.requests = std::atoi(argv[i + 1]);
    } else if (name == "--first") {
      out.first = std::atoi(argv[i + 1]);
    } else {
      ok = false;
    }
  }
  ok = ok && (out.device == "cpu" || out.device == "cuda" || out.device == "cuda-nccl");
  ok = ok && (out.ranks == 0 || out.ranks == 2 || out.ranks == 4);
  if (ok && out.first >= 0 && out.requests >= 1) return out;
  std::fprintf(
      stderr,
      "usage: %s [--model NAME] [--device cpu|cuda|cuda-nccl] [--ranks 2|4] [--first I] [--requests N]\n",
      argv[0]);
  std::exit(2);
}

}  // namespace firesteel
