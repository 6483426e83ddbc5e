#include "text/reply_stream.h"

#include <algorithm>

#include "text/reply_parser.h"

namespace firesteel {

namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'; }

/// Length of the longest proper prefix of `word` that `text` ends with.
size_t begun_at_end(std::string_view text, std::string_view word) {
  for (size_t n = std::min(text.size(), word.size() - 1); n > 0; --n)
    if (text.ends_with(word.substr(0, n))) return n;
  return 0;
}

/// Finds stop strings in one of the two texts and holds back what may begin one.
class StopFinder {
 public:
  explicit StopFinder(const std::vector<std::string>& stop) : stop_(stop) {}

  /// What is certain after `text`. Once matched() everything later is ignored.
  std::string push(std::string_view text, bool include) {
    if (stop_.empty()) return std::string(text);
    if (matched_) return {};
    held_ += text;
    // The match that is complete first; of those that end together, the longest.
    size_t best_end = std::string::npos, best_begin = 0;
    for (const std::string& word : stop_) {
      const size_t begin = held_.find(word);
      if (begin == held_.npos) continue;
      const size_t end = begin + word.size();
      if (end < best_end || (end == best_end && begin < best_begin)) {
        best_end = end;
        best_begin = begin;
      }
    }
    if (best_end != std::string::npos) {
      matched_ = held_.substr(best_begin, best_end - best_begin);
      return held_.substr(0, include ? best_end : best_begin);
    }
    size_t hold = 0;
    for (const std::string& word : stop_) hold = std::max(hold, begun_at_end(held_, word));
    std::string certain = held_.substr(0, held_.size() - hold);
    held_.erase(0, certain.size());
    return certain;
  }
  /// Nothing that could complete a match follows.
  std::string flush() {
    std::string rest;
    if (!matched_) rest.swap(held_);
    return rest;
  }
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  const std::vector<std::string>& stop_;
  std::string held_;
  std::optional<std::string> matched_;
};

const std::vector<std::string> kNoStop;

}  // namespace

struct ReplyStream::Impl final : ReplyEvents {
  const Tokenizer& tokenizer;
  const ReplyOptions options;
  Utf8Stream utf8;
  StopFinder answer_stop, reasoning_stop;
  ReplyParser parser;
  std::vector<ReplyPiece>* out = nullptr;

  std::optional<std::string> matched;
  bool ended = false;
  bool skip_blanks;           // at the start of the answer
  std::string answer_blanks;  // trailing blanks of the answer: shown only when text follows
  std::string reason_blanks;  // of the reasoning: left out only when a call follows
  int calls = 0;
  int64_t reasoning_tokens = 0;

  Impl(const Tokenizer& t, ReplyOptions o)
      : tokenizer(t),
        options(std::move(o)),
        answer_stop(options.stop),
        reasoning_stop(options.stop_in_reasoning ? options.stop : kNoStop),
        parser(options.in_think, !options.continues_text, options.tools, options.follow_calls, *this),
        skip_blanks(!options.continues_text) {}

  void show(ReplyPiece::Kind kind, std::string_view text) {
    if (text.empty()) return;
    if (!out->empty() && out->back().kind == kind) {
      out->back().text += text;
    } else {
      out->push_back({kind, std::string(text)});
    }
  }

  /// Shows `text` but for its trailing blanks, which wait in `blanks`.
  void show_held(ReplyPiece::Kind kind, std::string& blanks, std::string_view text) {
    size_t end = text.size();
    while (end > 0 && is_blank(text[end - 1])) --end;
    if (end > 0) {
      show(kind, blanks);
      blanks.clear();
      show(kind, text.substr(0, end));
    }
    blanks += text.substr(end);
  }

  void flush_reasoning() {
    show_held(ReplyPiece::Kind::kReasoning, reason_blanks, reasoning_stop.flush());
    show(ReplyPiece::Kind::kReasoning, reason_blanks);
    reason_blanks.clear();
  }

  // --- events of the parser

  void reasoning(std::string_view text) override {
    if (matched) return;
    const std::string certain = reasoning_stop.push(text, options.include_stop);
    show_held(ReplyPiece::Kind::kReasoning, reason_blanks, certain);
    if (!reasoning_stop.matched()) return;
    matched = reasoning_stop.matched();
    show(ReplyPiece::Kind::kReasoning, reason_blanks);
  }

  void content(std::string_view text) override {
    if (matched) return;
    if (options.raw) {
      show(ReplyPiece::Kind::kContent, answer_stop.push(text, options.include_stop));
      matched = answer_stop.matched();
      return;
    }
    if (skip_blanks) {
      while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
      if (text.empty()) return;
      skip_blanks = false;
    }
    const std::string certain = answer_stop.push(text, options.include_stop);
    show_held(ReplyPiece::Kind::kContent, answer_blanks, certain);
    if (!answer_stop.matched()) return;
    matched = answer_stop.matched();
    show(ReplyPiece::Kind::kContent, answer_blanks);
  }

  bool dropped() const { return calls > 0 && !options.parallel_tool_calls; }

  void call_begun(const std::string& name) override {
    if (matched) return;
    show_held(ReplyPiece::Kind::kContent, answer_blanks, answer_stop.flush());
    if (!dropped()) out->push_back({ReplyPiece::Kind::kCallBegun, name});
  }
  void call_arguments(std::string_view json) override {
    if (!matched && !dropped()) show(ReplyPiece::Kind::kCallArguments, json);
  }

  void call(ToolCall call, bool from_reasoning, bool followed) override {
    if (matched) return;
    if (from_reasoning) {
      show_held(ReplyPiece::Kind::kReasoning, reason_blanks, reasoning_stop.flush());
      reason_blanks.clear();
    } else {
      show_held(ReplyPiece::Kind::kContent, answer_blanks, answer_stop.flush());
    }
    if (dropped()) return;
    ++calls;
    out->push_back({ReplyPiece::Kind::kCall, {}, std::move(call), followed});
  }

  void think_closed() override {
    if (matched) return;
    flush_reasoning();
    skip_blanks = true;
  }

  // --- text

  void take(std::string_view text) {
    if (text.empty()) return;
    options.raw ? content(text) : parser.push(text);
  }

  void finish(ReplyEnding ending) {
    if (matched) return;
    take(utf8.finish());
    if (options.raw) {
      show(ReplyPiece::Kind::kContent, answer_stop.flush());
      return;
    }
    parser.finish(ending == ReplyEnding::kLength);
    if (matched) return;
    flush_reasoning();
    show_held(ReplyPiece::Kind::kContent, answer_blanks, answer_stop.flush());
  }
};

ReplyStream::ReplyStream(const Tokenizer& tokenizer, ReplyOptions options)
    : impl_(std::make_unique<Impl>(tokenizer, std::move(options))) {}
ReplyStream::~ReplyStream() = default;
ReplyStream::ReplyStream(ReplyStream&&) noexcept = default;

void ReplyStream::push(int32_t token, std::vector<ReplyPiece>& out) {
  Impl& s = *impl_;
  if (s.matched || s.ended) return;
  const auto& ends = s.options.end_ids;
  if (!s.options.ignore_eos && std::find(ends.begin(), ends.end(), token) != ends.end()) {
    s.ended = true;
    return;
  }
  if (in_think()) ++s.reasoning_tokens;
  s.out = &out;
  s.take(s.utf8.push(s.tokenizer.token_bytes(token)));
  s.out = nullptr;
}

void ReplyStream::finish(ReplyEnding ending, std::vector<ReplyPiece>& out) {
  impl_->out = &out;
  impl_->finish(ending);
  impl_->out = nullptr;
}

const std::optional<std::string>& ReplyStream::matched_stop() const { return impl_->matched; }
bool ReplyStream::ended() const { return impl_->ended; }
bool ReplyStream::inside_call() const { return impl_->parser.inside_call(); }
int ReplyStream::calls() const { return impl_->calls; }
int64_t ReplyStream::reasoning_tokens() const { return impl_->reasoning_tokens; }
bool ReplyStream::in_think() const { return !impl_->options.raw && impl_->parser.in_think(); }

}  // namespace firesteel
