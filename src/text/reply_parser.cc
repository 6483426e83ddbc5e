#include "text/reply_parser.h"

#include <algorithm>

namespace firesteel {

namespace {

constexpr std::string_view kThinkOpen = "<think>", kThinkClose = "</think>";

// A failed call no longer than this is read again for openers inside it; a longer one is text up to where it
// failed, so that no text can make the work quadratic.
constexpr size_t kReadAgain = 4096;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'; }

size_t blanks_at(std::string_view text) {
  return static_cast<size_t>(std::find_if_not(text.begin(), text.end(), is_blank) - text.begin());
}

/// Reads `{ "name" : "NAME" ,` as far as it goes. 1: NAME is an offered tool; 0: something else; -1: not yet
/// known.
int bare_head(std::string_view text, const ToolSet& tools) {
  size_t at = 1;  // behind the brace
  const auto skip = [&] { at += blanks_at(text.substr(at)); };
  const auto quoted = [&](std::string& out) -> int {
    skip();
    if (at == text.size()) return -1;
    if (text[at] != '"') return 0;
    const size_t end = text.find_first_of("\"\\\n", at + 1);
    if (end == text.npos) return text.size() - at > 256 ? 0 : -1;
    if (text[end] != '"') return 0;
    out = text.substr(at + 1, end - at - 1);
    at = end + 1;
    return 1;
  };
  std::string key, name;
  if (const int r = quoted(key); r != 1) return r;
  if (key != "name" && key != "tool" && key != "function") return 0;
  skip();
  if (at == text.size()) return -1;
  if (text[at++] != ':') return 0;
  if (const int r = quoted(name); r != 1) return r;
  return tools.find(name) >= 0 ? 1 : 0;
}

}  // namespace

ReplyParser::ReplyParser(bool in_think, bool fresh, std::shared_ptr<const ToolSet> tools, bool follow_calls,
                         ReplyEvents& events)
    : tools_(tools && !tools->empty() ? std::move(tools) : nullptr),
      follow_calls_(follow_calls),
      events_(events),
      in_think_(in_think),
      answer_empty_(fresh || in_think) {}

void ReplyParser::push(std::string_view text) {
  held_ += text;
  read(Ending::kOpen);
}

void ReplyParser::finish(bool cut) {
  read(cut ? Ending::kCut : Ending::kNatural);
  if (waiting_.empty()) return;
  if (cut) {
    drop_waiting();
    return;
  }
  for (Waiting& w : waiting_) events_.call(std::move(w.call), true, false);
  waiting_.clear();
}

void ReplyParser::read(Ending ending) {
  const bool last = ending != Ending::kOpen;
  size_t at = 0;
  while (at < held_.size()) {
    const bool more = scanner_ ? read_call(at, ending) : read_bare_json(at, ending) && read_tag(at, last);
    if (!more) break;
  }
  held_.erase(0, at);
}

/// Says the text up to the next '<' and deals with that; false: more text is needed.
bool ReplyParser::read_tag(size_t& at, bool last) {
  const std::string_view text = std::string_view(held_).substr(at);
  const size_t before = std::min(text.find('<'), text.size());
  say(text.substr(0, before));
  at += before;
  if (before == text.size()) return false;
  Tag tag = tag_at(text.substr(before));  // what it means can depend on what was just said
  if (tag == Tag::kPartial && last) tag = Tag::kNone;
  switch (tag) {
    case Tag::kNone:
      say("<");
      ++at;
      return true;
    case Tag::kPartial:
      return false;
    case Tag::kThink:  // ignored in a think block
      at += kThinkOpen.size();
      in_think_ = true;
      close_waits_ = false;
      return true;
    case Tag::kThinkEnd:  // dropped outside a think block
      at += kThinkClose.size();
      if (!in_think_) return true;
      in_think_ = false;
      if (waiting_.empty()) {
        events_.think_closed();
      } else {
        close_waits_ = true;
      }
      return true;
    case Tag::kCall:
      scanner_.emplace(*tools_);
      if (follow_calls_ && !in_think_) followed_.emplace(*tools_);
      searched_ = kToolCallOpen.size();
      return true;
  }
  return false;
}

/// What the '<' at the start of `text` begins.
ReplyParser::Tag ReplyParser::tag_at(std::string_view text) const {
  const auto is = [&](std::string_view tag) { return text.starts_with(tag); };
  const auto may_be = [&](std::string_view tag) { return text.size() < tag.size() && tag.starts_with(text); };
  const bool think_counts = in_think_ || answer_empty_;
  if (is(kThinkClose)) return Tag::kThinkEnd;
  if (think_counts && is(kThinkOpen)) return Tag::kThink;
  if (tools_ && is(kToolCallOpen)) return Tag::kCall;
  if (may_be(kThinkClose) || (think_counts && may_be(kThinkOpen)) || (tools_ && may_be(kToolCallOpen)))
    return Tag::kPartial;
  return Tag::kNone;
}

/// held_ has an opener at `at`; false: more text is needed.
bool ReplyParser::read_call(size_t& at, Ending ending) {
  std::string_view text = std::string_view(held_).substr(at);
  bool bounded = false;
  if (in_think_) {  // a call never spans the end of the block
    const size_t close = text.find(kThinkClose, searched_);
    bounded = close != text.npos;
    if (bounded) text = text.substr(0, close);
    searched_ = std::max(searched_, text.size() - std::min(text.size(), kThinkClose.size() - 1));
  }
  switch (scanner_->advance(text)) {
    case ToolCallScanner::State::kCall: {
      ToolCall call = scanner_->call();
      follow(text, true);
      at += scanner_->end();
      scanner_.reset();
      take_call(std::move(call));
      return true;
    }
    case ToolCallScanner::State::kText:
      give_up(at, scanner_->end());
      return true;
    case ToolCallScanner::State::kOpen:
      follow(text, false);
      break;
  }
  if (bounded) {
    give_up(at, text.size());
    return true;
  }
  if (ending == Ending::kOpen) return false;
  end_call(at, ending);
  return true;
}

/// The reply ended with the call open.
void ReplyParser::end_call(size_t& at, Ending ending) {
  const std::string_view text = std::string_view(held_).substr(at);
  if (ending == Ending::kCut) {  // never sent, and its markup never shown
    at = held_.size();
    scanner_.reset();
    followed_.reset();
    return;
  }
  if (auto call = scanner_->repaired(text)) {
    follow(text, true);
    at = held_.size();
    scanner_.reset();
    take_call(*std::move(call));
    return;
  }
  // Inside an argument that never ends no other call begins.
  give_up(at, scanner_->inside_value() ? std::max(text.size(), kReadAgain + 1) : text.size());
}

/// Tells what became certain of the call that `text` begins with.
void ReplyParser::follow(std::string_view text, bool whole) {
  if (!followed_) return;
  const bool begun = followed_->begun();
  std::string json;
  followed_->advance(*scanner_, text, whole, &json);
  if (!begun && followed_->begun()) {
    drop_waiting();
    answer_empty_ = false;
    events_.call_begun(followed_->name());
  }
  if (!json.empty()) events_.call_arguments(json);
}

/// An answer that is nothing but {"name": <an offered tool>, …} is a call. False: held back.
bool ReplyParser::read_bare_json(size_t& at, Ending ending) {
  if (in_think_ || !tools_ || !answer_empty_) return true;
  const size_t blanks = blanks_at(std::string_view(held_).substr(at));
  if (at + blanks == held_.size() || held_[at + blanks] != '{') return true;
  say(std::string_view(held_).substr(at, blanks));  // they may have come alone
  at += blanks;
  const std::string_view body = std::string_view(held_).substr(at);
  const int head = bare_json_ ? 1 : bare_head(body, *tools_);
  if (head == 0) return true;
  bare_json_ = head == 1;
  if (ending == Ending::kOpen) return false;
  if (bare_json_) {
    bare_json_ = false;
    if (auto call = call_from_json(*tools_, body, true)) {
      at = held_.size();
      take_call(*std::move(call));
      return false;
    }
    if (ending == Ending::kCut) {
      at = held_.size();
      return false;
    }
  }
  drop_waiting();
  answer_empty_ = false;  // so that it is read as text from here on
  return true;
}

void ReplyParser::take_call(ToolCall call) {
  if (in_think_) {
    std::string text = waiting_blanks_ + call.markup;
    waiting_blanks_.clear();
    waiting_.push_back({std::move(text), std::move(call)});
    return;
  }
  drop_waiting();
  answer_empty_ = false;
  const bool followed = followed_ && followed_->begun();
  followed_.reset();
  events_.call(std::move(call), false, followed);
}

/// No call begins at `at`; `known` bytes of it were read.
void ReplyParser::give_up(size_t& at, size_t known) {
  scanner_.reset();
  followed_.reset();
  const std::string_view text = std::string_view(held_).substr(at);
  const std::string_view certain = text.substr(0, known > kReadAgain ? known : kToolCallOpen.size());
  say(certain);
  at += certain.size();
}

void ReplyParser::say(std::string_view text) {
  if (text.empty()) return;
  if (!waiting_.empty()) {
    const size_t blanks = blanks_at(text);
    if (!close_waits_) waiting_blanks_ += text.substr(0, blanks);
    text.remove_prefix(blanks);
    if (text.empty()) return;
    drop_waiting();
  }
  if (in_think_) {
    events_.reasoning(text);
    return;
  }
  if (blanks_at(text) < text.size()) answer_empty_ = false;
  events_.content(text);
}

/// Something else follows: the calls in the think block were thoughts.
void ReplyParser::drop_waiting() {
  if (waiting_.empty()) return;
  for (const Waiting& w : waiting_) events_.reasoning(w.text);
  events_.reasoning(waiting_blanks_);
  waiting_.clear();
  waiting_blanks_.clear();
  if (close_waits_) events_.think_closed();
  close_waits_ = false;
}

}  // namespace firesteel
