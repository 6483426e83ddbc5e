#include "grammar/ebnf.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace firesteel::grammar {

namespace {

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.';
}

class Parser {
 public:
  Parser(std::string_view text, GrammarBuilder* builder, ExprPool* pool)
      : s_(text), builder_(builder), pool_(pool) {}

  Result<uint32_t> run() {
    for (blanks(); more(); blanks()) definition();
    if (failed_) return error_;
    for (const auto& [name, rule] : rules_) {
      if (!rule.defined)
        return Error{ErrorCode::kInvalidArgument, "grammar: rule '" + name + "' is not defined"};
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) return Error{ErrorCode::kInvalidArgument, "grammar: there is no rule 'root'"};
    if (!builder_->budget()->ok()) return builder_->budget()->error();
    return root->second.id;
  }

 private:
  struct Named {
    uint32_t id = 0;
    bool defined = false;
  };

  bool more() const { return !failed_ && at_ < s_.size(); }
  bool at(std::string_view text) const { return s_.substr(at_, text.size()) == text; }
  bool take(std::string_view text) {
    if (!at(text)) return false;
    at_ += text.size();
    return true;
  }
  ExprId fail(ErrorCode code, const std::string& what) {
    if (failed_) return 0;
    failed_ = true;
    const auto line =
        std::count(s_.begin(), s_.begin() + static_cast<ptrdiff_t>(std::min(at_, s_.size())), '\n') + 1;
    error_ = {code, "grammar, line " + std::to_string(line) + ": " + what};
    return 0;
  }
  ExprId fail(const std::string& what) { return fail(ErrorCode::kInvalidArgument, what); }

  void blanks() {
    while (at_ < s_.size()) {
      if (s_[at_] == '#') {
        at_ = std::min(s_.find('\n', at_), s_.size());
      } else if (s_[at_] == ' ' || s_[at_] == '\t' || s_[at_] == '\n' || s_[at_] == '\r') {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string_view name() {
    const size_t begin = at_;
    while (at_ < s_.size() && is_name_char(s_[at_])) ++at_;
    return s_.substr(begin, at_ - begin);
  }

  Named& rule(std::string_view name) {
    const auto [it, fresh] = rules_.try_emplace(std::string(name));
    if (fresh) it->second.id = builder_->add_rule();
    return it->second;
  }

  void definition() {
    const std::string_view rule_name = name();
    blanks();
    if (rule_name.empty() || !take("::=")) {
      fail("expected a rule, name ::= …");
      return;
    }
    Named& own = rule(rule_name);
    if (own.defined) {
      fail("rule '" + std::string(rule_name) + "' is defined twice");
      return;
    }
    own.defined = true;
    const uint32_t id = own.id;
    const ExprId body = alternatives(0);
    if (more() && !at_definition()) {
      fail("unexpected '" + std::string(1, s_[at_]) + "'");
      return;
    }
    if (failed_) return;
    Lowering(*pool_, Encoding::kUtf8, builder_, true).lower(body, builder_->start(id), builder_->end(id));
    if (!builder_->budget()->ok()) fail(ErrorCode::kLimit, builder_->budget()->error().message);
  }

  /// A name that "::=" follows begins the next rule.
  bool at_definition() {
    const size_t back = at_;
    const bool named = !name().empty();
    blanks();
    const bool yes = named && at("::=");
    at_ = back;
    return yes;
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
    for (blanks(); more() && s_[at_] != '|' && s_[at_] != ')' && !at_definition(); blanks())
      parts.push_back(repeated(element(depth)));
    return parts.empty() ? pool_->empty() : pool_->seq(std::move(parts));
  }

  ExprId element(int depth) {
    if (take("(")) {
      blanks();
      if (at("=") || at("!")) return fail(ErrorCode::kUnsupported, "look-ahead is not supported");
      const ExprId inside = alternatives(depth + 1);
      if (!failed_ && !take(")")) return fail("missing )");
      return inside;
    }
    if (take("\"")) return literal();
    if (take("[")) return char_class();
    if (at(".") && (at_ + 1 >= s_.size() || !is_name_char(s_[at_ + 1]))) {
      ++at_;
      return pool_->chars(CharSet::all());
    }
    const std::string_view callee = name();
    if (callee.empty()) return fail("unexpected '" + std::string(1, s_[at_]) + "'");
    return pool_->rule(rule(callee).id);
  }

  uint32_t number() {
    uint64_t value = 0;
    for (; at_ < s_.size() && s_[at_] >= '0' && s_[at_] <= '9'; ++at_)
      value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(s_[at_] - '0'), 1'000'000'000);
    return static_cast<uint32_t>(value);
  }

  ExprId repeated(ExprId element) {
    for (int times = 0; more(); ++times) {
      uint32_t min = 0, max = kUnbounded;
      const size_t back = at_;
      blanks();
      if (take("+")) {
        min = 1;
      } else if (take("?")) {
        max = 1;
      } else if (take("{")) {
        blanks();
        min = max = number();
        blanks();
        if (take(",")) {
          blanks();
          max = at("}") ? kUnbounded : number();
          blanks();
        }
        if (!take("}") || min > max) return fail("malformed repetition");
      } else if (!take("*")) {
        at_ = back;
        return element;
      }
      if (times > 8) return fail(ErrorCode::kLimit, "too many repetitions of one element");
      element = pool_->repeat(element, min, max);
    }
    return element;
  }

  /// A character inside quotes or brackets; surrogates and malformed escapes are errors.
  uint32_t character() {
    if (!take("\\")) {
      const int32_t c = read_utf8(s_, &at_);
      if (c < 0) fail("invalid UTF-8");
      return static_cast<uint32_t>(std::max(c, 0));
    }
    if (at_ >= s_.size()) {
      fail("the text ends in a backslash");
      return 0;
    }
    const char c = s_[at_++];
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      uint64_t value = 0;
      for (int i = 0; i < digits; ++i) {
        const char d = at_ < s_.size() ? s_[at_] : ' ';
        const int v = d >= '0' && d <= '9'                 ? d - '0'
                      : (d | 32) >= 'a' && (d | 32) <= 'f' ? (d | 32) - 'a' + 10
                                                           : -1;
        if (v < 0) {
          fail("malformed hexadecimal escape");
          return 0;
        }
        value = value * 16 + static_cast<uint64_t>(v);
        ++at_;
      }
      if (value > kMaxCodePoint || (value >= 0xD800 && value < 0xE000)) fail("the escape is no character");
      return static_cast<uint32_t>(std::min<uint64_t>(value, kMaxCodePoint));
    }
    switch (c) {
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case '0':
        return 0;
      default:
        if (std::string_view("\\\"'[]-^/").find(c) == std::string_view::npos)
          fail(std::string("unknown escape \\") + c);
        return static_cast<uint8_t>(c);
    }
  }

  ExprId literal() {
    std::string text;
    while (more() && s_[at_] != '"' && s_[at_] != '\n') {
      uint8_t bytes[4];
      const int length = encode_utf8(character(), bytes);
      text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
    }
    if (!failed_ && !take("\"")) return fail("missing \"");
    return text.empty() ? pool_->empty() : pool_->text(text);
  }

  ExprId char_class() {
    const bool negated = take("^");
    CharSet set;
    while (more() && s_[at_] != ']' && s_[at_] != '\n') {
      const uint32_t low = character();
      uint32_t high = low;
      if (more() && at("-") && s_.substr(at_ + 1, 1) != "]") {
        ++at_;
        high = character();
      }
      if (low > high) return fail("a range in a class is out of order");
      set.add(low, high);
    }
    if (!failed_ && !take("]")) return fail("missing ]");
    set.normalize();
    return pool_->chars(negated ? set.complement() : set);
  }

  std::string_view s_;
  GrammarBuilder* builder_;
  ExprPool* pool_;
  std::map<std::string, Named, std::less<>> rules_;
  size_t at_ = 0;
  bool failed_ = false;
  Error error_;
};

}  // namespace

Result<uint32_t> parse_ebnf(std::string_view text, GrammarBuilder* builder, ExprPool* pool) {
  return Parser(text, builder, pool).run();
}

}  // namespace firesteel::grammar
