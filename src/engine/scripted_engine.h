// ScriptedEngine: an Engine without a model. A callback says what the reply to a request is; the engine plays
// it in slices, with pauses, to any number of requests at once.
//
// For tests of everything above the engine, for benches of the HTTP path, and for reproducing reports. One
// thread plays all replies; a cancelled one ends within 2 ms. submit() and stop() from any thread; the script
// runs on the submitting thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace firesteel {

struct ScriptedReply {
  std::vector<int32_t>
      ids;  // played until an end id of the request, max_tokens, or the end of the list (kStop)
  std::vector<int32_t>
      slices;  // tokens that appear together, in turn; the last entry repeats; empty: one by one
  int64_t first_delay_us = 0;  // before the first slice
  int64_t delay_us = 0;        // before each further slice
  std::optional<Error> error;  // after the ids the reply fails with this
  // Forced tokens (a think block that is cut) come between the ids. Under a constraint an id that does not fit
  // is replaced: by an end id where one fits, else by the smallest id that does. Biases and penalties need a
  // model and change nothing; log-probabilities are made up.
};

class ScriptedEngine final : public Engine {
 public:
  using Script = std::function<ScriptedReply(const GenerationRequest&)>;

  /// `info` is reported as it is and checked like a real engine's limits (vocabulary, window, streams,
  /// queue).
  ScriptedEngine(EngineInfo info, Script script);
  ~ScriptedEngine() override;

  EngineInfo info() const override { return info_; }
  EngineStats stats() const override;
  Result<std::shared_ptr<Generation>> submit(GenerationRequest request,
                                             std::function<void()> notify) override;
  void stop() override;

 private:
  struct Playing {
    GenerationRequest request;
    RuleState rules;
    ScriptedReply reply;
    std::shared_ptr<Generation> generation;
    std::function<void()> notify;
    int64_t due_ns = 0;
    size_t at = 0, slice = 0;
  };
  void run();
  /// Plays the slice that is due; true if the reply is over.
  bool play(Playing& p, int64_t now);
  int32_t next_token(Playing& p);
  void finish(Playing& p, FinishReason reason, Error error);

  const EngineInfo info_;
  const Script script_;
  std::vector<std::unique_ptr<Playing>> playing_;  // engine thread
  std::vector<uint32_t> mask_;                     // engine thread

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Playing>> incoming_;  // under mutex_
  bool stop_ = false;                               // under mutex_
  std::atomic<int32_t> in_flight_{0};
  std::atomic<uint64_t> rounds_{0}, prompt_tokens_{0}, generated_{0}, finished_{0}, cancelled_{0}, failed_{0};
  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace firesteel
