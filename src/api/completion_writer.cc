#include "api/completion_writer.h"

#include <algorithm>
#include <numeric>

#include "api/usage_json.h"
#include "base/json.h"
#include "http/message.h"
#include "text/tokenizer.h"

namespace firesteel::api {
namespace {

// Reasoning and answer are one text here: a completion has no think block of its own.
class CompletionWriter final : public ReplyWriter {
 public:
  CompletionWriter(std::shared_ptr<http::Exchange> exchange, CompletionReplyOptions options)
      : exchange_(std::move(exchange)),
        options_(std::move(options)),
        texts_(options_.choices),
        ends_(options_.choices),
        scores_(static_cast<size_t>(options_.choices)) {
    head_ = "{\"id\":";
    append_json_string(http::random_id("cmpl-"), false, &head_);
    head_ += ",\"object\":\"text_completion\",\"created\":" + std::to_string(unix_time()) + ",\"model\":";
    append_json_string(options_.model, false, &head_);
    head_ += ",\"choices\":[";
  }

  void begin() override {
    if (options_.stream) exchange_->open_stream({}, ": keepalive\n\n");
    // With log-probabilities the prompt goes out once they are known.
    if (options_.tokenizer == nullptr)
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
    const std::string scores = scores_[choice].take();
    out_ += "data: " + head_;
    append_choice(choice, text, scores, std::nullopt, &out_);
    close_chunk();
  }
  void scores(int choice, std::span<const TokenReport> tokens) override {
    if (options_.tokenizer == nullptr) return;
    for (const TokenReport& report : tokens) scores_[choice].add(report[0].id, report, *options_.tokenizer);
  }
  void prompt_scores(int choice, std::span<const TokenReport> tokens) override {
    if (options_.tokenizer == nullptr || options_.echo.empty()) return;
    scores_[choice].add(options_.first_ids[static_cast<size_t>(choice)], {}, *options_.tokenizer);
    scores(choice, tokens);
    content(choice, options_.echo[static_cast<size_t>(choice)]);
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
    const std::vector<size_t> shown = best_choices();
    for (size_t i = 0; i < shown.size(); ++i) {
      const size_t c = shown[i];
      if (i != 0) out += ",";
      append_choice(static_cast<int>(i), texts_[c], scores_[c].take(), c, &out);
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
  /// The legacy lists of one choice, text without brackets, as far as they are not written.
  class Scores {
   public:
    /// An empty report: the prompt's first token, which nothing predicts.
    void add(int32_t token, TokenReport report, const Tokenizer& tokenizer) {
      const std::string_view bytes = tokenizer.token_bytes(token);
      const char* comma = tokens_.empty() ? "" : ",";
      append_text(bytes, &(tokens_ += comma));
      logprobs_ += comma;
      best_ += comma;
      if (report.empty()) {
        logprobs_ += "null";
        best_ += "null";
      } else {
        append_logprob(report[0].logprob, &logprobs_);
        best_ += "{";
        for (size_t k = 1; k < report.size() && report[k].id >= 0; ++k) {
          if (k > 1) best_ += ",";
          append_text(tokenizer.token_bytes(report[k].id), &best_);
          best_ += ":";
          append_logprob(report[k].logprob, &best_);
        }
        best_ += "}";
      }
      offsets_ += comma + std::to_string(characters_);
      for (const char c : bytes) characters_ += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    }
    /// The lists since the last time; "" when there are none.
    std::string take() {
      if (tokens_.empty()) return {};
      std::string out = "{\"tokens\":[" + tokens_ + "],\"token_logprobs\":[" + logprobs_ +
                        "],\"top_logprobs\":[" + best_ + "],\"text_offset\":[" + offsets_ + "]}";
      tokens_.clear(), logprobs_.clear(), best_.clear(), offsets_.clear();
      return out;
    }

   private:
    static void append_text(std::string_view bytes, std::string* out) {
      Utf8Stream text;
      std::string shown = text.push(bytes);
      append_json_string(shown += text.finish(), false, out);
    }
    std::string tokens_, logprobs_, best_, offsets_;
    int64_t characters_ = 0;
  };

  /// Of each prompt's choices those to show, the likeliest first; equal ones in the order of their seeds.
  std::vector<size_t> best_choices() const {
    std::vector<size_t> order(ends_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto group = static_cast<size_t>(options_.best_of), keep = static_cast<size_t>(options_.keep);
    if (group == keep) return order;
    std::vector<size_t> out;
    for (size_t first = 0; first < order.size(); first += group) {
      const auto begin = order.begin() + static_cast<ptrdiff_t>(first);
      std::stable_sort(begin, begin + static_cast<ptrdiff_t>(group),
                       [&](size_t a, size_t b) { return ends_[a].mean_logprob > ends_[b].mean_logprob; });
      out.insert(out.end(), begin, begin + static_cast<ptrdiff_t>(keep));
    }
    return out;
  }

  /// `ended`: the choice as it was made, once it is over.
  void append_choice(int index, std::string_view text, const std::string& scores, std::optional<size_t> ended,
                     std::string* out) const {
    *out += "{\"index\":" + std::to_string(index) + ",\"text\":";
    append_json_string(text, false, out);
    *out += ",\"logprobs\":" + (scores.empty() ? "null" : scores) + ",\"finish_reason\":";
    if (!ended) {
      *out += "null}";
      return;
    }
    const ChoiceEnd& end = ends_[*ended];
    *out += "\"" + std::string(finish_reason_name(end.end)) + "\",\"stop_reason\":";
    append_stop_reason(end, out);
    if (options_.return_token_ids) {
      *out += ",\"prompt_token_ids\":";
      append_token_ids(options_.prompts[*ended], out);
      *out += ",\"token_ids\":";
      append_token_ids(end.tokens, out);
    }
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
      append_choice(static_cast<int>(i), "", "", i, &out_);
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
  std::vector<Scores> scores_;
  Usage usage_;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_completion_writer(std::shared_ptr<http::Exchange> exchange,
                                                    CompletionReplyOptions options) {
  return std::make_unique<CompletionWriter>(std::move(exchange), std::move(options));
}

}  // namespace firesteel::api
