#include "api/responses_writer.h"

#include "api/responses_output.h"
#include "api/usage_json.h"
#include "base/json.h"
#include "http/message.h"

namespace firesteel::api {
namespace {

constexpr char kKeepalive[] = ": keepalive\n\n";

void append_member(const char* name, std::string_view text, std::string* out) {
  out->append(",\"").append(name).append("\":");
  append_json_string(text, false, out);
}

void append_response_usage(const Usage& u, std::string* out) {
  out->append("{\"input_tokens\":").append(std::to_string(u.prompt));
  out->append(",\"input_tokens_details\":{\"cached_tokens\":").append(std::to_string(u.cached));
  out->append(",\"cache_write_tokens\":0},\"output_tokens\":").append(std::to_string(u.completion));
  out->append(",\"output_tokens_details\":{\"reasoning_tokens\":").append(std::to_string(u.reasoning));
  out->append("},\"total_tokens\":").append(std::to_string(u.prompt + u.completion)).append("}");
}

class ResponsesWriter final : public ReplyWriter {
 public:
  ResponsesWriter(std::shared_ptr<http::Exchange> exchange, ResponsesReplyOptions options)
      : exchange_(std::move(exchange)),
        options_(std::move(options)),
        output_(options_.stream ? &out_ : nullptr, &options_.custom) {}

  void begin() override {
    if (!options_.stream) return;
    exchange_->open_stream({}, kKeepalive);
    const std::string response = ",\"response\":" + fields(Status::kInProgress) + ",\"output\":[]}";
    output_.event("response.created", response);
    output_.event("response.in_progress", response);
    send();
  }
  void reasoning(int, std::string_view text) override {
    if (!options_.exclude_reasoning) output_.reasoning(text);
    scores_.clear();
  }
  void content(int, std::string_view text) override {
    output_.content(text, scores_);
    scores_.clear();
  }
  void scores(int, std::span<const TokenReport> tokens) override {
    if (options_.tokenizer != nullptr) append_token_reports(tokens, *options_.tokenizer, &scores_);
  }
  void call(int, const ReplyCall& call) override { output_.call(call); }
  void heartbeat(int) override {
    if (options_.stream) out_ += kKeepalive;
  }
  void flush(const Usage& usage) override {
    usage_ = usage;
    send();
  }
  void end_choice(int, const ChoiceEnd& end) override { cut_ = end.end == ReplyEnd::kLength; }

  void end(const Usage& usage, const ReplyStats&) override {
    usage_ = usage;
    output_.close(!cut_);
    std::string head = fields(cut_ ? Status::kIncomplete : Status::kCompleted);
    std::string response = head + ",\"output\":" + output_.items() + "}";
    // Stored first: a client may continue from it as soon as it has read it.
    if (options_.store) {
      StoredResponse stored{std::move(options_.turns), std::move(head), output_.ids()};
      stored.turns.push_back(options_.store->make_turn(std::move(options_.input), output_.items()));
      options_.store->put(id_, std::move(stored));
    }
    if (options_.stream) {
      finish_stream(cut_ ? "response.incomplete" : "response.completed", response);
    } else {
      http::Response reply;
      reply.body = std::move(response);
      exchange_->respond(std::move(reply));
    }
  }

  void fail(const ApiError& error) override {
    if (!options_.stream) {
      return exchange_->respond(error_response(error, ErrorFormat::kOpenAi, exchange_->head().request_id));
    }
    output_.close(false);
    error_ = error.message;
    std::string event;
    append_member("code", error.code, &event);
    append_member("message", error.message, &event);
    event += ",\"param\":null";
    output_.event("error", event);
    finish_stream("response.failed", fields(Status::kFailed) + ",\"output\":" + output_.items() + "}");
  }

 private:
  enum class Status { kInProgress, kCompleted, kIncomplete, kFailed };

  /// The response object without its output and its last brace.
  std::string fields(Status status) const {
    static constexpr const char* kNames[] = {"in_progress", "completed", "incomplete", "failed"};
    std::string out = "{\"id\":";
    append_json_string(id_, false, &out);
    out += ",\"object\":\"response\",\"created_at\":" + std::to_string(created_at_) + ",\"completed_at\":";
    out += status == Status::kCompleted ? std::to_string(unix_time()) : "null";
    append_member("status", kNames[static_cast<int>(status)], &out);
    out += ",\"error\":";
    if (status == Status::kFailed) {
      out += "{\"code\":\"server_error\"";
      append_member("message", error_, &out);
      out += "}";
    } else {
      out += "null";
    }
    out += ",\"incomplete_details\":";
    out += status == Status::kIncomplete ? "{\"reason\":\"max_output_tokens\"}" : "null";
    append_member("model", options_.model, &out);
    append_member("output_text", output_.text(), &out);
    out += ",\"usage\":";
    if (status == Status::kInProgress) {
      out += "null";
    } else {
      append_response_usage(usage_, &out);
    }
    return out + "," + options_.settings;
  }

  void finish_stream(const char* type, const std::string& response) {
    output_.event(type, ",\"response\":" + response);
    send();
    exchange_->close_stream();
  }
  void send() {
    if (out_.empty()) return;
    exchange_->write(std::move(out_));
    out_.clear();
  }

  const std::shared_ptr<http::Exchange> exchange_;
  std::string scores_;  // of the next piece
  ResponsesReplyOptions options_;
  const std::string id_ = http::random_id("resp_");
  const int64_t created_at_ = unix_time();
  std::string out_;
  ResponseOutput output_;
  Usage usage_;
  bool cut_ = false;
  std::string error_;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_responses_writer(std::shared_ptr<http::Exchange> exchange,
                                                   ResponsesReplyOptions options) {
  return std::make_unique<ResponsesWriter>(std::move(exchange), std::move(options));
}

}  // namespace firesteel::api
