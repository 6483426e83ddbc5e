// The engine as the API sees it: token ids in, token ids out. It knows nothing of HTTP or text.
//
// submit() and the methods of Generation may be called from any thread. One engine thread runs rounds; in a
// round it allocates nothing, takes no lock that another thread holds for long, and never waits for a client:
// tokens go to a preallocated array that the reader follows, and `notify` (which must not block) says that
// there is something new.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "decode/group_sampler.h"
#include "decode/reply_rules.h"
#include "decode/sampler.h"
#include "decode/token_constraint.h"

namespace firesteel {

struct GenerationRequest {
  std::vector<int32_t> prompt;   // at least one id
  SamplingParams sampling;       // seed absent: derived from the prompt (spec/decoding.md 1.2)
  int32_t max_tokens = 0;        // ≥ 1; prompt + max_tokens ≤ window
  std::vector<int32_t> end_ids;  // tokens that end the reply (the token is emitted, reason kStop)
  int32_t min_tokens = 0;        // end_ids are masked before this many; not in rows that `constraint` masks
  ReplyRules rules;
  std::shared_ptr<TokenConstraint> constraint;  // of the answer; this request's alone; null: none
  int32_t logprobs = -1;         // best tokens to report with each token, to kMaxLogprobs; −1: no report
  bool prompt_logprobs = false;  // with logprobs: of the prompt's tokens too
  bool background = false;       // yields to others
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled, kError };

struct GenerationTimes {  // steady-clock nanoseconds, 0 = not yet
  int64_t submitted = 0, admitted = 0, first_token = 0, finished = 0;
};

/// One running reply, shared by the engine and one reader.
class Generation {
 public:
  explicit Generation(const GenerationRequest& request);

  /// Tokens so far; grows only. The first count() elements are final. The end token, if one ended the reply,
  /// is the last.
  std::span<const int32_t> tokens() const { return {tokens_.data(), count_.load(std::memory_order_acquire)}; }
  bool finished() const { return finish_.load(std::memory_order_acquire) != FinishReason::kNone; }
  FinishReason finish_reason() const { return finish_.load(std::memory_order_acquire); }
  const Error& error() const { return error_; }  // when finish_reason() is kError
  /// Asks the engine to stop; pages and slot come back within a round. Idempotent.
  void cancel() { cancel_.store(true, std::memory_order_release); }
  bool cancel_requested() const { return cancel_.load(std::memory_order_acquire); }
  GenerationTimes times() const {
    return {submitted.load(std::memory_order_relaxed), admitted.load(std::memory_order_relaxed),
            first_token.load(std::memory_order_relaxed), ended.load(std::memory_order_relaxed)};
  }
  int32_t cached_tokens() const { return cached_.load(std::memory_order_relaxed); }
  bool reports_logprobs() const { return logprobs_ != nullptr; }
  /// The think block was closed by a budget or the loop guard.
  bool think_cut() const { return think_cut_.load(std::memory_order_relaxed); }
  /// Log-probabilities at token i < tokens().size(): its own first, then the best ones in the order, id −1
  /// beyond the vocabulary. Log-softmax of the model's logits before rules and masks. Empty if not asked for.
  std::span<const TokenLogprob> logprobs(size_t i) const { return report(logprobs_, i); }
  /// The same of prompt token i ≥ 1, once there is a token of the reply.
  std::span<const TokenLogprob> prompt_logprobs(size_t i) const { return report(prompt_logprobs_, i); }

  // --- engine side
  /// Where the report of token i belongs; written before the token is pushed.
  std::span<TokenLogprob> logprobs_slot(size_t i) { return {logprobs_.get() + i * per_token_, per_token_}; }
  std::span<TokenLogprob> prompt_logprobs_slot(size_t i) {
    return {prompt_logprobs_.get() + i * per_token_, per_token_};
  }
  void push(int32_t token) {
    const size_t n = count_.load(std::memory_order_relaxed);
    tokens_[n] = token;
    count_.store(n + 1, std::memory_order_release);
  }
  void finish(FinishReason reason, Error error = {}) {
    error_ = std::move(error);
    finish_.store(reason, std::memory_order_release);
  }
  std::atomic<int64_t> submitted{0}, admitted{0}, first_token{0}, ended{0};
  std::atomic<int32_t> cached_{0};
  std::atomic<bool> think_cut_{false};

 private:
  std::span<const TokenLogprob> report(const std::unique_ptr<TokenLogprob[]>& all, size_t i) const {
    return all == nullptr ? std::span<const TokenLogprob>()
                          : std::span(all.get() + i * per_token_, per_token_);
  }
  std::vector<int32_t> tokens_;
  const size_t per_token_;  // of the two below
  // As large as the reply may become; memory that is not written to costs none.
  std::unique_ptr<TokenLogprob[]> logprobs_, prompt_logprobs_;
  std::atomic<size_t> count_{0};
  std::atomic<FinishReason> finish_{FinishReason::kNone};
  std::atomic<bool> cancel_{false};
  Error error_;
};

inline Generation::Generation(const GenerationRequest& request)
    : tokens_(static_cast<size_t>(request.max_tokens)),
      per_token_(request.logprobs < 0 ? 0 : static_cast<size_t>(request.logprobs) + 1) {
  if (request.logprobs < 0) return;
  logprobs_ = std::make_unique_for_overwrite<TokenLogprob[]>(tokens_.size() * per_token_);
  if (request.prompt_logprobs)
    prompt_logprobs_ = std::make_unique_for_overwrite<TokenLogprob[]>(request.prompt.size() * per_token_);
}

struct EngineInfo {
  int32_t vocab = 0;
  int32_t window = 0;       // tokens a request may span
  int32_t max_streams = 0;  // requests in one batch
  int64_t pool_tokens = 0;  // tokens that all pages hold
  int32_t max_queue = 0;
  bool prompt_logprobs = true;  // there is room to score prompts
  std::string device;           // what computes: "CPU", "NVIDIA GB10"
  std::string formats;          // how numbers are kept: "exact", or what is lossy
};

struct EngineStats {
  bool whole = true;  // false while ranks that share the model are missing: submit() refuses
  int32_t running = 0, queued = 0;
  int32_t pages_total = 0, pages_free = 0, slots_total = 0, slots_free = 0;
  uint64_t rounds = 0, prompt_tokens = 0, generated_tokens = 0, finished = 0, cancelled = 0, failed = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual EngineInfo info() const = 0;
  virtual EngineStats stats() const = 0;
  /// Checks and queues. Errors: kInvalidArgument (bad ids or settings), kContextLength, kBusy (queue full),
  /// kUnavailable (stopping). `notify` is called from the engine thread after new tokens or the finish; it
  /// must be cheap and is never called after the returned Generation finished and that call returned.
  virtual Result<std::shared_ptr<Generation>> submit(GenerationRequest request,
                                                     std::function<void()> notify) = 0;
  /// Stops admissions, cancels what runs, joins the engine thread. Idempotent.
  virtual void stop() = 0;
};

}  // namespace firesteel
