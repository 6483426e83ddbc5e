// ModelEngine: the Engine over a Model. It owns one thread, which alone touches the model, the pools and the
// requests.
//
// A round: take new requests, plan (Scheduler), apply (Executor), tell the readers. Between two rounds a
// finished request is freed, its notify closure included, on the engine thread. A forward that fails ends the
// requests in its batch with the model's error; a row without usable logits ends its request alone.
//
// Where several ranks share the model this is rank 0: each record is sent to the others before it is applied.
// When the group breaks, everything that runs or waits ends with kUnavailable at once, submit() refuses with
// the same until the group stands again, and nothing else is lost.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/rank_group.h"
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

  /// The model (and observer and group) must outlive the engine. `group`: the other ranks of a model that is
  /// shared, null for one that is whole. Errors: kInvalidArgument for settings that the model's limits do not
  /// allow, naming the setting.
  static Result<std::unique_ptr<ModelEngine>> create(Model& model, EngineConfig config,
                                                     Observer* observer = nullptr,
                                                     RankGroup* group = nullptr);
  ~ModelEngine() override;

  EngineInfo info() const override { return info_; }
  EngineStats stats() const override;
  Result<std::shared_ptr<Generation>> submit(GenerationRequest request,
                                             std::function<void()> notify) override;
  void stop() override;

 private:
  ModelEngine(Model& model, const EngineConfig& config, const EngineInfo& info, Observer* observer,
              RankGroup* group);
  void run();
  bool join_ranks();
  void fill_masks();
  Status send_record();
  void fail_everything(const Error& error);
  void take_requests();
  void drop_cancelled();
  void finish_round();
  void finish(Request* request, FinishReason reason, Error error);
  void shut_down();
  void publish();

  const EngineConfig config_;
  const EngineInfo info_;
  Observer* const observer_;
  RankGroup* const group_;
  std::shared_ptr<Communicator> comm_;  // the other ranks; null where there are none or while they are lost
  std::vector<std::byte> sealed_;       // a record as it is sent
  std::vector<uint64_t> forgets_;       // preempted requests that ended meanwhile
  EngineState state_;
  Scheduler scheduler_;
  Executor executor_;
  RoundRecord record_;
  RoundOutcome outcome_;
  WaitingRequests waiting_;
  uint64_t next_id_ = 1;

  Inbox inbox_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> whole_{true};      // no rank is missing
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
