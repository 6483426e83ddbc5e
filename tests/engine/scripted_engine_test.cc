#include "engine/scripted_engine.h"

#include <gtest/gtest.h>

#include <numeric>

#include "requests.h"

namespace firesteel {
namespace {

EngineInfo info() {
  EngineInfo info;
  info.vocab = 1000;
  info.window = 5000;
  info.max_streams = 64;
  info.max_queue = 64;
  return info;
}

GenerationRequest request_of(std::vector<int32_t> prompt, int32_t max_tokens) {
  GenerationRequest r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  return r;
}

/// Replies with prompt[0] tokens: prompt[0], prompt[0] + 1, ….
ScriptedReply counting(const GenerationRequest& request) {
  ScriptedReply reply;
  reply.ids.resize(static_cast<size_t>(request.prompt[0]));
  std::iota(reply.ids.begin(), reply.ids.end(), request.prompt[0]);
  return reply;
}

TEST(ScriptedEngine, PlaysAndEnds) {
  ScriptedEngine engine(info(), counting);
  auto whole = engine.submit(request_of({10}, 100), nullptr).value();
  auto cut = engine.submit(request_of({10}, 4), nullptr).value();
  GenerationRequest ended = request_of({10}, 100);
  ended.end_ids = {12};
  auto stopped = engine.submit(ended, nullptr).value();
  for (const auto& g : {whole, cut, stopped}) wait_finished(*g);
  EXPECT_EQ(whole->tokens().size(), 10u);
  EXPECT_EQ(whole->finish_reason(), FinishReason::kStop);
  EXPECT_EQ(ids_of(*cut), (std::vector<int32_t>{10, 11, 12, 13}));
  EXPECT_EQ(cut->finish_reason(), FinishReason::kLength);
  EXPECT_EQ(ids_of(*stopped), (std::vector<int32_t>{10, 11, 12}));
  EXPECT_EQ(stopped->finish_reason(), FinishReason::kStop);
}

TEST(ScriptedEngine, SlicesAppearTogether) {
  ScriptedEngine engine(info(), [](const GenerationRequest& request) {
    ScriptedReply reply = counting(request);
    reply.slices = {1, 3, 2};
    reply.delay_us = 200;
    return reply;
  });
  std::mutex mutex;
  std::vector<size_t> seen;
  std::shared_ptr<Generation> g;
  std::atomic<bool> ready{false};
  g = engine
          .submit(request_of({11}, 100),
                  [&] {
                    while (!ready) std::this_thread::yield();
                    std::lock_guard lock(mutex);
                    seen.push_back(g->tokens().size());
                  })
          .value();
  ready = true;
  wait_finished(*g);
  engine.stop();
  EXPECT_EQ(seen, (std::vector<size_t>{1, 4, 6, 8, 10, 11}));
}

TEST(ScriptedEngine, ManyStreamsCancelAndErrors) {
  ScriptedEngine engine(info(), [](const GenerationRequest& request) {
    ScriptedReply reply = counting(request);
    reply.delay_us = 500;
    if (request.prompt.size() > 1) reply.error = Error{ErrorCode::kInternal, "scripted"};
    if (request.prompt.size() > 2) reply.first_delay_us = 60'000'000;
    return reply;
  });
  std::vector<std::shared_ptr<Generation>> g;
  for (int i = 0; i < 60; ++i) g.push_back(engine.submit(request_of({20 + i}, 200), nullptr).value());
  auto failing = engine.submit(request_of({3, 1}, 200), nullptr).value();
  auto sleeping = engine.submit(request_of({3, 1, 1}, 200), nullptr).value();
  sleeping->cancel();
  wait_finished(*sleeping);
  EXPECT_EQ(sleeping->finish_reason(), FinishReason::kCancelled);
  for (int i = 0; i < 60; ++i) {
    wait_finished(*g[static_cast<size_t>(i)]);
    EXPECT_EQ(g[static_cast<size_t>(i)]->tokens().size(), static_cast<size_t>(20 + i));
  }
  wait_finished(*failing);
  EXPECT_EQ(failing->finish_reason(), FinishReason::kError);
  EXPECT_EQ(failing->error().message, "scripted");
  EXPECT_EQ(engine.stats().running, 0);
  EXPECT_EQ(engine.stats().finished, 60u);
}

TEST(ScriptedEngine, RefusesAndStops) {
  EngineInfo small = info();
  small.max_streams = 1;
  small.max_queue = 1;
  ScriptedEngine engine(small, [](const GenerationRequest& request) {
    ScriptedReply reply = counting(request);
    reply.first_delay_us = 60'000'000;
    return reply;
  });
  EXPECT_EQ(engine.submit(request_of({1000}, 5), nullptr).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine.submit(request_of({5}, 5000), nullptr).error().code, ErrorCode::kContextLength);
  auto a = engine.submit(request_of({5}, 5), nullptr).value();
  auto b = engine.submit(request_of({5}, 5), nullptr).value();
  EXPECT_EQ(engine.submit(request_of({5}, 5), nullptr).error().code, ErrorCode::kBusy);
  engine.stop();
  EXPECT_EQ(a->finish_reason(), FinishReason::kCancelled);
  EXPECT_EQ(b->finish_reason(), FinishReason::kCancelled);
  EXPECT_EQ(engine.submit(request_of({5}, 5), nullptr).error().code, ErrorCode::kUnavailable);
}

/// Allows multiples of `step` alone.
class Multiples final : public TokenConstraint {
 public:
  explicit Multiples(int32_t step) : step_(step) {}
  void fill_mask(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    for (int32_t id = 0; id < 1000; id += step_) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  bool accept(int32_t token) override { return token % step_ == 0; }

 private:
  const int32_t step_;
};

TEST(ScriptedEngine, FollowsRulesAndConstraints) {
  ScriptedEngine engine(info(), counting);
  GenerationRequest request = request_of({6}, 100);
  request.rules.think = {true, 500, 2, false, {501, 500}};
  request.constraint = std::make_shared<Multiples>(5);
  request.logprobs = 2;
  auto thinking = engine.submit(request, nullptr).value();
  wait_finished(*thinking);
  // 6 and 7 think, the block is cut, then 8, 9, 11 do not fit.
  EXPECT_EQ(ids_of(*thinking), (std::vector<int32_t>{6, 7, 501, 500, 0, 0, 10, 0}));
  EXPECT_TRUE(thinking->think_cut());
  ASSERT_EQ(thinking->logprobs(0).size(), 3u);
  EXPECT_EQ(thinking->logprobs(0)[0].id, 6);
  request.end_ids = {15};
  request.constraint = std::make_shared<Multiples>(5);
  auto ended = engine.submit(request, nullptr).value();
  wait_finished(*ended);
  EXPECT_EQ(ids_of(*ended), (std::vector<int32_t>{6, 7, 501, 500, 15}));
}

}  // namespace
}  // namespace firesteel
