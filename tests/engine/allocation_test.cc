// The engine thread allocates nothing in a round: operator new counts what is asked for on that thread
// between the start of planning and the end of the round.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/model_engine.h"
#include "fake_model.h"
#include "requests.h"

namespace {
thread_local bool counting = false;
std::atomic<int64_t> allocations{0};

void* counted(std::size_t bytes) {
  if (counting) allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace firesteel {
namespace {

class Counter : public ModelEngine::Observer {
 public:
  explicit Counter(bool allocate = false) : allocate_(allocate) {}
  void round_begins() override { counting = true; }
  void round_ended(const EngineState&, const RoundRecord&) override {
    if (allocate_) delete new int(1);
    counting = false;
    ++rounds;
  }
  int rounds = 0;

 private:
  bool allocate_;
};

/// Allocations of the engine thread in its rounds over a mixed load: preemption, cancellation, background,
/// all paths of the sampler.
int64_t allocations_in_rounds(Counter& counter) {
  ModelLimits limits;
  limits.max_rows = 96;
  limits.max_logit_rows = 8;
  limits.pages = 12;
  limits.slots = 8;
  FakeModel model(limits);
  EngineConfig config;
  config.headroom_tokens = 20;
  config.max_queue = 200;
  auto engine = ModelEngine::create(model, config, &counter);
  EXPECT_TRUE(engine.ok());
  allocations = 0;
  std::mt19937_64 rng(12);
  std::vector<std::shared_ptr<Generation>> sent;
  for (int i = 0; i < 120; ++i) {
    GenerationRequest request = random_request(rng, 300, 300);
    request.background = i % 5 == 0;
    sent.push_back((*engine)->submit(std::move(request), [] {}).value());
    if (i % 4 == 1) sent[rng() % sent.size()]->cancel();
    if (i % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const auto& g : sent) wait_finished(*g);
  (*engine)->stop();
  return allocations;
}

class EngineAllocations : public ::testing::Test {
 protected:
  void SetUp() override {
#ifndef NDEBUG
    GTEST_SKIP() << "debug builds verify the state after each round, which allocates";
#endif
  }
};

TEST_F(EngineAllocations, NoneInARound) {
  Counter counter;
  EXPECT_EQ(allocations_in_rounds(counter), 0);
  EXPECT_GT(counter.rounds, 300);
}

TEST_F(EngineAllocations, OneIsNoticed) {
  Counter counter(true);
  EXPECT_EQ(allocations_in_rounds(counter), counter.rounds);
}

}  // namespace
}  // namespace firesteel
