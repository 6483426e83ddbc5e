#include "api/usage_json.h"

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "base/json.h"
#include "text/tokenizer.h"

namespace firesteel::api {

const char* finish_reason_name(ReplyEnd end) {
  switch (end) {
    case ReplyEnd::kStop:
      return "stop";
    case ReplyEnd::kLength:
      return "length";
    case ReplyEnd::kToolCalls:
      return "tool_calls";
  }
  return "stop";
}

void append_usage(const Usage& u, std::string* out) {
  out->append("{\"prompt_tokens\":").append(std::to_string(u.prompt));
  out->append(",\"completion_tokens\":").append(std::to_string(u.completion));
  out->append(",\"total_tokens\":").append(std::to_string(u.prompt + u.completion));
  out->append(",\"prompt_tokens_details\":{\"cached_tokens\":").append(std::to_string(u.cached));
  out->append("},\"completion_tokens_details\":{\"reasoning_tokens\":").append(std::to_string(u.reasoning));
  if (u.predicted) out->append(",\"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":0");
  out->append("}}");
}

void append_stats(const ReplyStats& s, std::string* out) {
  const char* separator = "{";
  const auto figure = [&](const char* name, double value) {
    if (value < 0) return;
    char text[64];
    std::snprintf(text, sizeof text, "%s\"%s\":%.1f", separator, name, value);
    out->append(text);
    separator = ",";
  };
  figure("queue_ms", s.queue_ms);
  figure("prefill_ms", s.prefill_ms);
  figure("ttft_ms", s.ttft_ms);
  figure("decode_tps", s.decode_tps);
  if (s.think_cut) {
    out->append(separator).append("\"think_cut\":true");
    separator = ",";
  }
  out->append(*separator == '{' ? "{}" : "}");
}

void append_logprob(float value, std::string* out) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, std::isfinite(value) ? value : -9999.0f).ptr;
  out->append(text, static_cast<size_t>(end - text));
}

namespace {

void append_token(const TokenLogprob& token, const Tokenizer& tokenizer, std::string* out) {
  const std::string_view bytes = tokenizer.token_bytes(token.id);
  Utf8Stream text;
  std::string shown = text.push(bytes);
  shown += text.finish();
  out->append("\"token\":");
  append_json_string(shown, false, out);
  out->append(",\"bytes\":[");
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i != 0) out->push_back(',');
    out->append(std::to_string(static_cast<unsigned char>(bytes[i])));
  }
  out->append("],\"logprob\":");
  append_logprob(token.logprob, out);
}

}  // namespace

void append_token_reports(std::span<const TokenReport> reports, const Tokenizer& tokenizer,
                          std::string* out) {
  for (size_t i = 0; i < reports.size(); ++i) {
    out->append(i == 0 ? "{" : ",{");
    append_token(reports[i][0], tokenizer, out);
    out->append(",\"top_logprobs\":[");
    for (size_t k = 1; k < reports[i].size() && reports[i][k].id >= 0; ++k) {
      out->append(k == 1 ? "{" : ",{");
      append_token(reports[i][k], tokenizer, out);
      out->append("}");
    }
    out->append("]}");
  }
}

void append_token_ids(const std::vector<int32_t>& ids, std::string* out) {
  out->push_back('[');
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i != 0) out->push_back(',');
    out->append(std::to_string(ids[i]));
  }
  out->push_back(']');
}

void append_stop_reason(const ChoiceEnd& end, std::string* out) {
  if (end.stop_string) {
    append_json_string(*end.stop_string, false, out);
  } else if (end.stop_token) {
    out->append(std::to_string(*end.stop_token));
  } else {
    out->append("null");
  }
}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace firesteel::api
