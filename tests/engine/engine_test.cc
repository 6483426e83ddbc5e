// ModelEngine over the hashing model: exact replies in any company, admission, cancellation, failures,
// stopping.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>
#include <string>

#include "engine/model_engine.h"
#include "fake_model.h"
#include "requests.h"

namespace firesteel {
namespace {

using std::chrono::milliseconds;

ModelLimits limits_of(int32_t pages, int32_t streams = 8, int32_t max_rows = 128) {
  ModelLimits limits;
  limits.max_rows = max_rows;
  limits.max_logit_rows = streams;
  limits.pages = pages;
  limits.slots = streams;
  return limits;
}

std::unique_ptr<ModelEngine> make_engine(Model& model, EngineConfig config = {},
                                         ModelEngine::Observer* observer = nullptr) {
  auto engine = ModelEngine::create(model, config, observer);
  EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message);
  return std::move(engine).value();
}

/// Lets the engine start a forward only when told.
class Gate {
 public:
  explicit Gate(FakeModel& model) {
    model.before_forward = [this] {
      std::unique_lock lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return open_ || permits_ > 0; });
      if (!open_) --permits_;
      --waiting_;
    };
  }
  ~Gate() { open(); }
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void step() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0 && permits_ == 0; });
    ++permits_;
    changed_.notify_all();
  }
  void await_forward() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0 && permits_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0, permits_ = 0;
  bool open_ = false;
};

class RoundWatch : public ModelEngine::Observer {
 public:
  void round_begins() override { begins.fetch_add(1); }
  void round_ended(const EngineState& state, const RoundRecord& record) override {
    state.verify();
    preempts += static_cast<int>(record.preempts.size());
    int32_t total = 0;
    for (const RoundRecord::Rows& r : record.rows) total += r.rows;
    largest = std::max(largest, total);
    ended.fetch_add(1);
  }
  std::atomic<int64_t> begins{0}, ended{0};
  int preempts = 0;  // engine thread; read after stop()
  int32_t largest = 0;
};

/// How many of `count` random requests, sent by several threads, get another reply than the oracle's.
int wrong_replies(FakeModel& model, EngineConfig config, int count, uint64_t seed, int32_t max_prompt,
                  int32_t max_reply, ModelEngine::Observer* observer = nullptr, bool background = false) {
  config.max_queue = count;
  auto engine = make_engine(model, config, observer);
  std::atomic<int> wrong{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 3; ++c)
    clients.emplace_back([&, c] {
      std::mt19937_64 rng(seed + static_cast<uint64_t>(c) * 1000);
      std::vector<std::pair<GenerationRequest, std::shared_ptr<Generation>>> sent;
      for (int i = c; i < count; i += 3) {
        GenerationRequest request = random_request(rng, max_prompt, max_reply);
        request.background = background && rng() % 3 == 0;
        auto generation = engine->submit(request, nullptr);
        ASSERT_TRUE(generation.ok()) << generation.error().message;
        sent.emplace_back(std::move(request), *generation);
        if (rng() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng() % 300));
      }
      for (const auto& [request, generation] : sent) {
        wait_finished(*generation);
        wrong += ids_of(*generation) != oracle_reply(request);
      }
    });
  for (std::thread& t : clients) t.join();
  const EngineStats stats = wait_idle(*engine);
  EXPECT_EQ(stats.slots_free, stats.slots_total);
  EXPECT_EQ(stats.finished, static_cast<uint64_t>(count));
  EXPECT_EQ(stats.failed, 0u);
  engine->stop();
  return wrong;
}

TEST(ModelEngine, RepliesDoNotDependOnCompany) {
  for (const int32_t prompt_rows : {0, 1, 7}) {
    FakeModel model(limits_of(64));
    RoundWatch watch;
    EngineConfig config;
    config.prompt_rows = prompt_rows;
    config.busy_prompt_rows = prompt_rows == 0 ? 64 : prompt_rows;
    EXPECT_EQ(wrong_replies(model, config, 150, 42, 700, 60, &watch), 0) << prompt_rows;
    EXPECT_LE(watch.largest, 128);
  }
}

TEST(ModelEngine, RepliesSurviveAPoolThatIsTooSmall) {
  FakeModel model(limits_of(9, 8, 300));
  RoundWatch watch;
  EngineConfig config;
  config.headroom_tokens = 1;
  config.busy_prompt_rows = 200;
  EXPECT_EQ(wrong_replies(model, config, 90, 7, 300, 900, &watch), 0);
  EXPECT_GT(watch.preempts, 0);  // or the test shows nothing
}

TEST(ModelEngine, BackgroundRequestsYieldAndGoOn) {
  FakeModel model(limits_of(24));
  RoundWatch watch;
  // Whether one is running when a foreground request needs its pages is a matter of time: ask again if need
  // be.
  for (int i = 0; i < 20 && watch.preempts == 0; ++i)
    EXPECT_EQ(wrong_replies(model, {}, 150, 9, 300, 200, &watch, true), 0);
  EXPECT_GT(watch.preempts, 0);
}

// The planted faults: a sum that depends on the rows of the batch, a page of another sequence, a stale slot.
TEST(ModelEngine, PlantedFaultsAreCaught) {
  for (const FakeModel::Fault fault : {FakeModel::Fault::kRowsInTheBatch, FakeModel::Fault::kNeighboursPage,
                                       FakeModel::Fault::kSlotNotReset}) {
    FakeModel model(limits_of(64), fault);
    EXPECT_GT(wrong_replies(model, {}, 60, 42, 100, 30), 0) << static_cast<int>(fault);
  }
}

TEST(ModelEngine, RefusesWhatItCannotServe) {
  FakeModel model(limits_of(4));
  auto engine = make_engine(model);
  EXPECT_EQ(engine->info().window, 1024);
  const auto code = [&](GenerationRequest r) {
    const auto result = engine->submit(std::move(r), nullptr);
    return result.ok() ? std::string("taken") : std::to_string(static_cast<int>(result.error().code));
  };
  const std::string invalid = std::to_string(static_cast<int>(ErrorCode::kInvalidArgument));
  const std::string length = std::to_string(static_cast<int>(ErrorCode::kContextLength));
  GenerationRequest good;
  good.prompt = {1, 2, 3};
  good.max_tokens = 1;
  const auto with = [&](auto change) {
    GenerationRequest r = good;
    change(r);
    return code(r);
  };
  EXPECT_EQ(with([](auto&) {}), "taken");
  EXPECT_EQ(with([](auto& r) { r.prompt.clear(); }), invalid);
  EXPECT_EQ(with([](auto& r) { r.prompt[1] = -1; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.prompt[1] = FakeModel::kVocab; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.end_ids = {FakeModel::kVocab}; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.end_ids.assign(3000, 1); }), invalid);
  EXPECT_EQ(with([](auto& r) { r.rules.bias = {{FakeModel::kVocab, 1.0f}}; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.rules.bias = {{1, NAN}}; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.rules.bias.resize(1025); }), invalid);
  EXPECT_EQ(with([](auto& r) { r.rules.repetition = 0; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.rules.presence = NAN; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.rules.think.budget = 3; }), invalid) << "no closing tokens";
  EXPECT_EQ(with([](auto& r) { r.rules.think.close = {-1}; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.logprobs = 21; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.prompt_logprobs = true; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.max_tokens = 0; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.max_tokens = -5; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.min_tokens = 2; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.min_tokens = -1; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.sampling.temperature = NAN; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.sampling.top_p = INFINITY; }), invalid);
  EXPECT_EQ(with([](auto& r) { r.max_tokens = 1021; }), "taken");
  EXPECT_EQ(with([](auto& r) { r.max_tokens = 1022; }), length);
  EXPECT_EQ(with([](auto& r) { r.max_tokens = INT32_MAX; }), length);
  EXPECT_EQ(with([](auto& r) { r.prompt.assign(5000, 1); }), length);
}

TEST(ModelEngine, SettingsThatTheModelCannotServeAreNamed) {
  FakeModel model(limits_of(4));
  const auto message = [&](auto change) {
    EngineConfig config;
    change(config);
    const auto engine = ModelEngine::create(model, config);
    return engine.ok() ? std::string() : engine.error().message;
  };
  EXPECT_NE(message([](auto& c) { c.max_streams = 9; }), "");
  EXPECT_NE(message([](auto& c) { c.max_streams = 0; }), "");
  EXPECT_NE(message([](auto& c) { c.max_queue = -1; }), "");
  EXPECT_NE(message([](auto& c) { c.busy_prompt_rows = 0; }), "");
  EXPECT_NE(message([](auto& c) { c.headroom_tokens = 0; }), "");
  EXPECT_NE(message([](auto& c) { c.window = -1; }), "");
  EXPECT_EQ(message([](auto& c) { c.window = 100; }), "");
}

TEST(ModelEngine, AFullQueueIsBusy) {
  FakeModel model(limits_of(64));
  Gate gate(model);
  EngineConfig config;
  config.max_streams = 2;
  config.max_queue = 3;
  auto engine = make_engine(model, config);
  GenerationRequest request;
  request.prompt = {5};
  request.max_tokens = 3;
  std::vector<std::shared_ptr<Generation>> taken;
  for (int i = 0; i < 5; ++i) {
    auto g = engine->submit(request, nullptr);
    ASSERT_TRUE(g.ok());
    taken.push_back(*g);
  }
  auto refused = engine->submit(request, nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
  gate.open();
  for (const auto& g : taken) wait_finished(*g);
  EXPECT_TRUE(engine->submit(request, nullptr).ok());
}

TEST(ModelEngine, EndIdsAndMinTokens) {
  FakeModel model(limits_of(64));
  auto engine = make_engine(model);
  GenerationRequest request;
  request.prompt = {5, 6, 7};
  request.max_tokens = 40;
  const std::vector<int32_t> free_reply = oracle_reply(request);
  request.end_ids = {free_reply[9]};
  auto stopped = engine->submit(request, nullptr);
  ASSERT_TRUE(stopped.ok());
  wait_finished(**stopped);
  EXPECT_EQ((*stopped)->finish_reason(), FinishReason::kStop);
  EXPECT_LE((*stopped)->tokens().size(), 10u);
  EXPECT_EQ((*stopped)->tokens().back(), free_reply[9]);
  request.min_tokens = 30;
  auto longer = engine->submit(request, nullptr);
  ASSERT_TRUE(longer.ok());
  wait_finished(**longer);
  EXPECT_GE((*longer)->tokens().size(), 30u);
  for (size_t i = 0; i < 30; ++i) {
    EXPECT_NE((*longer)->tokens()[i], free_reply[9]) << i;
  }
  EXPECT_EQ(ids_of(**longer), oracle_reply(request));
  request.end_ids.clear();
  request.min_tokens = 0;
  auto full = engine->submit(request, nullptr);
  ASSERT_TRUE(full.ok());
  wait_finished(**full);
  EXPECT_EQ((*full)->finish_reason(), FinishReason::kLength);
  EXPECT_EQ(ids_of(**full), free_reply);
}

TEST(ModelEngine, CancellationReturnsEverythingWithinARound) {
  FakeModel model(limits_of(64));
  Gate gate(model);
  EngineConfig config;
  config.max_streams = 2;
  auto engine = make_engine(model, config);
  GenerationRequest request;
  request.prompt.assign(600, 3);
  request.max_tokens = 2000;
  std::vector<std::shared_ptr<Generation>> g;
  for (int i = 0; i < 4; ++i) g.push_back(engine->submit(request, nullptr).value());
  for (int i = 0; i < 12; ++i) gate.step();
  gate.await_forward();  // two run, two wait
  EXPECT_EQ(engine->stats().running, 2);
  for (const auto& each : g) each->cancel();
  gate.step();  // the forward under way ends; the next round only takes things back
  for (const auto& each : g) {
    wait_finished(*each);
    EXPECT_EQ(each->finish_reason(), FinishReason::kCancelled);
  }
  const EngineStats stats = wait_idle(*engine);
  EXPECT_EQ(stats.pages_free, stats.pages_total);
  EXPECT_EQ(stats.slots_free, stats.slots_total);
  EXPECT_EQ(stats.cancelled, 4u);
  // What was sent before the cancellation is right.
  const std::vector<int32_t> want = oracle_reply(request);
  for (const auto& each : g)
    EXPECT_TRUE(std::equal(each->tokens().begin(), each->tokens().end(), want.begin()));
}

TEST(ModelEngine, ALongPromptDoesNotPauseOthers) {
  FakeModel model(limits_of(64));
  class Gaps : public RoundWatch {
   public:
    void round_ended(const EngineState& state, const RoundRecord& record) override {
      RoundWatch::round_ended(state, record);
      int32_t decoding = 0, prompt_rows = 0;
      for (const RoundRecord::Rows& r : record.rows) (r.rows == 1 ? decoding : prompt_rows) += r.rows;
      if (decoding > 0 && prompt_rows > 0) {
        ++mixed;
        most_beside = std::max(most_beside, prompt_rows);
      }
    }
    int mixed = 0;
    int32_t most_beside = 0;
  } gaps;
  Gate gate(model);
  EngineConfig config;
  config.busy_prompt_rows = 16;
  auto engine = make_engine(model, config, &gaps);
  GenerationRequest reply;
  reply.prompt = {1, 2, 3};
  reply.max_tokens = 400;
  auto running = engine->submit(reply, nullptr).value();
  for (int i = 0; i < 5; ++i) gate.step();
  GenerationRequest prompt;
  prompt.prompt.assign(3000, 4);
  prompt.max_tokens = 5;
  auto filling = engine->submit(prompt, nullptr).value();
  for (int i = 0; i < 100; ++i) {
    gate.await_forward();
    const size_t before = running->tokens().size();
    gate.step();
    gate.await_forward();
    ASSERT_EQ(running->tokens().size(), before + 1);  // one token in every round
  }
  EXPECT_EQ(filling->tokens().size(), 0u);
  gate.open();
  wait_finished(*running);
  wait_finished(*filling);
  engine->stop();
  EXPECT_GE(gaps.mixed, 90);
  EXPECT_LE(gaps.most_beside, 16);
  EXPECT_EQ(ids_of(*running), oracle_reply(reply));
  EXPECT_EQ(ids_of(*filling), oracle_reply(prompt));
}

TEST(ModelEngine, AShortPromptOvertakesALongOneInsideTheRound) {
  FakeModel model(limits_of(64));
  Gate gate(model);
  auto engine = make_engine(model);
  GenerationRequest request;
  request.prompt.assign(5000, 4);
  request.max_tokens = 2;
  auto big = engine->submit(request, nullptr).value();
  gate.step();
  request.prompt.assign(40, 4);
  auto small = engine->submit(request, nullptr).value();
  gate.step();
  gate.step();
  gate.step();
  gate.await_forward();
  EXPECT_GE(small->tokens().size(), 1u);
  EXPECT_EQ(big->tokens().size(), 0u);
  gate.open();
  wait_finished(*big);
}

TEST(ModelEngine, AFailedRowEndsItsRequestAlone) {
  FakeModel model(limits_of(64));
  Gate gate(model);
  auto engine = make_engine(model);
  std::mt19937_64 rng(3);
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(random_request(rng, 20, 30));
  requests[2].prompt.back() = FakeModel::kPoisonToken;
  std::vector<std::shared_ptr<Generation>> g;
  for (const auto& r : requests) g.push_back(engine->submit(r, nullptr).value());
  gate.open();
  for (size_t i = 0; i < g.size(); ++i) {
    wait_finished(*g[i]);
    if (i == 2) {
      EXPECT_EQ(g[i]->finish_reason(), FinishReason::kError);
      EXPECT_EQ(g[i]->error().code, ErrorCode::kInternal);
    } else {
      EXPECT_EQ(ids_of(*g[i]), oracle_reply(requests[i]));
    }
  }
  const EngineStats stats = wait_idle(*engine);
  EXPECT_EQ(stats.failed, 1u);
  EXPECT_EQ(stats.finished, 5u);
}

TEST(ModelEngine, AFailedForwardEndsItsBatchAndTheEngineGoesOn) {
  FakeModel model(limits_of(64));
  auto engine = make_engine(model);
  GenerationRequest request;
  request.prompt = {1, FakeModel::kExplodeToken, 2};
  request.max_tokens = 4;
  auto failed = engine->submit(request, nullptr).value();
  wait_finished(*failed);
  EXPECT_EQ(failed->finish_reason(), FinishReason::kError);
  EXPECT_EQ(failed->error().message, "the device reported a fault");
  request.prompt = {1, 3, 2};
  auto next = engine->submit(request, nullptr).value();
  wait_finished(*next);
  EXPECT_EQ(ids_of(*next), oracle_reply(request));
  const EngineStats stats = wait_idle(*engine);
  EXPECT_EQ(stats.slots_free, stats.slots_total);
}

TEST(ModelEngine, StopCancelsAndJoins) {
  FakeModel model(limits_of(64));
  EngineConfig config;
  config.max_streams = 2;
  auto engine = make_engine(model, config);
  GenerationRequest request;
  request.prompt = {1};
  request.max_tokens = 15000;
  std::vector<std::shared_ptr<Generation>> g;
  for (int i = 0; i < 8; ++i) g.push_back(engine->submit(request, nullptr).value());
  std::atomic<bool> go{true};
  std::thread late([&] {  // submits while the engine stops: taken and ended, or refused
    while (go) {
      auto r = engine->submit(request, nullptr);
      if (!r.ok() && r.error().code == ErrorCode::kUnavailable) break;
      if (r.ok()) g.push_back(*r);
    }
  });
  std::this_thread::sleep_for(milliseconds(20));
  engine->stop();
  engine->stop();
  late.join();
  go = false;
  for (const auto& each : g) EXPECT_EQ(each->finish_reason(), FinishReason::kCancelled);
  auto refused = engine->submit(request, nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.pages_free, stats.pages_total);
  EXPECT_EQ(stats.slots_free, stats.slots_total);
}

TEST(ModelEngine, NotifyFollowsEveryTokenAndEndsWithTheReply) {
  FakeModel model(limits_of(64));
  auto engine = make_engine(model);
  struct Reader {
    std::shared_ptr<Generation> generation;
    std::atomic<int> calls{0}, after_end{0};
    std::atomic<bool> saw_end{false}, ready{false};
  } reader;
  GenerationRequest request;
  request.prompt = {1, 2};
  request.max_tokens = 50;
  reader.generation = engine
                          ->submit(request,
                                   [&] {
                                     while (!reader.ready) std::this_thread::yield();
                                     if (reader.saw_end) ++reader.after_end;
                                     ++reader.calls;
                                     if (reader.generation->finished()) reader.saw_end = true;
                                   })
                          .value();
  reader.ready = true;
  wait_finished(*reader.generation);
  wait_idle(*engine);
  engine->stop();
  EXPECT_EQ(reader.calls, 50);
  EXPECT_TRUE(reader.saw_end);
  EXPECT_EQ(reader.after_end, 0);
  const GenerationTimes t = reader.generation->times();
  EXPECT_GT(t.submitted, 0);
  EXPECT_LE(t.submitted, t.admitted);
  EXPECT_LE(t.admitted, t.first_token);
  EXPECT_LE(t.first_token, t.finished);
}

TEST(ModelEngine, AnIdleEngineSleeps) {
  FakeModel model(limits_of(64));
  RoundWatch watch;
  auto engine = make_engine(model, {}, &watch);
  GenerationRequest request;
  request.prompt = {1, 2};
  request.max_tokens = 5;
  for (int i = 0; i < 3; ++i) {
    auto g = engine->submit(request, nullptr).value();
    wait_finished(*g);
    wait_idle(*engine);
  }
  std::this_thread::sleep_for(milliseconds(100));
  const int64_t begins = watch.begins;
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_EQ(watch.begins, begins);
}

}  // namespace
}  // namespace firesteel
