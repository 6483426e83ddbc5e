#include "api/chat_writer.h"

#include "api/usage_json.h"
#include "base/json.h"
#include "http/message.h"

namespace firesteel::api {
namespace {

// {"name":…,"arguments":…}
void append_function(const ReplyCall& call, std::string* out) {
  out->append("{\"name\":");
  append_json_string(call.name, false, out);
  out->append(",\"arguments\":");
  append_json_string(call.arguments, false, out);
  out->append("}");
}

void append_call(const ReplyCall& call, std::string* out) {
  out->append("\"id\":");
  append_json_string(call.id, false, out);
  out->append(",\"type\":\"function\",\"function\":");
  append_function(call, out);
}

const char* chat_finish_reason(ReplyEnd end, bool legacy) {
  return legacy && end == ReplyEnd::kToolCalls ? "function_call" : finish_reason_name(end);
}

// The `logprobs` of a choice; lists as text without brackets.
void append_logprobs(const std::string& content, const std::string& reasoning, bool wanted,
                     std::string* out) {
  if (!wanted) {
    out->append("null");
    return;
  }
  out->append("{\"content\":[").append(content).append("]");
  if (!reasoning.empty()) out->append(",\"reasoning_content\":[").append(reasoning).append("]");
  out->append(",\"refusal\":null}");
}

class WholeChatWriter final : public ReplyWriter {
 public:
  WholeChatWriter(std::shared_ptr<http::Exchange> exchange, ChatReplyOptions options)
      : exchange_(std::move(exchange)), options_(std::move(options)), choices_(options_.choices) {
    for (Choice& c : choices_) c.content = options_.echo;
  }

  void begin() override {}
  void reasoning(int choice, std::string_view text) override {
    choices_[choice].reasoning.append(text);
    keep_scores(&choices_[choice].reasoning_scores);
  }
  void content(int choice, std::string_view text) override {
    choices_[choice].content.append(text);
    keep_scores(&choices_[choice].content_scores);
  }
  void scores(int, std::span<const TokenReport> tokens) override {
    if (options_.tokenizer != nullptr) append_token_reports(tokens, *options_.tokenizer, &scores_);
  }
  void call(int choice, const ReplyCall& call) override { choices_[choice].calls.push_back(call); }
  void heartbeat(int) override {}
  void flush(const Usage&) override {}
  void end_choice(int choice, const ChoiceEnd& end) override { choices_[choice].end = end; }

  void end(const Usage& usage, const ReplyStats& stats) override {
    std::string out = "{\"id\":";
    append_json_string(http::random_id("chatcmpl-"), false, &out);
    out += ",\"object\":\"chat.completion\",\"created\":" + std::to_string(unix_time()) + ",\"model\":";
    append_json_string(options_.model, false, &out);
    out += ",\"choices\":[";
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (i != 0) out += ",";
      append_choice(i, choices_[i], &out);
    }
    out += "],\"usage\":";
    append_usage(usage, &out);
    out += ",\"server_stats\":";
    append_stats(stats, &out);
    if (options_.return_token_ids) {
      out += ",\"prompt_token_ids\":";
      append_token_ids(options_.prompt_tokens, &out);
    }
    out += "}";
    http::Response response;
    response.body = std::move(out);
    exchange_->respond(std::move(response));
  }

  void fail(const ApiError& error) override {
    exchange_->respond(error_response(error, ErrorFormat::kOpenAi, exchange_->head().request_id));
  }

 private:
  struct Choice {
    std::string reasoning, content, reasoning_scores, content_scores;
    std::vector<ReplyCall> calls;
    ChoiceEnd end;
  };

  void keep_scores(std::string* to) {
    if (scores_.empty()) return;
    *to += (to->empty() ? "" : ",") + scores_;
    scores_.clear();
  }

  void append_choice(size_t index, const Choice& c, std::string* out) const {
    *out += "{\"index\":" + std::to_string(index) + ",\"finish_reason\":\"" +
            chat_finish_reason(c.end.end, options_.legacy_function) + "\",\"stop_reason\":";
    append_stop_reason(c.end, out);
    *out += ",\"logprobs\":";
    append_logprobs(c.content_scores, options_.exclude_reasoning ? "" : c.reasoning_scores,
                    options_.tokenizer != nullptr, out);
    *out += ",\"message\":{\"role\":\"assistant\",\"content\":";
    if (c.content.empty() && !c.calls.empty()) {
      *out += "null";
    } else {
      append_json_string(c.content, false, out);
    }
    if (!c.reasoning.empty() && !options_.exclude_reasoning) {
      *out += ",\"reasoning_content\":";
      append_json_string(c.reasoning, false, out);
    }
    if (options_.legacy_function && !c.calls.empty()) {
      *out += ",\"function_call\":";
      append_function(c.calls.front(), out);
    }
    const size_t calls = options_.legacy_function ? 0 : c.calls.size();
    for (size_t i = 0; i < calls; ++i) {
      *out += i == 0 ? ",\"tool_calls\":[{" : ",{";
      append_call(c.calls[i], out);
      *out += "}";
    }
    *out += calls == 0 ? "}" : "]}";
    if (options_.return_token_ids) {
      *out += ",\"token_ids\":";
      append_token_ids(c.end.tokens, out);
    }
    *out += "}";
  }

  const std::shared_ptr<http::Exchange> exchange_;
  const ChatReplyOptions options_;
  std::vector<Choice> choices_;
  std::string scores_;  // of the next piece
};

class StreamChatWriter final : public ReplyWriter {
 public:
  StreamChatWriter(std::shared_ptr<http::Exchange> exchange, ChatReplyOptions options)
      : exchange_(std::move(exchange)), options_(std::move(options)), calls_(options_.choices, 0) {
    head_ = "data: {\"id\":";
    append_json_string(http::random_id("chatcmpl-"), false, &head_);
    head_ +=
        ",\"object\":\"chat.completion.chunk\",\"created\":" + std::to_string(unix_time()) + ",\"model\":";
    append_json_string(options_.model, false, &head_);
    head_ += ",\"choices\":[";
  }

  void begin() override {
    exchange_->open_stream({}, ": keepalive\n\n");
    for (int i = 0; i < options_.choices; ++i) chunk(i, "{\"role\":\"assistant\",\"content\":\"\"}");
    for (int i = 0; i < options_.choices; ++i) text_chunk(i, "{\"content\":", options_.echo, "", "");
    send();
  }
  void reasoning(int choice, std::string_view text) override {
    if (!options_.exclude_reasoning) text_chunk(choice, "{\"reasoning_content\":", text, "", scores_);
    scores_.clear();
  }
  void content(int choice, std::string_view text) override {
    text_chunk(choice, "{\"content\":", text, scores_, "");
    scores_.clear();
  }
  void scores(int, std::span<const TokenReport> tokens) override {
    if (options_.tokenizer != nullptr) append_token_reports(tokens, *options_.tokenizer, &scores_);
  }
  void call(int choice, const ReplyCall& call) override {
    if (options_.legacy_function) {
      std::string function = "{\"function_call\":";
      append_function(call, &function);
      return chunk(choice, function + "}");
    }
    begin_call(choice, call);
  }
  void call_begun(int choice, const std::string& id, const std::string& name) override {
    begin_call(choice, {id, name, ""});
  }
  void call_arguments(int choice, std::string_view json) override {
    std::string delta =
        "{\"tool_calls\":[{\"index\":" + std::to_string(calls_[choice] - 1) + ",\"function\":{\"arguments\":";
    append_json_string(json, false, &delta);
    chunk(choice, delta + "}}]}");
  }
  void heartbeat(int choice) override { chunk(choice, "{}"); }
  void flush(const Usage& usage) override {
    usage_ = usage;
    send();
  }
  void end_choice(int choice, const ChoiceEnd& end) override { ends_.push_back({choice, end}); }

  void end(const Usage& usage, const ReplyStats& stats) override {
    for (size_t i = 0; i < ends_.size(); ++i) {
      const bool last = i + 1 == ends_.size();
      finish_chunk(ends_[i].first, ends_[i].second, last ? &usage : nullptr, last ? &stats : nullptr);
    }
    if (options_.stream_usage == StreamUsage::kOwnChunk) {
      out_ += head_ + "],\"usage\":";
      append_usage(usage, &out_);
      out_ += "}\n\n";
    }
    out_ += "data: [DONE]\n\n";
    send();
    exchange_->close_stream();
  }

  void fail(const ApiError& error) override {
    out_ += "data: " + error_body(error, ErrorFormat::kOpenAi, exchange_->head().request_id) +
            "\n\ndata: [DONE]\n\n";
    send();
    exchange_->close_stream();
  }

 private:
  void open_choice(int choice, std::string_view delta) {
    out_.append(head_)
        .append("{\"index\":")
        .append(std::to_string(choice))
        .append(",\"delta\":")
        .append(delta);
  }
  void close_chunk() {
    out_.append("}]");
    if (options_.continuous_usage && options_.stream_usage != StreamUsage::kNone) {
      out_.append(",\"usage\":");
      append_usage(usage_, &out_);
    } else if (options_.stream_usage == StreamUsage::kOwnChunk) {
      out_.append(",\"usage\":null");
    }
    out_.append("}\n\n");
  }
  void chunk(int choice, std::string_view delta) {
    open_choice(choice, delta);
    out_.append(",\"logprobs\":null,\"finish_reason\":null");
    close_chunk();
  }
  void text_chunk(int choice, std::string_view key, std::string_view text, const std::string& content_scores,
                  const std::string& reasoning_scores) {
    if (text.empty()) return;
    open_choice(choice, key);
    append_json_string(text, false, &out_);
    out_.append("},\"logprobs\":");
    append_logprobs(content_scores, reasoning_scores, options_.tokenizer != nullptr, &out_);
    out_.append(",\"finish_reason\":null");
    close_chunk();
  }
  void begin_call(int choice, const ReplyCall& call) {
    std::string delta = "{\"tool_calls\":[{\"index\":" + std::to_string(calls_[choice]++) + ",";
    append_call(call, &delta);
    chunk(choice, delta + "}]}");
  }
  void finish_chunk(int choice, const ChoiceEnd& end, const Usage* usage, const ReplyStats* stats) {
    open_choice(choice, "{},\"logprobs\":null,\"finish_reason\":\"");
    out_.append(chat_finish_reason(end.end, options_.legacy_function)).append("\",\"stop_reason\":");
    append_stop_reason(end, &out_);
    if (options_.return_token_ids) {
      out_.append(",\"token_ids\":");
      append_token_ids(end.tokens, &out_);
    }
    out_.append("}]");
    const bool continuous = options_.continuous_usage && options_.stream_usage != StreamUsage::kNone;
    if (continuous || (usage != nullptr && options_.stream_usage == StreamUsage::kOnFinish)) {
      out_.append(",\"usage\":");
      append_usage(usage != nullptr ? *usage : usage_, &out_);
    } else if (options_.stream_usage == StreamUsage::kOwnChunk) {
      out_.append(",\"usage\":null");
    }
    if (stats != nullptr) {
      out_.append(",\"server_stats\":");
      append_stats(*stats, &out_);
      if (options_.return_token_ids) {
        out_.append(",\"prompt_token_ids\":");
        append_token_ids(options_.prompt_tokens, &out_);
      }
    }
    out_.append("}\n\n");
  }
  void send() {
    if (out_.empty()) return;
    exchange_->write(std::move(out_));
    out_.clear();
  }

  const std::shared_ptr<http::Exchange> exchange_;
  const ChatReplyOptions options_;
  std::string head_, out_, scores_;  // scores_: of the next piece
  std::vector<int> calls_;
  std::vector<std::pair<int, ChoiceEnd>> ends_;
  Usage usage_;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_chat_writer(std::shared_ptr<http::Exchange> exchange,
                                              ChatReplyOptions options) {
  if (options.stream) return std::make_unique<StreamChatWriter>(std::move(exchange), std::move(options));
  return std::make_unique<WholeChatWriter>(std::move(exchange), std::move(options));
}

}  // namespace firesteel::api
