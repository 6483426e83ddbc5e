// The bundled EXL3 model and, where its bf16 original is at hand, that one too: greedy ids of recorded text
// prompts, up to the first step at which the recorded choice was too near to call.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/harness.h"
#include "model/plan.h"
#include "support/golden.h"

namespace firesteel::test {
namespace {

constexpr double kCloseCall = 0.02;
constexpr double kMarginLimit = 2e-3;

double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

float margin_of(const std::vector<float>& logits) {
  std::vector<float> sorted = logits;
  std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
  return sorted[0] - sorted[1];
}

void check_goldens(const std::string& model_dir, const std::string& goldens_path) {
  std::ifstream in(goldens_path);
  ASSERT_TRUE(in.good()) << goldens_path;
  const nlohmann::json goldens = nlohmann::json::parse(in);
  const auto begin = std::chrono::steady_clock::now();
  Harness h(model_dir, {512, 1, 14, 1});
  ASSERT_NE(h.model(), nullptr);
  std::printf("loaded %s in %.2f s\n", model_dir.c_str(), seconds_since(begin));
  int prompts = 0;
  size_t steps = 0, prompt_tokens = 0;
  double prefill = 0, decode = 0, worst = 0;
  for (const auto& prompt : goldens["prompts"]) {
    if (prompt.contains("pictures")) continue;
    SCOPED_TRACE(prompt["name"].get<std::string>());
    const auto ids = prompt["prompt_ids"].get<std::vector<int32_t>>();
    const auto want = prompt["greedy_ids"].get<std::vector<int32_t>>();
    const auto margins = prompt["margin"].get<std::vector<double>>();
    Sequence s = h.start(static_cast<int32_t>(ids.size() + want.size()));
    auto t = std::chrono::steady_clock::now();
    std::vector<float> last = h.last_logits(s, ids);
    prefill += seconds_since(t);
    prompt_tokens += ids.size();
    t = std::chrono::steady_clock::now();
    for (size_t i = 0; i < want.size(); ++i) {
      if (margins[i] <= kCloseCall) break;
      const int32_t id = argmax(last.data(), h.vocab());
      ASSERT_EQ(id, want[i]) << "step " << i << ", recorded margin " << margins[i];
      worst = std::max(worst, std::abs(margin_of(last) - margins[i]));
      ++steps;
      if (i + 1 < want.size()) last = h.last_logits(s, {id});
    }
    decode += seconds_since(t);
    ++prompts;
    h.release(s);
  }
  EXPECT_EQ(prompts, 24);
  EXPECT_GT(steps, 1000u);
  EXPECT_LE(worst, kMarginLimit);
  std::printf(
      "%d prompts: %zu prompt tokens in %.1f s, %zu steps in %.1f s, margins differ by at most %.1e\n",
      prompts, prompt_tokens, prefill, steps, decode, worst);
}

TEST(DemoModel, BundledExl3ModelFollowsItsGoldens) {
  check_goldens(source_dir() + "/models/demo", source_dir() + "/tests/data/demo/goldens.json");
}

TEST(DemoModel, Bf16OriginalFollowsItsGoldens) {
  const std::string dir = source_dir() + "/../shared/demo-model";
  if (!std::filesystem::exists(dir + "/model.safetensors")) {
    GTEST_SKIP() << "the bf16 original of the bundled model is not at hand (" << dir << ")";
  }
  check_goldens(dir, source_dir() + "/tests/data/demo-bf16/goldens.json");
}

TEST(DemoModel, BytesFromHeadersAlone) {
  auto files = open_model_files(source_dir() + "/models/demo");
  ASSERT_TRUE(files.ok()) << files.error().message;
  const auto ops = make_cpu_ops(2);
  const MemoryNeeds needs = measure_memory(files->weights, files->config, *ops, 512, 64);
  for (int g = 0; g < kWeightGroups; ++g) {
    std::printf("%-15s %10llu bytes\n", weight_group_name(static_cast<WeightGroup>(g)),
                static_cast<unsigned long long>(needs.weights[static_cast<size_t>(g)]));
  }
  std::printf("arenas %llu, page %llu, slot %llu bytes; %llu bytes in files\n",
              static_cast<unsigned long long>(needs.arenas), static_cast<unsigned long long>(needs.page),
              static_cast<unsigned long long>(needs.slot),
              static_cast<unsigned long long>(files->checkpoint->data_bytes()));
  PlanRequest request;
  request.available = 1ull << 30;
  request.streams = 4;
  const auto plan = plan_memory(needs, files->config, request);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->window, 8192);
  EXPECT_EQ(plan->pages, 128);
}

}  // namespace
}  // namespace firesteel::test
