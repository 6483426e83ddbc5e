#include "api/completion_writer.h"

#include "api/usage_json.h"
#include "base/json.h"
#include "http/message.h"

namespace firesteel::api {
namespace {

// Reasoning and answer are one text here: a completion has no think block of its own.
class CompletionWriter final : public ReplyWriter {
 public:
  CompletionWriter(std::shared_ptr<http::Exchange> exchange, CompletionReplyOptions options)
      : exchange_(std::move(exchange)),
        options_(std::move(options)),
        texts_(options_.choices),
        ends_(options_.choices) {
    head_ = "{\"id\":";
    append_json_string(http::random_id("cmpl-"), false, &head_);
    head_ += ",\"object\":\"text_completion\",\"created\":" + std::to_string(unix_time()) + ",\"model\":";
    append_json_string(options_.model, false, &head_);
    head_ += ",\"choices\":[";
  }

  void begin() override {
    if (options_.stream) exchange_->open_stream({}, ": keepalive\n\n");
    for (size_t i = 0; i < options_.echo.size(); ++i) content(static_cast<int>(i), options_.echo[i]);
    send();
  }
  void reasoning(int choice, std::string_view text) override { content(choice, text); }
  void content(int choice, std::string_view text) override {
    if (text.empty()) return;
    if (!options_.stream) {
      texts_[choice].append(text);
      return;
    }
    out_ += "data: " + head_;
    append_choice(choice, text, nullptr, &out_);
    close_chunk();
  }
  void call(int, const ReplyCall&) override {}
  void heartbeat(int) override {}
  void flush(const Usage& usage) override {
    usage_ = usage;
    send();
  }
  void end_choice(int choice, const ChoiceEnd& end) override { ends_[choice] = end; }

  void end(const Usage& usage, const ReplyStats& stats) override {
    if (options_.stream) return end_stream(usage, stats);
    std::string out = head_;
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (i != 0) out += ",";
      append_choice(static_cast<int>(i), texts_[i], &ends_[i], &out);
    }
    out += "],\"usage\":";
    append_usage(usage, &out);
    out += ",\"server_stats\":";
    append_stats(stats, &out);
    out += "}";
    http::Response response;
    response.body = std::move(out);
    exchange_->respond(std::move(response));
  }

  void fail(const ApiError& error) override {
    const std::string& id = exchange_->head().request_id;
    if (!options_.stream) return exchange_->respond(error_response(error, ErrorFormat::kOpenAi, id));
    out_ += "data: " + error_body(error, ErrorFormat::kOpenAi, id) + "\n\ndata: [DONE]\n\n";
    send();
    exchange_->close_stream();
  }

 private:
  void append_choice(int choice, std::string_view text, const ChoiceEnd* end, std::string* out) const {
    *out += "{\"index\":" + std::to_string(choice) + ",\"text\":";
    append_json_string(text, false, out);
    *out += ",\"logprobs\":null,\"finish_reason\":";
    if (end == nullptr) {
      *out += "null}";
      return;
    }
    *out += "\"" + std::string(finish_reason_name(end->end)) + "\",\"stop_reason\":";
    append_stop_reason(*end, out);
    *out += "}";
  }
  void close_chunk() {
    out_ += "]";
    if (options_.continuous_usage && options_.stream_usage != StreamUsage::kNone) {
      out_ += ",\"usage\":";
      append_usage(usage_, &out_);
    } else if (options_.stream_usage == StreamUsage::kOwnChunk) {
      out_ += ",\"usage\":null";
    }
    out_ += "}\n\n";
  }
  void end_stream(const Usage& usage, const ReplyStats& stats) {
    for (size_t i = 0; i < ends_.size(); ++i) {
      const bool last = i + 1 == ends_.size();
      out_ += "data: " + head_;
      append_choice(static_cast<int>(i), "", &ends_[i], &out_);
      out_ += "]";
      const bool continuous = options_.continuous_usage && options_.stream_usage != StreamUsage::kNone;
      if (continuous || (last && options_.stream_usage == StreamUsage::kOnFinish)) {
        out_ += ",\"usage\":";
        append_usage(usage, &out_);
      } else if (options_.stream_usage == StreamUsage::kOwnChunk) {
        out_ += ",\"usage\":null";
      }
      if (last) {
        out_ += ",\"server_stats\":";
        append_stats(stats, &out_);
      }
      out_ += "}\n\n";
    }
    if (options_.stream_usage == StreamUsage::kOwnChunk) {
      out_ += "data: " + head_ + "],\"usage\":";
      append_usage(usage, &out_);
      out_ += "}\n\n";
    }
    out_ += "data: [DONE]\n\n";
    send();
    exchange_->close_stream();
  }
  void send() {
    if (out_.empty()) return;
    exchange_->write(std::move(out_));
    out_.clear();
  }

  const std::shared_ptr<http::Exchange> exchange_;
  const CompletionReplyOptions options_;
  std::string head_, out_;
  std::vector<std::string> texts_;
  std::vector<ChoiceEnd> ends_;
  Usage usage_;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_completion_writer(std::shared_ptr<http::Exchange> exchange,
                                                    CompletionReplyOptions options) {
  return std::make_unique<CompletionWriter>(std::move(exchange), std::move(options));
}

}  // namespace firesteel::api
