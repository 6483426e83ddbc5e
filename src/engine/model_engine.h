// ModelEngine: the Engine over a Model. It owns one thread, which alone touches the model, the pools and the
// requests.
//
// A round: take new requests, plan (Scheduler), apply (Executor), tell the readers. Between two rounds a
// finished request is freed, its notify closure included, on the engine thread. A forward that fails ends the
// requests in its batch with the model's error; a row without usable logits ends its request alone.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/engine.h"
#include "engine/executor.h"
#include "engine/inbox.h"
#include "engine/round.h"
#include "engine/scheduler.h"

namespace firesteel {

class ModelEngine final : public Engine {
 public:
  /// Watches rounds from the engine thread; for tests and tools. Called before planning and after the readers
  /// were told.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void round_begins() {}
    virtual void round_ended(const EngineState& state, const RoundRecord& record) {
      (void)state, (void)record;
    }
  };

  /// The model (and observer) must outlive the engine. Errors: kInvalidArgument for settings that the model's
  /// limits do not allow, naming the setting.
  static Result<std::unique_ptr<ModelEngine>> create(Model& model, EngineConfig config,
                                                     Observer* observer = nullptr);
  ~ModelEngine() override;

  EngineInfo info() const override { return info_; }
  EngineStats stats() const override;
  Result<std::shared_ptr<Generation>> submit(GenerationRequest request,
                                             std::function<void()> notify) override;
  void stop() override;

 private:
  ModelEngine(Model& model, const EngineConfig& config, const EngineInfo& info, Observer* observer);
  void run();
  void take_requests();
  void drop_cancelled();
  void finish_round();
  void finish(Request* request, FinishReason reason, Error error);
  void shut_down();
  void publish();

  const EngineConfig config_;
  const EngineInfo info_;
  Observer* const observer_;
  EngineState state_;
  Scheduler scheduler_;
  Executor executor_;
  RoundRecord record_;
  RoundOutcome outcome_;
  WaitingRequests waiting_;
  uint64_t next_id_ = 1;

  Inbox inbox_;
  std::atomic<bool> stopping_{false};
  std::atomic<int32_t> in_flight_{0};  // submitted and not finished
  struct Counters {
    std::atomic<int32_t> running{0}, queued{0}, pages_free{0}, slots_free{0};
    std::atomic<uint64_t> rounds{0}, prompt_tokens{0}, generated_tokens{0}, finished{0}, cancelled{0},
        failed{0};
  } counters_;
  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace firesteel
