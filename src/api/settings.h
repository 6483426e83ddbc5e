// What the generating routes have in common: sampling, limits, stops, streaming. Read from a body once,
// checked here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/constraint.h"
#include "api/errors.h"
#include "api/field_reader.h"
#include "decode/group_sampler.h"
#include "decode/reply_rules.h"
#include "decode/sampler.h"

namespace firesteel::api {

/// Defaults of a server: the checkpoint's generation settings and the command line's switches.
struct SettingDefaults {
  double temperature = 1.0;
  double top_p = 0.95;
  int32_t top_k = 0;
  int64_t max_tokens = 32'768;  // reasoning and answer, when the request names no limit
  bool random_seed = false;     // a fresh seed for requests without one
};

/// Where usage goes in a stream (spec: none asked, asked, declined).
enum class StreamUsage { kOnFinish, kOwnChunk, kNone };

struct ReplySettings {
  SamplingParams sampling;
  int64_t max_tokens = 0;  // 0: not given
  int64_t min_tokens = 0;
  int64_t choices = 1;
  ReplyRules rules;          // biases and penalties
  int64_t think_budget = 0;  // reply tokens after which a think block is closed; 0: none
  int32_t logprobs = -1;     // best tokens reported with each token; −1: no report
  std::optional<AnswerFormat> format;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool stop_in_reasoning = false;
  bool include_stop = false;
  bool ignore_eos = false;
  bool background = false;
  bool return_token_ids = false;
  bool predicted = false;  // `prediction` was sent: usage then counts its tokens
  bool stream = false;
  StreamUsage stream_usage = StreamUsage::kOnFinish;
  bool continuous_usage = false;
  bool incremental_calls = false;  // a streamed call's arguments go out as they are written
};

inline constexpr size_t kMaxStops = 64;
inline constexpr int64_t kMaxChoices = 8;

/// Reads the shared fields. `limit_names`: the route's names for the reply limit, the first given one wins.
void read_settings(FieldReader& in, const SettingDefaults& defaults,
                   std::initializer_list<const char*> limit_names, ReplySettings* out);

/// `logprobs` and `top_logprobs` of chat requests, and `logprobs` of completions.
void read_chat_logprobs(FieldReader& in, ReplySettings* out);
void read_completion_logprobs(FieldReader& in, ReplySettings* out);

/// Fields that this server knows and does not do yet, at any value but a neutral one: 400
/// unsupported_parameter rather than a reply that silently differs from what was asked.
void refuse_unbuilt(FieldReader& in);

}  // namespace firesteel::api
