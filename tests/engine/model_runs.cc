#include "model_runs.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "engine/model_engine.h"
#include "support/golden.h"

namespace firesteel {

std::unique_ptr<Model> load_test_model(const std::string& name, Ops& ops) {
  const std::string dir = name == "demo" ? test::source_dir() + "/models/demo" : test::golden_model_dir(name);
  ModelLimits limits;
  limits.max_rows = 704 + kCompany * 64;  // a whole prompt in one pass; 64 rows of each of 8
  limits.max_logit_rows = kCompany;
  limits.pages = 4 * kCompany;
  limits.slots = kCompany;
  auto loaded = load_model(dir, ops, limits, nullptr);
  if (loaded.ok()) return std::move(loaded).value();
  std::fprintf(stderr, "%s\n", loaded.error().message.c_str());
  return nullptr;
}

std::vector<Ids> serve(Model& model, const std::vector<GenerationRequest>& requests, int32_t streams) {
  EngineConfig config;
  config.max_streams = streams;
  config.max_queue = static_cast<int32_t>(requests.size());
  auto engine = ModelEngine::create(model, config);
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

}  // namespace firesteel
