#include "grammar/regex.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace firesteel::grammar {

namespace {

CharSet digits() {
  CharSet set;
  set.add('0', '9');
  return set;
}

CharSet word() {
  CharSet set;
  set.add('0', '9');
  set.add('A', 'Z');
  set.add('_', '_');
  set.add('a', 'z');
  return set;
}

CharSet space() {
  CharSet set;
  for (const CharRange r : {CharRange{9, 13},
                            {32, 32},
                            {0xA0, 0xA0},
                            {0x1680, 0x1680},
                            {0x2000, 0x200A},
                            {0x2028, 0x2029},
                            {0x202F, 0x202F},
                            {0x205F, 0x205F},
                            {0x3000, 0x3000},
                            {0xFEFF, 0xFEFF}})
    set.add(r.low, r.high);
  return set;
}

CharSet not_line_end() {
  CharSet set;
  set.add('\n', '\n');
  set.add('\r', '\r');
  set.add(0x2028, 0x2029);
  return set.complement();
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class Parser {
 public:
  Parser(std::string_view pattern, ExprPool* pool) : s_(pattern), pool_(pool) {}

  Result<ExprId> run() {
    const ExprId whole = alternatives(0);
    if (!failed_ && at_ < s_.size()) fail(ErrorCode::kInvalidArgument, "unmatched )");
    if (failed_) return error_;
    return whole;
  }

 private:
  bool more() const { return !failed_ && at_ < s_.size(); }
  char peek() const { return s_[at_]; }
  bool take(std::string_view text) {
    if (s_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  ExprId fail(ErrorCode code, std::string_view what) {
    if (!failed_) error_ = {code, "pattern, byte " + std::to_string(at_) + ": " + std::string(what)};
    failed_ = true;
    return 0;
  }

  ExprId alternatives(int depth) {
    if (depth > kMaxExprDepth) return fail(ErrorCode::kLimit, "groups are nested too deeply");
    std::vector<ExprId> branches;
    do branches.push_back(sequence(depth));
    while (more() && take("|"));
    return pool_->alt(std::move(branches));
  }

  ExprId sequence(int depth) {
    std::vector<ExprId> parts;
    std::string run;  // plain characters before the current term
    const auto flush = [&] {
      if (!run.empty()) parts.push_back(pool_->text(run));
      run.clear();
    };
    while (more() && peek() != '|' && peek() != ')') {
      const size_t begin = at_;
      const int32_t plain = plain_char();
      if (plain >= 0 && !at_quantifier()) {
        run.append(s_.substr(begin, at_ - begin));
        continue;
      }
      flush();
      const ExprId term = plain >= 0 ? pool_->chars(CharSet::of(static_cast<uint32_t>(plain))) : atom(depth);
      parts.push_back(quantified(term));
    }
    flush();
    return parts.empty() ? pool_->empty() : pool_->seq(std::move(parts));
  }

  /// A character that stands for itself, or -1 with nothing read.
  int32_t plain_char() {
    static constexpr std::string_view kSyntax = "\\^$.*+?()[|";
    if (kSyntax.find(peek()) != std::string_view::npos) return -1;
    if (peek() == '{' && at_quantifier()) return -1;
    const int32_t c = read_utf8(s_, &at_);
    if (c < 0) fail(ErrorCode::kInvalidArgument, "invalid UTF-8");
    return std::max(c, 0);
  }

  bool at_quantifier() const {
    if (failed_ || at_ >= s_.size()) return false;
    const char c = s_[at_];
    if (c == '*' || c == '+' || c == '?') return true;
    size_t i = at_ + 1;
    const auto skip_digits = [&] {
      const size_t from = i;
      while (i < s_.size() && s_[i] >= '0' && s_[i] <= '9') ++i;
      return i > from;
    };
    if (c != '{' || !skip_digits()) return false;
    if (i < s_.size() && s_[i] == ',') {
      ++i;
      skip_digits();
    }
    return i < s_.size() && s_[i] == '}';
  }

  uint32_t number() {
    constexpr uint32_t kLargest = 1'000'000'000;
    uint64_t value = 0;
    for (; at_ < s_.size() && peek() >= '0' && peek() <= '9'; ++at_)
      value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(peek() - '0'), kLargest);
    return static_cast<uint32_t>(value);
  }

  ExprId quantified(ExprId term) {
    if (!at_quantifier()) return term;
    if (pool_->node(term).kind == ExprKind::kAnchor)
      return fail(ErrorCode::kInvalidArgument, "a quantifier cannot follow ^ or $");
    uint32_t min = 0, max = kUnbounded;
    if (take("+")) {
      min = 1;
    } else if (take("?")) {
      max = 1;
    } else if (!take("*")) {
      ++at_;
      min = max = number();
      if (take(",")) max = peek() == '}' ? kUnbounded : number();
      ++at_;
      if (min > max) return fail(ErrorCode::kInvalidArgument, "repetition bounds are out of order");
    }
    take("?");  // lazy: the same texts
    if (at_quantifier()) return fail(ErrorCode::kInvalidArgument, "nothing to repeat");
    return pool_->repeat(term, min, max);
  }

  ExprId atom(int depth) {
    if (failed_) return 0;
    switch (peek()) {
      case '^':
      case '$':
        return pool_->anchor(s_[at_++] == '$');
      case '.':
        ++at_;
        return pool_->chars(not_line_end());
      case '(':
        return group(depth);
      case '[':
        ++at_;
        return char_class();
      case '\\':
        ++at_;
        return pool_->chars(escape(false));
      default:
        return fail(ErrorCode::kInvalidArgument, "nothing to repeat");
    }
  }

  ExprId group(int depth) {
    ++at_;
    if (take("?")) {
      if (take("<")) {
        if (take("=") || take("!")) return fail(ErrorCode::kUnsupported, "look-behind is not supported");
        while (more() && peek() != '>' && peek() != ')') ++at_;
        if (!take(">")) return fail(ErrorCode::kInvalidArgument, "malformed group name");
      } else if (take("=") || take("!")) {
        return fail(ErrorCode::kUnsupported, "look-ahead is not supported");
      } else if (!take(":")) {
        return fail(ErrorCode::kUnsupported, "this kind of group is not supported");
      }
    }
    const ExprId inside = alternatives(depth + 1);
    if (!failed_ && !take(")")) return fail(ErrorCode::kInvalidArgument, "missing )");
    return inside;
  }

  uint32_t hex(int digits_wanted) {
    uint32_t value = 0;
    for (int i = 0; i < digits_wanted; ++i) {
      const int v = at_ < s_.size() ? hex_value(peek()) : -1;
      if (v < 0) {
        fail(ErrorCode::kInvalidArgument, "malformed hexadecimal escape");
        return 0;
      }
      value = value * 16 + static_cast<uint32_t>(v);
      ++at_;
    }
    return value;
  }

  uint32_t unicode_escape() {
    if (!take("{")) {
      const uint32_t unit = hex(4);
      if (unit < 0xD800 || unit > 0xDBFF || s_.substr(at_, 2) != "\\u") return unit;
      const size_t back = at_;
      at_ += 2;
      const uint32_t low = hex(4);
      if (!failed_ && low >= 0xDC00 && low <= 0xDFFF)
        return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
      at_ = back;
      return unit;
    }
    uint32_t value = 0;
    const size_t begin = at_;
    while (more() && hex_value(peek()) >= 0 && value <= kMaxCodePoint)
      value = value * 16 + static_cast<uint32_t>(hex_value(s_[at_++]));
    if (at_ == begin || value > kMaxCodePoint || !take("}"))
      fail(ErrorCode::kInvalidArgument, "malformed \\u{…} escape");
    return value;
  }

  /// What follows a backslash. A set of one member is a character; `single_` tells which.
  CharSet escape(bool in_class) {
    single_ = -1;
    if (at_ >= s_.size()) {
      fail(ErrorCode::kInvalidArgument, "the pattern ends in a backslash");
      return {};
    }
    const char c = s_[at_++];
    const auto one = [this](uint32_t value) {
      single_ = static_cast<int64_t>(value);
      return CharSet::of(value);
    };
    const auto maybe_not = [](CharSet set, bool negated) {
      set.normalize();
      return negated ? set.complement() : set;
    };
    switch (c) {
      case 'd':
      case 'D':
        return maybe_not(digits(), c == 'D');
      case 'w':
      case 'W':
        return maybe_not(word(), c == 'W');
      case 's':
      case 'S':
        return maybe_not(space(), c == 'S');
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'v':
        return one('\v');
      case 'f':
        return one('\f');
      case 'r':
        return one('\r');
      case 'x':
        return one(hex(2));
      case 'u':
        return one(unicode_escape());
      case 'c':
        if (at_ < s_.size() && ((peek() | 32) >= 'a' && (peek() | 32) <= 'z'))
          return one(static_cast<uint32_t>(s_[at_++]) & 31);
        fail(ErrorCode::kInvalidArgument, "malformed control escape");
        return {};
      case '0':
        if (at_ < s_.size() && peek() >= '0' && peek() <= '9') break;
        return one(0);
      case 'b':
        if (in_class) return one('\b');
        fail(ErrorCode::kUnsupported, "\\b is not supported");
        return {};
      case 'p':
      case 'P':
      case 'B':
      case 'k':
        fail(ErrorCode::kUnsupported, std::string("\\") + c + " is not supported");
        return {};
      default:
        break;
    }
    if (c >= '0' && c <= '9') {
      fail(ErrorCode::kUnsupported, "back references are not supported");
      return {};
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      fail(ErrorCode::kInvalidArgument, std::string("unknown escape \\") + c);
      return {};
    }
    --at_;
    const int32_t literal = read_utf8(s_, &at_);
    if (literal < 0) fail(ErrorCode::kInvalidArgument, "invalid UTF-8");
    return one(static_cast<uint32_t>(std::max(literal, 0)));
  }

  /// One member of a class: the set, and in `single_` the character when it is one.
  CharSet class_atom() {
    if (take("\\")) return escape(true);
    const int32_t c = read_utf8(s_, &at_);
    if (c < 0) fail(ErrorCode::kInvalidArgument, "invalid UTF-8");
    single_ = std::max(c, 0);
    return CharSet::of(static_cast<uint32_t>(single_));
  }

  ExprId char_class() {
    const bool negated = take("^");
    CharSet set;
    while (more() && peek() != ']') {
      const CharSet first = class_atom();
      const int64_t low = single_;
      if (!more() || peek() != '-' || s_.substr(at_ + 1, 1) == "]" || at_ + 1 >= s_.size()) {
        set.add(first);
        continue;
      }
      ++at_;
      const CharSet second = class_atom();
      if (failed_) return 0;
      if (low < 0 || single_ < 0) {  // \d-x: the hyphen is a member
        set.add(first);
        set.add(second);
        set.add('-', '-');
        continue;
      }
      if (low > single_) return fail(ErrorCode::kInvalidArgument, "a range in a class is out of order");
      set.add(static_cast<uint32_t>(low), static_cast<uint32_t>(single_));
    }
    if (!failed_ && !take("]")) return fail(ErrorCode::kInvalidArgument, "missing ]");
    set.normalize();
    return pool_->chars(negated ? set.complement() : set);
  }

  std::string_view s_;
  ExprPool* pool_;
  size_t at_ = 0;
  int64_t single_ = -1;
  bool failed_ = false;
  Error error_;
};

/// Replaces anchors by what they mean where they stand.
class Anchors {
 public:
  explicit Anchors(ExprPool* pool) : pool_(pool) {}

  /// `at_begin`: nothing can lie before this expression; ^ is then true, elsewhere false. A ^ behind
  /// something that may be empty but need not be counts as false, which narrows the language and never widens
  /// it.
  ExprId resolve(ExprId id, bool at_begin, bool at_end) {
    const ExprPool::Node node = pool_->node(id);  // a copy: the pool grows
    switch (node.kind) {
      case ExprKind::kAnchor:
        (node.index ? uses_end : uses_begin) = true;
        return (node.index ? at_end : at_begin) ? pool_->empty() : pool_->never();
      case ExprKind::kSeq: {
        std::vector<bool> rest_empty(node.children.size() + 1, true);  // from child i on
        for (size_t i = node.children.size(); i-- > 0;)
          rest_empty[i] = rest_empty[i + 1] && zero_width(node.children[i]);
        std::vector<ExprId> parts;
        for (size_t i = 0; i < node.children.size(); ++i) {
          const ExprId part = resolve(node.children[i], at_begin, at_end && rest_empty[i + 1]);
          if (pool_->node(part).kind == ExprKind::kNever) return part;
          at_begin = at_begin && pool_->node(part).kind == ExprKind::kEmpty;
          if (pool_->node(part).kind != ExprKind::kEmpty) parts.push_back(part);
        }
        return parts.empty() ? pool_->empty() : pool_->seq(std::move(parts));
      }
      case ExprKind::kAlt: {
        std::vector<ExprId> branches;
        for (ExprId child : node.children) {
          const ExprId branch = resolve(child, at_begin, at_end);
          if (pool_->node(branch).kind != ExprKind::kNever) branches.push_back(branch);
        }
        return branches.empty() ? pool_->never() : pool_->alt(std::move(branches));
      }
      case ExprKind::kRepeat: {
        const bool once = node.max <= 1;
        const ExprId child = resolve(node.children[0], at_begin && once, at_end && once);
        const ExprKind kind = pool_->node(child).kind;
        if (kind == ExprKind::kEmpty || node.max == 0) return pool_->empty();
        if (kind == ExprKind::kNever) return node.min == 0 ? pool_->empty() : child;
        return pool_->repeat(child, node.min, node.max);
      }
      default:
        return id;
    }
  }

  bool uses_begin = false, uses_end = false;

 private:
  bool zero_width(ExprId id) const {
    const auto& node = pool_->node(id);
    if (node.kind == ExprKind::kEmpty || node.kind == ExprKind::kAnchor) return true;
    if (node.kind != ExprKind::kSeq && node.kind != ExprKind::kAlt) return false;
    return std::all_of(node.children.begin(), node.children.end(),
                       [this](ExprId child) { return zero_width(child); });
  }
  ExprPool* pool_;
};

}  // namespace

Result<ExprId> parse_regex(std::string_view pattern, RegexMatch match, ExprPool* pool) {
  if (pattern.size() > kMaxPatternBytes)
    return Error{ErrorCode::kLimit, "pattern is longer than " + std::to_string(kMaxPatternBytes) + " bytes"};
  ASSIGN_OR_RETURN(const ExprId whole, Parser(pattern, pool).run());
  Anchors anchors(pool);
  const ExprId anchored = anchors.resolve(whole, true, true);
  if (match == RegexMatch::kFull) return anchored;
  const bool uses_begin = anchors.uses_begin, uses_end = anchors.uses_end;
  const ExprId any = pool->repeat(pool->chars(CharSet::all()), 0, kUnbounded);
  std::vector<ExprId> ways;
  for (const bool begin : {true, false}) {
    for (const bool end : {true, false}) {
      if ((begin && !uses_begin) || (end && !uses_end)) continue;
      const ExprId body = anchors.resolve(whole, begin, end);
      if (pool->node(body).kind == ExprKind::kNever) continue;
      std::vector<ExprId> parts;
      if (!begin) parts.push_back(any);
      parts.push_back(body);
      if (!end) parts.push_back(any);
      ways.push_back(pool->seq(std::move(parts)));
    }
  }
  return ways.empty() ? pool->never() : pool->alt(std::move(ways));
}

}  // namespace firesteel::grammar
