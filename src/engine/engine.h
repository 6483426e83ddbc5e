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
#include "decode/sampler.h"

namespace firesteel {

struct GenerationRequest {
  std::vector<int32_t> prompt;   // at least one id
  SamplingParams sampling;       // seed absent: derived from the prompt (spec/decoding.md 1.2)
  int32_t max_tokens = 0;        // ≥ 1; prompt + max_tokens ≤ window
  std::vector<int32_t> end_ids;  // tokens that end the reply (the token is emitted, reason kStop)
  int32_t min_tokens = 0;        // end_ids are masked before this many
  bool background = false;       // yields to others
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled, kError };

struct GenerationTimes {  // steady-clock nanoseconds, 0 = not yet
  int64_t submitted = 0, admitted = 0, first_token = 0, finished = 0;
};

/// One running reply, shared by the engine and one reader.
class Generation {
 public:
  explicit Generation(int32_t max_tokens) : tokens_(static_cast<size_t>(max_tokens)) {}

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

  // --- engine side
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

 private:
  std::vector<int32_t> tokens_;
  std::atomic<size_t> count_{0};
  std::atomic<FinishReason> finish_{FinishReason::kNone};
  std::atomic<bool> cancel_{false};
  Error error_;
};

struct EngineInfo {
  int32_t vocab = 0;
  int32_t window = 0;       // tokens a request may span
  int32_t max_streams = 0;  // requests in one batch
  int64_t pool_tokens = 0;  // tokens that all pages hold
  int32_t max_queue = 0;
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
