// Constraints and log-probabilities through the engine, against the oracle, in company and with places too few.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "engine/model_engine.h"
#include "fake_model.h"
#include "requests.h"

namespace firesteel {
namespace {

ModelLimits limits(int32_t pages, int32_t logit_rows) {
  ModelLimits out;
  out.max_rows = 128;
  out.max_logit_rows = logit_rows;
  out.pages = pages;
  out.slots = 8;
  return out;
}

/// Which ids fit depends on the tokens so far; after `dead_after` of them none does.
class HashConstraint final : public TokenConstraint {
 public:
  explicit HashConstraint(uint64_t seed, int dead_after = 1 << 30) : state_(seed), left_(dead_after) {}
  void fill_mask(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    for (int32_t id = 0; id < FakeModel::kVocab; ++id)
      if (fits(id)) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  bool accept(int32_t token) override {
    if (!fits(token)) return false;
    state_ = state_ * 6364136223846793005ull + static_cast<uint64_t>(token) + 1;
    --left_;
    return true;
  }

 private:
  bool fits(int32_t id) const { return left_ > 0 && ((state_ >> (id % 48)) & 3) != 0; }
  uint64_t state_;
  int left_;
};

struct Served {
  GenerationRequest request;
  std::shared_ptr<Generation> generation;
  uint64_t seed = 0;
};

/// Sends the requests all at once and waits.
void serve(Model& model, EngineConfig config, std::vector<Served>& runs) {
  config.max_queue = static_cast<int32_t>(runs.size());
  auto engine = ModelEngine::create(model, config);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  for (Served& run : runs) {
    auto submitted = (*engine)->submit(run.request, nullptr);
    ASSERT_TRUE(submitted.ok()) << submitted.error().message;
    run.generation = std::move(submitted).value();
  }
  for (Served& run : runs) wait_finished(*run.generation);
}

TEST(EngineRules, ConstrainedRepliesDoNotDependOnCompany) {
  for (const int32_t pages : {64, 9}) {
    FakeModel model(limits(pages, 8));
    std::mt19937_64 rng(5);
    std::vector<Served> runs;
    for (int i = 0; i < 60; ++i) {
      Served run;
      run.request = random_request(rng, 200, 300);
      run.request.rules = random_rules(rng, 300);
      run.seed = rng();
      if (i % 4 != 0) run.request.constraint = std::make_shared<HashConstraint>(run.seed);
      runs.push_back(std::move(run));
    }
    EngineConfig config;
    config.headroom_tokens = 1;
    serve(model, config, runs);
    int constrained = 0;
    for (Served& run : runs) {
      GenerationRequest again = run.request;
      if (again.constraint != nullptr) again.constraint = std::make_shared<HashConstraint>(run.seed), ++constrained;
      EXPECT_EQ(ids_of(*run.generation), oracle_reply(again));
    }
    EXPECT_GT(constrained, 30);
  }
}

TEST(EngineRules, ALostGrammarEndsItsRequestAlone) {
  FakeModel model(limits(64, 8));
  std::vector<Served> runs(3);
  for (Served& run : runs) run.request.prompt = {1, 2, 3}, run.request.max_tokens = 40;
  runs[1].request.constraint = std::make_shared<HashConstraint>(7, 5);
  serve(model, {}, runs);
  EXPECT_EQ(runs[0].generation->finish_reason(), FinishReason::kLength);
  EXPECT_EQ(runs[2].generation->finish_reason(), FinishReason::kLength);
  ASSERT_EQ(runs[1].generation->finish_reason(), FinishReason::kError);
  EXPECT_EQ(runs[1].generation->error().code, ErrorCode::kGrammar);
  EXPECT_EQ(runs[1].generation->tokens().size(), 5u);
}

void expect_report(std::span<const TokenLogprob> report, int32_t token, const std::vector<double>& scores) {
  ASSERT_FALSE(report.empty());
  EXPECT_EQ(report[0].id, token);
  std::vector<double> sorted = scores;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (size_t k = 0; k < report.size(); ++k) {
    if (report[k].id < 0) continue;
    const double want = scores[static_cast<size_t>(report[k].id)];
    if (std::isfinite(want)) { EXPECT_NEAR(report[k].logprob, want, 1e-5); }
    if (k > 0) { EXPECT_NEAR(report[k].logprob, sorted[k - 1], 1e-5); }
  }
}

// Biased, penalized and constrained: what is reported is the model's own distribution all the same.
TEST(EngineRules, LogProbabilitiesOfPromptAndReply) {
  for (const int32_t logit_rows : {9, 64}) {
    FakeModel model(limits(12, logit_rows));
    std::mt19937_64 rng(11);
    std::vector<Served> runs;
    for (int i = 0; i < 40; ++i) {
      Served run;
      run.request = random_request(rng, 150, 120);
      run.request.rules = random_rules(rng, 120);
      run.request.logprobs = i % 5 == 0 ? -1 : static_cast<int32_t>(rng() % (kMaxLogprobs + 1));
      run.request.prompt_logprobs = run.request.logprobs >= 0 && i % 2 == 0;
      run.seed = rng();
      if (i % 3 == 0) run.request.constraint = std::make_shared<HashConstraint>(run.seed);
      runs.push_back(std::move(run));
    }
    EngineConfig config;
    config.headroom_tokens = 1;
    serve(model, config, runs);
    for (Served& run : runs) {
      GenerationRequest again = run.request;
      if (again.constraint != nullptr) again.constraint = std::make_shared<HashConstraint>(run.seed);
      OracleScores scores;
      const std::vector<int32_t> want = oracle_reply(again, &scores);
      ASSERT_EQ(ids_of(*run.generation), want);
      if (run.request.logprobs < 0) {
        EXPECT_TRUE(run.generation->logprobs(0).empty());
        continue;
      }
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(run.generation->logprobs(i).size(), static_cast<size_t>(run.request.logprobs) + 1);
        expect_report(run.generation->logprobs(i), want[i], scores.reply[i]);
      }
      if (!run.request.prompt_logprobs) continue;
      for (size_t i = 1; i < run.request.prompt.size(); ++i)
        expect_report(run.generation->prompt_logprobs(i), run.request.prompt[i], scores.prompt[i - 1]);
    }
  }
}

TEST(EngineRules, PromptsCannotBeScoredWithoutRoom) {
  FakeModel model(limits(12, 8));
  auto engine = ModelEngine::create(model, {});
  ASSERT_TRUE(engine.ok());
  GenerationRequest request;
  request.prompt = {1, 2};
  request.max_tokens = 1;
  request.logprobs = 0;
  EXPECT_TRUE((*engine)->submit(request, nullptr).ok());
  request.prompt_logprobs = true;
  EXPECT_FALSE((*engine)->submit(request, nullptr).ok());
}

}  // namespace
}  // namespace firesteel
