// Scheduler and Executor as a state machine, without threads: random arrivals, cancellations and rounds
// against a model that knows only what must be true.
#include "engine/scheduler.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <memory>

#include "engine/executor.h"
#include "fake_model.h"
#include "requests.h"

namespace firesteel {
namespace {

struct Dimensions {
  int32_t streams, pages, max_rows, busy_rows, headroom, window;
};

/// The engine's loop of one round, and the checks.
class Machine {
 public:
  explicit Machine(const Dimensions& setup)
      : setup_(setup),
        config_{setup.streams, kQueue, setup.window, 0, setup.busy_rows, setup.headroom},
        model_(ModelLimits{setup.max_rows, setup.streams, setup.pages, setup.streams}),
        state_(config_, setup.window, setup.pages, setup.streams),
        scheduler_(config_, setup.max_rows, 0),
        executor_(model_, config_),
        record_(setup.streams, model_.config().vocab),
        outcome_(setup.streams),
        waiting_(setup.streams + kQueue) {}

  bool full() const { return live_.size() >= static_cast<size_t>(setup_.streams + kQueue); }
  size_t live() const { return live_.size(); }

  void submit(std::mt19937_64& rng) {
    if (full()) return;
    auto request = std::make_unique<Request>();
    request->id = ++last_id_;
    const int32_t prompt = 1 + static_cast<int32_t>(rng() % static_cast<uint64_t>(setup_.window - 1));
    const int32_t room = setup_.window - prompt;
    request->spec = random_request(rng, 1, std::max(1, room));
    request->spec.max_tokens = std::min(request->spec.max_tokens, room);
    request->spec.min_tokens = std::min(request->spec.min_tokens, request->spec.max_tokens);
    request->spec.prompt.resize(static_cast<size_t>(rng() % 3 == 0 ? prompt : 1 + prompt % 9), 7);
    request->spec.background = rng() % 4 == 0;
    request->seed = rng();
    request->spec.sampling.seed = request->seed;
    request->prepare();
    waiting_.insert(request.get());
    live_.emplace(request->id, std::move(request));
  }

  void cancel(std::mt19937_64& rng) {
    if (live_.empty()) return;
    auto at = live_.lower_bound(rng() % (last_id_ + 1));
    if (at != live_.end()) at->second->generation->cancel();
  }

  void round() {
    for (std::vector<Request*>* list : {&waiting_.foreground, &waiting_.background})
      for (size_t i = list->size(); i-- > 0;)
        if ((*list)[i]->generation->cancel_requested()) {
          end((*list)[i], FinishReason::kCancelled);
          list->erase(list->begin() + static_cast<ptrdiff_t>(i));
        }
    scheduler_.plan(state_, waiting_, record_);
    check_record();
    if (record_.empty()) {
      // Nothing to do only if there is nothing: no deadlock.
      RC_ASSERT(live_.empty());
      return;
    }
    for (const RoundRecord::Admission& a : record_.admissions) waiting_.remove(a.request);
    decoding_.clear();
    for (const Stream& s : state_.streams)
      if (s.request != nullptr && s.pending() == 1)
        decoding_.push_back({s.request->id, s.request->generated()});
    executor_.apply(record_, state_, outcome_);
    tokens += outcome_.tokens;
    preempts += static_cast<int64_t>(outcome_.preempted.size());
    for (Request* request : outcome_.preempted) waiting_.insert(request);
    check_progress();
    for (const RoundOutcome::Finished& f : outcome_.finished) end(f.request, f.reason);
    if (++rounds % 16 == 0) state_.verify();
    RC_ASSERT(state_.running() + waiting_.size() == static_cast<int32_t>(live_.size()));
  }

  int64_t rounds = 0, tokens = 0, preempts = 0, finished = 0, cancelled = 0;

  void check_empty() const {
    state_.verify();
    RC_ASSERT(state_.pages.free() == setup_.pages);
    RC_ASSERT(state_.slots.free() == setup_.streams);
    RC_ASSERT(waiting_.empty());
  }

 private:
  static constexpr int32_t kQueue = 12;

  void check_record() {
    int32_t rows = 0, beside = 0;
    bool decodes = false;
    for (const RoundRecord::Rows& r : record_.rows) rows += r.rows;
    RC_ASSERT(rows <= setup_.max_rows);
    for (const RoundRecord::Rows& r : record_.rows) {
      const Stream& s = state_.streams[static_cast<size_t>(r.stream)];
      const bool admitted = std::any_of(record_.admissions.begin(), record_.admissions.end(),
                                        [&](const auto& a) { return a.stream == r.stream; });
      const int32_t pending = admitted ? 0 : s.pending();
      if (!admitted && pending == 1)
        decodes = true;
      else
        beside += r.rows;
    }
    if (decodes) {
      // One-token prompts that were just admitted count as decoding rows.
      RC_ASSERT(beside <= setup_.busy_rows + static_cast<int32_t>(record_.admissions.size()));
    }
    // Nobody is overtaken inside a class: those admitted are the oldest that wait and are not cancelled.
    for (const std::vector<Request*>* list : {&waiting_.foreground, &waiting_.background}) {
      bool skipped = false;
      for (const Request* request : *list) {
        const bool admitted = std::any_of(record_.admissions.begin(), record_.admissions.end(),
                                          [&](const auto& a) { return a.request == request; });
        const bool overtook = admitted && skipped;
        RC_ASSERT(!overtook);
        skipped = skipped || !admitted;
      }
    }
    // A background request starts only if no foreground request is left waiting.
    const size_t foreground =
        static_cast<size_t>(std::count_if(record_.admissions.begin(), record_.admissions.end(),
                                          [](const auto& a) { return !a.request->spec.background; }));
    if (foreground < waiting_.foreground.size()) {
      RC_ASSERT(foreground == record_.admissions.size());
    }
  }

  static bool comes_before(const Request& a, const Request& b) {
    return a.spec.background == b.spec.background ? a.id < b.id : b.spec.background;
  }

  void check_progress() {
    // Every reply that decoded got its token, or was cancelled, or gave way to one of higher priority.
    for (const auto& [id, generated] : decoding_) {
      const Request& request = *live_.at(id);
      const auto is = [&](const Request* r) { return r == &request; };
      if (std::any_of(outcome_.preempted.begin(), outcome_.preempted.end(), is)) {
        bool somebody_before = false;
        const auto note = [&](const Request* other) {
          somebody_before = somebody_before || (other != nullptr && comes_before(*other, request));
        };
        for (const Stream& s : state_.streams) note(s.request);
        for (const RoundOutcome::Finished& f : outcome_.finished) note(f.request);
        RC_ASSERT(somebody_before);
        continue;
      }
      const bool ended_cancelled = std::any_of(outcome_.finished.begin(), outcome_.finished.end(),
                                               [&](const RoundOutcome::Finished& f) {
                                                 return is(f.request) && f.reason == FinishReason::kCancelled;
                                               });
      if (!ended_cancelled) {
        RC_ASSERT(request.generated() == generated + 1);
      }
    }
    // Who was cancelled before the round is gone after it.
    for (const Stream& s : state_.streams) {
      const bool cancelled_runs = s.request != nullptr && s.request->generation->cancel_requested();
      RC_ASSERT(!cancelled_runs);
    }
  }

  void end(Request* request, FinishReason reason) {
    const auto at = live_.find(request->id);
    RC_ASSERT(at != live_.end());
    const std::vector<int32_t> got = ids_of(*request->generation);
    if (reason == FinishReason::kCancelled) {
      ++cancelled;
    } else {
      ++finished;
      RC_ASSERT(reason != FinishReason::kError);
    }
    if (request->id % 8 == 0) {  // the oracle is slow
      const std::vector<int32_t> want = oracle_reply(request->spec);
      RC_ASSERT(got.size() <= want.size());
      const bool prefix = std::equal(got.begin(), got.end(), want.begin());
      RC_ASSERT(prefix);
      if (reason != FinishReason::kCancelled) {
        RC_ASSERT(got.size() == want.size());
      }
    }
    live_.erase(at);
  }

  Dimensions setup_;
  EngineConfig config_;
  FakeModel model_;
  EngineState state_;
  Scheduler scheduler_;
  Executor executor_;
  RoundRecord record_;
  RoundOutcome outcome_;
  WaitingRequests waiting_;
  std::map<uint64_t, std::unique_ptr<Request>> live_;
  std::vector<std::pair<uint64_t, int32_t>> decoding_;
  uint64_t last_id_ = 0;
};

TEST(Scheduler, MillionOperations) {
  int64_t operations = 0, rounds = 0, preempts = 0, finished = 0, cancelled = 0;
  const bool ok = rc::check("admission, pages, slots and cancellation keep their invariants", [&] {
    Dimensions setup;
    setup.streams = *rc::gen::inRange(1, 9);
    setup.pages = *rc::gen::inRange(1, 14);
    setup.max_rows = setup.streams + *rc::gen::inRange(0, 60);
    setup.busy_rows = *rc::gen::inRange(1, 40);
    setup.headroom = *rc::gen::inRange(1, 600);
    setup.window = std::min(setup.pages * kPageTokens, *rc::gen::inRange(3, 900));
    const uint64_t seed = *rc::gen::arbitrary<uint64_t>();
    const int arrivals = *rc::gen::inRange(1, 12), departures = *rc::gen::inRange(0, 6);
    Machine machine(setup);
    std::mt19937_64 rng(seed);
    for (int i = 0; i < 10000; ++i, ++operations) {
      const int pick = static_cast<int>(rng() % 40);
      if (pick < arrivals)
        machine.submit(rng);
      else if (pick < arrivals + departures)
        machine.cancel(rng);
      else
        machine.round();
    }
    while (machine.live() > 0) machine.round();
    machine.check_empty();
    rounds += machine.rounds;
    preempts += machine.preempts;
    finished += machine.finished;
    cancelled += machine.cancelled;
  });
  EXPECT_TRUE(ok);
  EXPECT_GE(operations, 1000000);
  EXPECT_GT(preempts, 0);
  std::printf(
      "%lld operations, %lld rounds: %lld replies finished, %lld cancelled, %lld gave way and went on\n",
      static_cast<long long>(operations), static_cast<long long>(rounds), static_cast<long long>(finished),
      static_cast<long long>(cancelled), static_cast<long long>(preempts));
}

// Two machines that apply the same records stay equal, though only one of them plans.
TEST(Scheduler, AReplicaThatAppliesTheRecordsStaysEqual) {
  const EngineConfig config{4, 30, 700, 0, 20, 10};
  const ModelLimits limits{40, 4, 6, 4};
  FakeModel model_a(limits), model_b(limits);
  EngineState a(config, 700, 6, 4), b(config, 700, 6, 4);
  Scheduler scheduler(config, limits.max_rows, limits.max_logit_rows - 4);
  Executor executor_a(model_a, config), executor_b(model_b, config);
  RoundRecord record(4, model_a.config().vocab), replayed(4, model_a.config().vocab);
  RoundOutcome outcome_a(4), outcome_b(4);
  WaitingRequests waiting(34);
  std::mt19937_64 rng(5);
  std::map<uint64_t, std::unique_ptr<Request>> requests_a, requests_b;
  for (uint64_t id = 1; id <= 30; ++id) {
    auto request = std::make_unique<Request>();
    request->id = id;
    request->spec = random_request(rng, 300, 350);
    request->spec.end_ids.clear();  // long replies come to need the pages of others
    request->spec.max_tokens = 350;
    request->spec.min_tokens = 0;
    request->spec.background = id % 4 == 0;
    request->seed = rng();
    for (auto* side : {&requests_a, &requests_b}) {
      auto copy = std::make_unique<Request>();
      copy->id = id;
      copy->spec = request->spec;
      copy->seed = request->seed;
      copy->prepare();
      side->emplace(id, std::move(copy));
    }
    waiting.insert(requests_a.at(id).get());
  }
  int rounds = 0, preempts = 0;
  for (;; ++rounds) {
    if (rng() % 50 == 0) requests_a.at(1 + rng() % 30)->generation->cancel();
    scheduler.plan(a, waiting, record);
    if (record.empty()) break;
    replayed = record;
    for (RoundRecord::Admission& admission : replayed.admissions) {
      waiting.remove(admission.request);
      admission.request = requests_b.at(admission.request->id).get();
    }
    executor_a.apply(record, a, outcome_a);
    executor_b.apply(replayed, b, outcome_b);
    for (Request* request : outcome_a.preempted) waiting.insert(request);
    preempts += static_cast<int>(outcome_a.preempted.size());
    for (size_t i = 0; i < a.streams.size(); ++i) {
      const Stream &x = a.streams[i], &y = b.streams[i];
      ASSERT_EQ(x.request == nullptr, y.request == nullptr);
      if (x.request == nullptr) continue;
      ASSERT_EQ(x.request->id, y.request->id);
      ASSERT_EQ(x.sequence.slot(), y.sequence.slot());
      ASSERT_EQ(x.sequence.rows(), y.sequence.rows());
      ASSERT_TRUE(std::equal(x.sequence.pages().begin(), x.sequence.pages().end(), y.sequence.pages().begin(),
                             y.sequence.pages().end()));
    }
  }
  EXPECT_GT(rounds, 300);
  EXPECT_GT(preempts, 0);
  for (const auto& [id, request] : requests_a)
    EXPECT_EQ(ids_of(*request->generation), ids_of(*requests_b.at(id)->generation)) << id;
}

}  // namespace
}  // namespace firesteel
