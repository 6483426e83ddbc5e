#include "engine/scripted_engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "engine/limits.h"

namespace firesteel {
namespace {

/// A report that looks like a model's: falling, the token itself among the best.
void make_up(std::span<TokenLogprob> report, int32_t token, int32_t vocab) {
  const float likelihood = -0.125f * static_cast<float>(1 + token % 8);
  for (size_t k = 0; k < report.size(); ++k) {
    const auto rank = static_cast<int32_t>(k == 0 ? 0 : k - 1);
    report[k] = {(token + rank) % vocab, likelihood - 0.25f * static_cast<float>(rank)};
  }
}

constexpr int64_t kPollNs = 2'000'000;  // how late a cancellation may be noticed

}  // namespace

ScriptedEngine::ScriptedEngine(EngineInfo info, Script script)
    : info_(info), script_(std::move(script)), mask_(mask_words(info.vocab)) {
  thread_ = std::thread([this] { run(); });
}

ScriptedEngine::~ScriptedEngine() { stop(); }

EngineStats ScriptedEngine::stats() const {
  EngineStats s;
  s.running = in_flight_.load(std::memory_order_relaxed);
  s.rounds = rounds_.load(std::memory_order_relaxed);
  s.prompt_tokens = prompt_tokens_.load(std::memory_order_relaxed);
  s.generated_tokens = generated_.load(std::memory_order_relaxed);
  s.finished = finished_.load(std::memory_order_relaxed);
  s.cancelled = cancelled_.load(std::memory_order_relaxed);
  s.failed = failed_.load(std::memory_order_relaxed);
  return s;
}

Result<std::shared_ptr<Generation>> ScriptedEngine::submit(GenerationRequest request,
                                                           std::function<void()> notify) {
  if (Status status = check_request(request, info_); !status.ok()) return std::move(status).error();
  auto playing = std::make_unique<Playing>();
  playing->reply = script_(request);
  playing->generation = std::make_shared<Generation>(request);
  playing->notify = std::move(notify);
  playing->request = std::move(request);
  playing->rules = RuleState(playing->request.rules, playing->request.prompt, playing->request.max_tokens);
  const int64_t now = now_ns();
  playing->due_ns = now + playing->reply.first_delay_us * 1000;
  playing->generation->submitted.store(now, std::memory_order_relaxed);
  std::shared_ptr<Generation> generation = playing->generation;
  {
    std::lock_guard lock(mutex_);
    if (stop_) return Error{ErrorCode::kUnavailable, "the server is stopping"};
    if (in_flight_.load(std::memory_order_relaxed) >= info_.max_streams + info_.max_queue)
      return Error{ErrorCode::kBusy, "the server is busy"};
    in_flight_.fetch_add(1, std::memory_order_relaxed);
    incoming_.push_back(std::move(playing));
  }
  wake_.notify_one();
  return generation;
}

void ScriptedEngine::stop() {
  std::lock_guard one_at_a_time(stop_mutex_);
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ScriptedEngine::run() {
  for (bool stopping = false; !stopping;) {
    int64_t next = now_ns() + kPollNs;
    for (const auto& p : playing_) next = std::min(next, p->due_ns);
    {
      std::unique_lock lock(mutex_);
      const auto something = [&] { return stop_ || !incoming_.empty(); };
      if (playing_.empty()) {
        wake_.wait(lock, something);
      } else if (next > now_ns()) {
        const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(next)};
        wake_.wait_until(lock, until, something);
      }
      stopping = stop_;
      for (auto& p : incoming_) playing_.push_back(std::move(p));
      incoming_.clear();
    }
    const int64_t now = now_ns();
    rounds_.fetch_add(1, std::memory_order_relaxed);
    std::erase_if(playing_, [&](const std::unique_ptr<Playing>& p) {
      if (stopping || p->generation->cancel_requested()) {
        finish(*p, FinishReason::kCancelled, {});
        return true;
      }
      return p->due_ns <= now && play(*p, now);
    });
  }
}

/// The next token under the request's rules, −1 where nothing fits.
int32_t ScriptedEngine::next_token(Playing& p) {
  int32_t id = p.rules.forced();
  if (id < 0) {
    id = p.reply.ids[p.at++];
    TokenConstraint* const constraint = p.rules.answering() ? p.request.constraint.get() : nullptr;
    if (constraint != nullptr && !constraint->accept(id)) {
      constraint->fill_mask(mask_);
      const auto fits = [&](int32_t t) { return (mask_[static_cast<size_t>(t) >> 5] >> (t & 31) & 1u) != 0; };
      const std::vector<int32_t>& ends = p.request.end_ids;
      const auto end = std::find_if(ends.begin(), ends.end(), fits);
      for (id = end != ends.end() ? *end : 0; id < info_.vocab && !fits(id);) ++id;
      if (id == info_.vocab || !constraint->accept(id)) return -1;
    }
  }
  p.rules.take(id);
  if (p.rules.cut()) p.generation->think_cut_.store(true, std::memory_order_relaxed);
  return id;
}

bool ScriptedEngine::play(Playing& p, int64_t now) {
  Generation& generation = *p.generation;
  if (generation.admitted.load(std::memory_order_relaxed) == 0) {
    generation.admitted.store(now, std::memory_order_relaxed);
    prompt_tokens_.fetch_add(p.request.prompt.size(), std::memory_order_relaxed);
  }
  size_t count = 1;
  if (!p.reply.slices.empty()) {
    count = static_cast<size_t>(std::max(1, p.reply.slices[std::min(p.slice, p.reply.slices.size() - 1)]));
    ++p.slice;
  }
  const std::vector<int32_t>& ends = p.request.end_ids;
  for (; count > 0 && p.at < p.reply.ids.size(); --count) {
    const int32_t id = next_token(p);
    if (id < 0) {
      finish(p, FinishReason::kError, {ErrorCode::kGrammar, "the grammar rejected the reply"});
      return true;
    }
    make_up(generation.logprobs_slot(generation.tokens().size()), id, info_.vocab);
    generation.push(id);
    generated_.fetch_add(1, std::memory_order_relaxed);
    const auto count_so_far = static_cast<int32_t>(generation.tokens().size());
    if (count_so_far == 1) generation.first_token.store(now, std::memory_order_relaxed);
    const bool is_end = std::find(ends.begin(), ends.end(), id) != ends.end();
    if (is_end && count_so_far > p.request.min_tokens) {
      finish(p, FinishReason::kStop, {});
      return true;
    }
    if (count_so_far == p.request.max_tokens) {
      finish(p, FinishReason::kLength, {});
      return true;
    }
  }
  if (p.at == p.reply.ids.size()) {
    if (p.reply.error)
      finish(p, FinishReason::kError, *p.reply.error);
    else
      finish(p, FinishReason::kStop, {});
    return true;
  }
  p.due_ns = now + p.reply.delay_us * 1000;
  if (p.notify) p.notify();
  return false;
}

void ScriptedEngine::finish(Playing& p, FinishReason reason, Error error) {
  std::atomic<uint64_t>& counter = reason == FinishReason::kError       ? failed_
                                   : reason == FinishReason::kCancelled ? cancelled_
                                                                        : finished_;
  counter.fetch_add(1, std::memory_order_relaxed);
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  p.generation->ended.store(now_ns(), std::memory_order_relaxed);
  p.generation->finish(reason, std::move(error));
  if (p.notify) p.notify();
}

}  // namespace firesteel
