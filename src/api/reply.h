// How a reply goes out: a run (reply_run.h) calls a writer with pieces of text as they become certain, the
// writer turns them into one route's bytes. A writer is used on its exchange's sequence only.
//
// Whole and streamed replies come from the same calls in the same order, so they cannot differ in content.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/errors.h"
#include "decode/group_sampler.h"

namespace firesteel::api {

struct Usage {
  int64_t prompt = 0;
  int64_t cached = 0;      // of the prompt, resumed from a kept state
  int64_t completion = 0;  // every token that was decoded and kept
  int64_t reasoning = 0;   // through the closing think marker
  bool predicted = false;  // the request offered a prediction
};

struct ReplyCall {
  std::string id, name, arguments;  // arguments: compact JSON text
};

enum class ReplyEnd { kStop, kLength, kToolCalls };

struct ChoiceEnd {
  ReplyEnd end = ReplyEnd::kStop;
  std::optional<std::string> stop_string;  // the one that matched
  std::optional<int32_t> stop_token;       // a caller's own stop token
  std::vector<int32_t> tokens;             // all of the choice's tokens, for return_token_ids
  double mean_logprob = 0;                 // of these tokens, where log-probabilities are known
};

/// Figures of one reply for its server_stats block; negative: not known.
struct ReplyStats {
  double queue_ms = -1, prefill_ms = -1, ttft_ms = -1, decode_tps = -1;
  bool think_cut = false;  // a budget or the loop guard closed the think block
};

/// Of one token: its own log-probability first, then the best ones (engine/engine.h).
using TokenReport = std::span<const TokenLogprob>;

class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;

  /// The request was admitted. A stream opens here, before any token.
  virtual void begin() = 0;
  virtual void reasoning(int choice, std::string_view text) = 0;
  virtual void content(int choice, std::string_view text) = 0;
  /// Log-probabilities, where they were asked for, of the tokens whose text begins in the next piece of
  /// reasoning or content.
  virtual void scores(int choice, std::span<const TokenReport> tokens) { (void)choice, (void)tokens; }
  /// The same of the prompt's tokens but the first, before anything of the reply.
  virtual void prompt_scores(int choice, std::span<const TokenReport> tokens) { (void)choice, (void)tokens; }
  virtual void call(int choice, const ReplyCall& call) = 0;
  /// A call that goes out as it is written, instead of call(): its id and tool, then its arguments as JSON
  /// text.
  virtual void call_begun(int choice, const std::string& id, const std::string& name) {
    (void)choice, (void)id, (void)name;
  }
  virtual void call_arguments(int choice, std::string_view json) { (void)choice, (void)json; }
  /// Something invisible is being written; keeps clients with an idle timer patient.
  virtual void heartbeat(int choice) = 0;
  /// A batch of pieces is complete: bytes may go out. `usage` so far.
  virtual void flush(const Usage& usage) = 0;
  virtual void end_choice(int choice, const ChoiceEnd& end) = 0;
  virtual void end(const Usage& usage, const ReplyStats& stats) = 0;
  /// The only failure after begin(): an error event, or a status line if none went out yet.
  virtual void fail(const ApiError& error) = 0;
};

const char* finish_reason_name(ReplyEnd end);

}  // namespace firesteel::api
