// Random requests, and waiting for replies.
#pragma once

#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "fake_model.h"

namespace firesteel {

/// Wakes a test that waits for replies.
class Bell {
 public:
  void ring() {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  template <typename Condition>
  void wait(Condition condition) {
    std::unique_lock lock(mutex_);
    while (!condition()) changed_.wait_for(lock, std::chrono::milliseconds(20));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

inline void wait_finished(const Generation& generation) {
  while (!generation.finished()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}
/// Until nothing runs or waits.
inline EngineStats wait_idle(const Engine& engine) {
  for (;;) {
    const EngineStats s = engine.stats();
    if (s.running == 0 && s.queued == 0 && s.pages_free == s.pages_total) return s;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

inline std::vector<int32_t> ids_of(const Generation& generation) {
  return {generation.tokens().begin(), generation.tokens().end()};
}

inline ReplyRules random_rules(std::mt19937_64& rng, int32_t max_reply) {
  ReplyRules rules;
  const auto id = [&] { return static_cast<int32_t>(rng() % 57); };
  if (rng() % 2 == 0)
    for (int i = 0; i < 5; ++i) rules.bias.push_back({id(), static_cast<float>(rng() % 9) - 4});
  if (rng() % 8 == 0) rules.bias.push_back({id(), -std::numeric_limits<float>::infinity()});
  if (rng() % 2 == 0) rules.presence = static_cast<double>(rng() % 40) / 10 - 2;
  if (rng() % 2 == 0) rules.frequency = static_cast<double>(rng() % 40) / 10 - 2;
  if (rng() % 2 == 0) rules.repetition = 0.5 + static_cast<double>(rng() % 15) / 10;
  if (rng() % 2 == 0)
    rules.think = {true, id(), static_cast<int32_t>(rng() % static_cast<uint64_t>(max_reply)), false, {}};
  rules.think.close = {id(), rules.think.end_id, id()};
  if (rules.think.end_id < 0) rules.think.close.clear();
  return rules;
}

inline GenerationRequest random_request(std::mt19937_64& rng, int32_t max_prompt, int32_t max_reply) {
  GenerationRequest r;
  r.prompt.resize(1 + rng() % static_cast<uint64_t>(max_prompt));
  for (int32_t& id : r.prompt) id = static_cast<int32_t>(rng() % (FakeModel::kVocab - 2));
  r.max_tokens = 1 + static_cast<int32_t>(rng() % static_cast<uint64_t>(max_reply));
  if (rng() % 2 == 0) {
    r.sampling = {0.2 + static_cast<double>(rng() % 20) / 10,
                  static_cast<int32_t>(rng() % 3 ? 0 : rng() % 30),
                  rng() % 2 ? 0.95 : 1.0,
                  rng() % 4 ? 0.0 : 0.05,
                  {}};
    if (rng() % 2 == 0) r.sampling.seed = rng();
  }
  if (rng() % 3 == 0) r.end_ids = {static_cast<int32_t>(rng() % 57), static_cast<int32_t>(rng() % 57)};
  if (rng() % 3 == 0) r.min_tokens = static_cast<int32_t>(rng() % static_cast<uint64_t>(r.max_tokens + 1));
  if (rng() % 3 == 0) r.rules = random_rules(rng, max_reply);
  return r;
}

}  // namespace firesteel
