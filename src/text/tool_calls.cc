#include "text/tool_calls.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace firesteel {

using nlohmann::ordered_json;

namespace {

constexpr std::string_view kKeyOpen = "<arg_key>", kKeyClose = "</arg_key>";
constexpr std::string_view kValueOpen = "<arg_value>", kValueClose = "</arg_value>";
constexpr std::string_view kFunctionOpen = "<function=", kFunctionClose = "</function>";
constexpr std::string_view kParameterOpen = "<parameter=", kParameterClose = "</parameter>";

// A head, a key or a run of blanks longer than this is prose.
constexpr size_t kMaxPart = 512;
constexpr size_t kMaxArguments = 1024;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'; }

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == ':';
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && is_blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_blank(s.back())) s.remove_suffix(1);
  return s;
}

/// A tool that was not offered is passed on only under a name that any client can take.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return is_name_char(c) && c != '.' && c != ':';
  });
}

/// One line end at each border belongs to the layout of the <parameter> form.
std::string_view without_line_ends(std::string_view s) {
  if (s.starts_with('\n')) s.remove_prefix(1);
  if (s.ends_with('\n')) s.remove_suffix(1);
  return s;
}

}  // namespace

ToolCallScanner::State ToolCallScanner::advance(std::string_view text) {
  while (step_ != Step::kDone && step_ != Step::kFailed) {
    if (!step(text)) return State::kOpen;
  }
  if (step_ == Step::kFailed) return State::kText;
  auto call = build(text);
  if (!call) {
    step_ = Step::kFailed;
    return State::kText;
  }
  call_ = std::move(*call);
  return State::kCall;
}

bool ToolCallScanner::fail() {
  step_ = Step::kFailed;
  return true;
}

/// Skips blanks; true when something else follows, or when there are too many of them (which fails).
bool ToolCallScanner::blanks(std::string_view text) {
  while (at_ < text.size() && is_blank(text[at_])) {
    if (at_ - begin_ >= kMaxPart) return fail();
    ++at_;
  }
  return at_ < text.size();
}

ToolCallScanner::Match ToolCallScanner::match(std::string_view text, std::string_view tag) const {
  const std::string_view there = text.substr(at_, tag.size());
  if (there == tag) return Match::kYes;
  return tag.starts_with(there) ? Match::kMaybe : Match::kNo;
}

/// Reads up to the next `tag` and past it; the part is [begin_, at_ - tag.size()). False: it has not come
/// yet; what can not be part of it is not read again.
bool ToolCallScanner::take_until(std::string_view text, std::string_view tag) {
  const size_t found = text.find(tag, at_);
  if (found != text.npos) {
    at_ = found + tag.size();
    return true;
  }
  at_ = std::max(at_, text.size() - std::min(text.size(), tag.size() - 1));
  return false;
}

bool ToolCallScanner::step(std::string_view text) {
  const auto begin_part = [&](Step next) {
    step_ = next;
    begin_ = at_;
    return true;
  };
  // Takes one of the tags that may stand here: 1 taken, 0 none of them, -1 more text is needed.
  const auto take = [&](std::string_view tag, Step next) -> int {
    switch (match(text, tag)) {
      case Match::kYes:
        at_ += tag.size();
        begin_part(next);
        return 1;
      case Match::kMaybe:
        return -1;
      case Match::kNo:
        break;
    }
    return 0;
  };
  switch (step_) {
    case Step::kHead: {
      if (begin_ == 0) begin_ = at_;
      if (!blanks(text)) return false;
      if (step_ == Step::kFailed) return true;
      if (text[at_] == '{') {
        json_ = true;
        json_begin_ = at_;
        return begin_part(Step::kJson);
      }
      if (is_name_char(text[at_])) return begin_part(Step::kName);
      const int taken = take(kFunctionOpen, Step::kFunctionName);
      return taken == 0 ? fail() : taken > 0;
    }
    case Step::kName:
      while (at_ < text.size() && is_name_char(text[at_])) {
        if (at_ - begin_ >= kMaxPart) return fail();
        ++at_;
      }
      if (at_ == text.size()) return false;
      name_ = text.substr(begin_, at_ - begin_);
      return begin_part(Step::kAfterName);
    case Step::kAfterName:
    case Step::kAfterValue: {
      if (!blanks(text)) return false;
      if (step_ == Step::kFailed) return true;
      if (text[at_] == '<') {
        const int key = take(kKeyOpen, Step::kKey);
        const int close = key > 0 ? 0 : take(kToolCallClose, Step::kDone);
        has_keys_ = has_keys_ || key > 0 || close > 0;
        if (key > 0 || close > 0) return true;
        return key < 0 || close < 0 ? false : fail();
      }
      // Behind a name a blank must stand in for the lost tag.
      if (step_ == Step::kAfterName && at_ == begin_) return fail();
      return begin_part(Step::kLostKey);
    }
    case Step::kLostKey:
      while (at_ < text.size() && text[at_] != '<' && !is_blank(text[at_])) {
        if (at_ - begin_ >= kMaxPart) return fail();
        ++at_;
      }
      if (at_ == text.size()) return false;
      key_ = text.substr(begin_, at_ - begin_);
      {
        const int taken = take(kKeyClose, Step::kBeforeValue);
        has_keys_ = has_keys_ || taken > 0;
        return taken == 0 ? fail() : taken > 0;
      }
    case Step::kKey:
      while (at_ < text.size() && text[at_] != '<') {
        if (at_ - begin_ >= kMaxPart) return fail();
        ++at_;
      }
      if (at_ == text.size()) return false;
      key_ = trimmed(text.substr(begin_, at_ - begin_));
      {
        const int taken = take(kKeyClose, Step::kBeforeValue);
        return taken == 0 ? fail() : taken > 0;
      }
    case Step::kBeforeValue: {
      if (!blanks(text)) return false;
      if (step_ == Step::kFailed) return true;
      const int taken = take(kValueOpen, Step::kValue);
      return taken == 0 ? fail() : taken > 0;
    }
    case Step::kValue:
      if (!take_until(text, kValueClose)) return false;
      if (arguments_.size() == kMaxArguments) return fail();
      arguments_.push_back({key_, begin_, at_ - kValueClose.size()});
      return begin_part(Step::kAfterValue);
    case Step::kJson:
      return json_body(text);
    case Step::kFunctionName:
    case Step::kParameterName:
      while (at_ < text.size() && text[at_] != '>' && text[at_] != '<') {
        if (at_ - begin_ >= kMaxPart) return fail();
        ++at_;
      }
      if (at_ == text.size()) return false;
      if (text[at_] == '<') return fail();
      (step_ == Step::kFunctionName ? name_ : key_) = trimmed(text.substr(begin_, at_ - begin_));
      ++at_;
      return begin_part(step_ == Step::kFunctionName ? Step::kAfterParameter : Step::kParameter);
    case Step::kAfterParameter: {
      if (!blanks(text)) return false;
      if (step_ == Step::kFailed) return true;
      const int parameter = take(kParameterOpen, Step::kParameterName);
      if (parameter > 0) return true;
      const int close = take(kFunctionClose, Step::kBeforeClose);
      if (close > 0) return true;
      return parameter < 0 || close < 0 ? false : fail();
    }
    case Step::kParameter:
      if (!take_until(text, kParameterClose)) return false;
      if (arguments_.size() == kMaxArguments) return fail();
      {
        const size_t end = at_ - kParameterClose.size();
        const std::string_view value = without_line_ends(text.substr(begin_, end - begin_));
        const auto from = static_cast<size_t>(value.data() - text.data());
        arguments_.push_back({key_, from, from + value.size()});
      }
      return begin_part(Step::kAfterParameter);
    case Step::kBeforeClose: {
      if (!blanks(text)) return false;
      if (step_ == Step::kFailed) return true;
      const int taken = take(kToolCallClose, Step::kDone);
      return taken == 0 ? fail() : taken > 0;
    }
    case Step::kDone:
    case Step::kFailed:
      break;
  }
  return false;
}

/// Counts brackets outside strings; the object's grammar is the JSON parser's business.
bool ToolCallScanner::json_body(std::string_view text) {
  for (; at_ < text.size(); ++at_) {
    const char c = text[at_];
    if (json_escape_) {
      json_escape_ = false;
    } else if (json_string_) {
      json_escape_ = c == '\\';
      json_string_ = c != '"';
    } else if (c == '"') {
      json_string_ = true;
    } else if (c == '{' || c == '[') {
      if (++json_depth_ > kMaxJsonDepth) return fail();
    } else if (c == '}' || c == ']') {
      if (--json_depth_ > 0) continue;
      json_end_ = ++at_;
      begin_ = at_;
      step_ = Step::kBeforeClose;
      return true;
    }
  }
  return false;
}

std::optional<ToolCall> ToolCallScanner::build(std::string_view text) const {
  if (json_) {
    auto call = call_from_json(*tools_, text.substr(json_begin_, json_end_ - json_begin_), false);
    if (call) call->markup = text.substr(0, at_);
    return call;
  }
  const int tool = tools_->find(name_);
  if (tool < 0 && !is_plain_name(name_)) return std::nullopt;
  ordered_json values = ordered_json::object();
  for (const Argument& a : arguments_)
    values[a.key] = tools_->value(tool, a.key, text.substr(a.begin, a.end - a.begin));
  return ToolCall{tool < 0 ? name_ : tools_->name(tool), dump_json(values), std::string(text.substr(0, at_))};
}

std::optional<ToolCallScanner::Argument> ToolCallScanner::open_value(std::string_view text) const {
  if (step_ != Step::kValue) return std::nullopt;
  return Argument{key_, begin_, std::min(at_, text.size())};
}

std::optional<ToolCall> ToolCallScanner::repaired(std::string_view text) {
  // What has come is whole but for the closing tag.
  const bool complete = step_ == Step::kName || step_ == Step::kAfterName || step_ == Step::kAfterValue ||
                        step_ == Step::kBeforeClose;
  if (!complete) return std::nullopt;
  if (step_ == Step::kName) name_ = text.substr(begin_, at_ - begin_);
  const std::string_view rest = trimmed(text.substr(at_));
  if (!kToolCallClose.starts_with(rest)) return std::nullopt;
  at_ = text.size();
  auto call = build(text);
  if (!call) return std::nullopt;
  const int tool = tools_->find(call->name);
  const auto values = parse_json(call->arguments);
  if (tool < 0 || !values.ok() || !tools_->has_required(tool, *values)) return std::nullopt;
  call->markup =
      std::string(trimmed(text.substr(0, text.size() - rest.size()))) + std::string(kToolCallClose);
  return call;
}

std::optional<ToolCall> call_from_json(const ToolSet& tools, std::string_view body, bool offered_only) {
  auto parsed = parse_json(trimmed(body));
  if (!parsed.ok() || !parsed->is_object()) return std::nullopt;
  const auto first_of = [&](std::initializer_list<const char*> names) -> const ordered_json* {
    for (const char* n : names)
      if (const auto it = parsed->find(n); it != parsed->end()) return &*it;
    return nullptr;
  };
  const ordered_json* name = first_of({"name", "tool", "function"});
  if (!name || !name->is_string()) return std::nullopt;
  const auto& written = name->get_ref<const std::string&>();
  const int tool = tools.find(written);
  if (tool < 0 && (offered_only || !is_plain_name(written))) return std::nullopt;
  ordered_json values = ordered_json::object();
  if (const ordered_json* given = first_of({"arguments", "args", "parameters"})) {
    values = *given;
    if (values.is_string()) {
      auto again = parse_json(trimmed(values.get_ref<const std::string&>()));
      if (!again.ok()) return std::nullopt;
      values = std::move(again).value();
    }
    if (values.is_null()) values = ordered_json::object();
    if (!values.is_object()) return std::nullopt;
  } else if (offered_only) {
    return std::nullopt;
  }
  return ToolCall{tool < 0 ? written : tools.name(tool), dump_json(values), std::string(body)};
}

std::optional<WrittenCall> written_call(std::string_view markup) {
  if (!markup.starts_with(kToolCallOpen) || !markup.ends_with(kToolCallClose)) return std::nullopt;
  std::string_view rest =
      markup.substr(kToolCallOpen.size(), markup.size() - kToolCallOpen.size() - kToolCallClose.size());
  WrittenCall out;
  out.arguments = ordered_json::object();
  const size_t name = std::min(rest.find(kKeyOpen), rest.size());
  out.name = rest.substr(0, name);
  rest.remove_prefix(name);
  if (out.name.empty() || out.name.find_first_of(" \t\r\n{<") != std::string::npos) return std::nullopt;
  while (!rest.empty()) {
    const size_t key_end = rest.find(kKeyClose), value_end = rest.find(kValueClose);
    const size_t value = key_end + kKeyClose.size();
    if (!rest.starts_with(kKeyOpen) || key_end == rest.npos || value_end == rest.npos || value_end < value ||
        !rest.substr(value).starts_with(kValueOpen)) {
      return std::nullopt;
    }
    const std::string key(rest.substr(kKeyOpen.size(), key_end - kKeyOpen.size()));
    if (out.arguments.contains(key)) return std::nullopt;
    const size_t begin = value + kValueOpen.size();
    if (begin > value_end) return std::nullopt;
    out.arguments[key] = std::string(rest.substr(begin, value_end - begin));
    rest.remove_prefix(value_end + kValueClose.size());
  }
  return out;
}

}  // namespace firesteel
