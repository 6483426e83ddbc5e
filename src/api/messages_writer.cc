#include "api/messages_writer.h"

#include <vector>

#include "base/json.h"
#include "http/message.h"

namespace firesteel::api {
namespace {

constexpr char kPing[] = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

std::string json_text(std::string_view text) {
  std::string out;
  append_json_string(text, false, &out);
  return out;
}

std::string usage_json(const Usage& u) {
  return "{\"input_tokens\":" + std::to_string(u.prompt - u.cached) +
         ",\"cache_read_input_tokens\":" + std::to_string(u.cached) +
         ",\"cache_creation_input_tokens\":0,\"output_tokens\":" + std::to_string(u.completion) +
         ",\"output_tokens_details\":{\"thinking_tokens\":" + std::to_string(u.reasoning) + "}}";
}

// "stop_reason":…,"stop_sequence":…
std::string stop_json(const ChoiceEnd& end) {
  const char* reason = "end_turn";
  if (end.end == ReplyEnd::kToolCalls) reason = "tool_use";
  if (end.end == ReplyEnd::kLength) reason = "max_tokens";
  if (end.stop_string && end.end == ReplyEnd::kStop) reason = "stop_sequence";
  return std::string("\"stop_reason\":\"") + reason +
         "\",\"stop_sequence\":" + (end.stop_string ? json_text(*end.stop_string) : "null");
}

std::string arguments_or_empty(const ReplyCall& call) {
  return call.arguments.empty() ? "{}" : call.arguments;
}

class WholeMessagesWriter final : public ReplyWriter {
 public:
  WholeMessagesWriter(std::shared_ptr<http::Exchange> exchange, MessagesReplyOptions options)
      : exchange_(std::move(exchange)), options_(std::move(options)) {}

  void begin() override {}
  void reasoning(int, std::string_view text) override { block(Kind::kThinking).text.append(text); }
  void content(int, std::string_view text) override { block(Kind::kText).text.append(text); }
  void call(int, const ReplyCall& call) override { blocks_.push_back({Kind::kCall, "", call}); }
  void heartbeat(int) override {}
  void flush(const Usage&) override {}
  void end_choice(int, const ChoiceEnd& end) override { end_ = end; }

  void end(const Usage& usage, const ReplyStats&) override {
    std::string out = "{\"id\":" + json_text(http::random_id("msg_")) +
                      ",\"type\":\"message\",\"role\":\"assistant\",\"model\":" + json_text(options_.model) +
                      ",\"content\":[";
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const Block& b = blocks_[i];
      if (i != 0) out += ",";
      if (b.kind == Kind::kThinking) {
        out += "{\"type\":\"thinking\",\"thinking\":" + json_text(b.text) + ",\"signature\":\"\"}";
      } else if (b.kind == Kind::kText) {
        out += "{\"type\":\"text\",\"text\":" + json_text(b.text) + "}";
      } else {
        out += "{\"type\":\"tool_use\",\"id\":" + json_text(b.call.id) +
               ",\"name\":" + json_text(b.call.name) + ",\"input\":" + arguments_or_empty(b.call) + "}";
      }
    }
    out += "]," + stop_json(end_) + ",\"usage\":" + usage_json(usage) + "}";
    http::Response response;
    response.body = std::move(out);
    exchange_->respond(std::move(response));
  }

  void fail(const ApiError& error) override {
    exchange_->respond(error_response(error, ErrorFormat::kAnthropic, exchange_->head().request_id));
  }

 private:
  enum class Kind { kThinking, kText, kCall };
  struct Block {
    Kind kind;
    std::string text;
    ReplyCall call;
  };
  Block& block(Kind kind) {
    if (blocks_.empty() || blocks_.back().kind != kind) blocks_.push_back({kind, "", {}});
    return blocks_.back();
  }

  const std::shared_ptr<http::Exchange> exchange_;
  const MessagesReplyOptions options_;
  std::vector<Block> blocks_;
  ChoiceEnd end_;
};

class StreamMessagesWriter final : public ReplyWriter {
 public:
  StreamMessagesWriter(std::shared_ptr<http::Exchange> exchange, MessagesReplyOptions options)
      : exchange_(std::move(exchange)), options_(std::move(options)) {}

  void begin() override {
    exchange_->open_stream({}, std::string(kPing) + ": keepalive\n\n");
    Usage start;
    start.prompt = options_.prompt_tokens;
    event("message_start",
          ",\"message\":{\"id\":" + json_text(http::random_id("msg_")) +
              ",\"type\":\"message\",\"role\":\"assistant\",\"model\":" + json_text(options_.model) +
              ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":" + usage_json(start) +
              "}");
    send();
  }
  void reasoning(int, std::string_view text) override {
    if (text.empty()) return;
    open(Open::kThinking, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    delta("{\"type\":\"thinking_delta\",\"thinking\":" + json_text(text) + "}");
  }
  void content(int, std::string_view text) override {
    if (text.empty()) return;
    open(Open::kText, "{\"type\":\"text\",\"text\":\"\"}");
    delta("{\"type\":\"text_delta\",\"text\":" + json_text(text) + "}");
  }
  void call(int, const ReplyCall& call) override {
    close();
    open(Open::kCall, "{\"type\":\"tool_use\",\"id\":" + json_text(call.id) +
                          ",\"name\":" + json_text(call.name) + ",\"input\":{}}");
    delta("{\"type\":\"input_json_delta\",\"partial_json\":" + json_text(arguments_or_empty(call)) + "}");
    close();
  }
  void heartbeat(int) override { out_ += kPing; }
  void flush(const Usage&) override { send(); }
  void end_choice(int, const ChoiceEnd& end) override { end_ = end; }

  void end(const Usage& usage, const ReplyStats&) override {
    close();
    event("message_delta", ",\"delta\":{" + stop_json(end_) + "},\"usage\":" + usage_json(usage));
    event("message_stop", "");
    send();
    exchange_->close_stream();
  }

  void fail(const ApiError& error) override {
    out_ +=
        "event: error\ndata: " + error_body(error, ErrorFormat::kAnthropic, exchange_->head().request_id) +
        "\n\n";
    send();
    exchange_->close_stream();
  }

 private:
  enum class Open { kNothing, kThinking, kText, kCall };

  void event(const std::string& type, const std::string& fields) {
    out_ += "event: " + type;
    out_ += "\ndata: {\"type\":\"" + type;
    out_ += "\"" + fields;
    out_ += "}\n\n";
  }
  void open(Open kind, const std::string& block) {
    if (open_ == kind && kind != Open::kCall) return;
    close();
    open_ = kind;
    event("content_block_start", ",\"index\":" + std::to_string(index_) + ",\"content_block\":" + block);
  }
  void delta(const std::string& json) {
    event("content_block_delta", ",\"index\":" + std::to_string(index_) + ",\"delta\":" + json);
  }
  void close() {
    if (open_ == Open::kNothing) return;
    if (open_ == Open::kThinking) delta("{\"type\":\"signature_delta\",\"signature\":\"\"}");
    event("content_block_stop", ",\"index\":" + std::to_string(index_));
    open_ = Open::kNothing;
    ++index_;
  }
  void send() {
    if (out_.empty()) return;
    exchange_->write(std::move(out_));
    out_.clear();
  }

  const std::shared_ptr<http::Exchange> exchange_;
  const MessagesReplyOptions options_;
  std::string out_;
  Open open_ = Open::kNothing;
  int index_ = 0;
  ChoiceEnd end_;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_messages_writer(std::shared_ptr<http::Exchange> exchange,
                                                  MessagesReplyOptions options) {
  if (options.stream) return std::make_unique<StreamMessagesWriter>(std::move(exchange), std::move(options));
  return std::make_unique<WholeMessagesWriter>(std::move(exchange), std::move(options));
}

}  // namespace firesteel::api
