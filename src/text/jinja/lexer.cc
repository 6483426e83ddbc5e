#include "text/jinja/lexer.h"

#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "text/jinja/unicode.h"

namespace firesteel::jinja {

namespace {

/// Line ends become "\n" and one at the very end is dropped.
std::string normalize_newlines(std::string_view source, bool drop_last) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      out.push_back('\n');
    } else {
      out.push_back(source[i]);
    }
  }
  if (drop_last && !out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : s_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < s_.size()) lex_text();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  enum class Tag { kNone, kBlock, kVariable, kComment };

  [[noreturn]] void error(const std::string& message) const { throw SyntaxError{line_, message}; }

  Token& add(TokenKind kind, std::string text) {
    Token t;
    t.kind = kind;
    t.line = line_;
    t.text = std::move(text);
    tokens_.push_back(std::move(t));
    return tokens_.back();
  }
  bool looking_at(std::string_view what) const {
    return std::string_view(s_).substr(at_, what.size()) == what;
  }
  void advance(size_t count) {
    line_ += static_cast<int>(std::count(s_.begin() + static_cast<ptrdiff_t>(at_),
                                         s_.begin() + static_cast<ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
  }
  void skip_space() {
    size_t end = at_;
    while (end < s_.size()) {
      const CodePoint c = decode_at(s_, end);
      if (!is_space(c.value)) break;
      end += c.size;
    }
    advance(end - at_);
  }

  Tag tag_at(size_t at) const {
    if (s_[at] != '{' || at + 1 >= s_.size()) return Tag::kNone;
    switch (s_[at + 1]) {
      case '%':
        return Tag::kBlock;
      case '{':
        return Tag::kVariable;
      case '#':
        return Tag::kComment;
      default:
        return Tag::kNone;
    }
  }

  /// The text before a tag whose sign is `sign`: "-" strips it, a block or comment at a line's start loses
  /// its indent.
  std::string_view before_tag(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') {
      while (!text.empty()) {
        const CodePoint c = decode_before(text, text.size());
        if (!is_space(c.value)) break;
        text.remove_suffix(c.size);
      }
      return text;
    }
    if (sign == '+' || is_variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
    if (start == 0 && !line_starting_) return text;
    for (size_t i = start; i < text.size();) {
      const CodePoint c = decode_at(text, i);
      if (!is_space(c.value)) return text;
      i += c.size;
    }
    return text.substr(0, start);
  }

  void add_text(std::string_view text) {
    if (!text.empty()) add(TokenKind::kText, std::string(text));
  }

  /// Consumes the end of a tag at `at_`: a sign, `close`, and the white space that goes with it. False: not
  /// here.
  bool take_end(std::string_view close, bool is_variable) {
    const bool minus = looking_at("-") && std::string_view(s_).substr(at_ + 1, close.size()) == close;
    const bool plus =
        !is_variable && looking_at("+") && std::string_view(s_).substr(at_ + 1, close.size()) == close;
    if (!minus && !plus && !looking_at(close)) return false;
    const size_t begin = at_;
    advance(close.size() + (minus || plus ? 1 : 0));
    if (minus) {
      skip_space();
    } else if (!plus && !is_variable && looking_at("\n")) {
      advance(1);
    }
    line_starting_ = at_ > begin && s_[at_ - 1] == '\n';
    return true;
  }

  void lex_text() {
    size_t tag = at_;
    while (tag < s_.size() && tag_at(tag) == Tag::kNone) ++tag;
    if (tag >= s_.size()) {
      add_text(std::string_view(s_).substr(at_));
      advance(s_.size() - at_);
      return;
    }
    const Tag kind = tag_at(tag);
    const char sign = tag + 2 < s_.size() && (s_[tag + 2] == '-' || s_[tag + 2] == '+') ? s_[tag + 2] : '\0';
    add_text(before_tag(std::string_view(s_).substr(at_, tag - at_), sign, kind == Tag::kVariable));
    advance(tag - at_ + 2 + (sign != '\0' ? 1 : 0));
    switch (kind) {
      case Tag::kComment:
        return lex_comment();
      case Tag::kVariable:
        return lex_tag(TokenKind::kVariableBegin, TokenKind::kVariableEnd, "}}");
      default:
        if (take_raw_begin()) return lex_raw();
        return lex_tag(TokenKind::kBlockBegin, TokenKind::kBlockEnd, "%}");
    }
  }

  void lex_comment() {
    for (; at_ < s_.size(); advance(1))
      if (take_end("#}", false)) return;
    error("missing end of comment tag");
  }

  /// `at_` is behind "{%" and its sign.
  bool take_raw_begin() {
    const size_t begin = at_;
    const int line = line_;
    skip_space();
    if (looking_at("raw")) {
      advance(3);
      skip_space();
      if (looking_at("-%}")) {
        advance(3);
        skip_space();
        return true;
      }
      if (looking_at("%}")) {
        advance(2);
        return true;
      }
    }
    at_ = begin;
    line_ = line;
    return false;
  }

  void lex_raw() {
    line_starting_ = s_[at_ - 1] == '\n';
    const size_t begin = at_;
    for (size_t open = s_.find("{%", at_); open != std::string::npos; open = s_.find("{%", open + 1)) {
      const char c = open + 2 < s_.size() ? s_[open + 2] : '\0';
      const char sign = c == '-' || c == '+' ? c : '\0';
      const size_t save = at_;
      const int line = line_;
      advance(open - at_ + 2 + (sign != '\0' ? 1 : 0));
      skip_space();
      if (looking_at("endraw")) {
        advance(6);
        skip_space();
        const std::string_view text =
            before_tag(std::string_view(s_).substr(begin, open - begin), sign, false);
        const std::string raw(text);
        if (take_end("%}", false)) {
          const int end_line = line_;
          line_ = line;
          add_text(raw);
          line_ = end_line;
          return;
        }
      }
      at_ = save;
      line_ = line;
    }
    error("missing end of raw directive");
  }

  void lex_tag(TokenKind begin, TokenKind end, std::string_view close) {
    add(begin, "");
    std::vector<char> open;  // brackets that must be closed before the tag may end
    for (;;) {
      skip_space();
      if (at_ >= s_.size()) error("unexpected end of template");
      if (open.empty()) {
        const size_t token = tokens_.size();
        add(end, "");
        if (take_end(close, end == TokenKind::kVariableEnd)) return;
        tokens_.resize(token);
      }
      lex_token(&open);
    }
  }

  void lex_token(std::vector<char>* open) {
    const char c = s_[at_];
    if (c >= '0' && c <= '9') return lex_number();
    const CodePoint p = decode_at(s_, at_);
    if (c == '_' || is_alpha(p.value)) return lex_name();
    if (c == '\'' || c == '"') return lex_string(c);
    lex_operator(open);
  }

  void lex_name() {
    size_t end = at_;
    while (end < s_.size()) {
      const CodePoint c = decode_at(s_, end);
      if (c.value != '_' && !is_alpha(c.value) && !is_decimal(c.value)) break;
      end += c.size;
    }
    add(TokenKind::kName, s_.substr(at_, end - at_));
    at_ = end;
  }

  static bool is_digit_of(char c, int base) {
    if (base == 16) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    return c >= '0' && c < '0' + base;
  }
  /// End of `digit(_?digit)*` from `at`, or `at` when there is none.
  size_t digits_end(size_t at, int base) const {
    size_t end = at;
    for (size_t i = at; i < s_.size();) {
      if (s_[i] == '_' && i > at) {
        if (i + 1 >= s_.size() || !is_digit_of(s_[i + 1], base)) break;
        ++i;
      }
      if (!is_digit_of(s_[i], base)) break;
      end = ++i;
    }
    return end;
  }
  std::string without_underscores(size_t begin, size_t end) const {
    std::string out = s_.substr(begin, end - begin);
    std::erase(out, '_');
    return out;
  }

  void lex_number() {
    const size_t begin = at_;
    const size_t whole = digits_end(begin, 10);
    // After a dot the number is an index (x.0.1), never a float.
    const bool after_dot = begin > 0 && s_[begin - 1] == '.';
    size_t end = whole;
    if (!after_dot) {
      if (end < s_.size() && s_[end] == '.') {
        const size_t fraction = digits_end(end + 1, 10);
        if (fraction > end + 1) end = fraction;
      }
      if (end < s_.size() && (s_[end] == 'e' || s_[end] == 'E')) {
        size_t power = end + 1;
        if (power < s_.size() && (s_[power] == '+' || s_[power] == '-')) ++power;
        const size_t last = digits_end(power, 10);
        if (last > power) end = last;
      }
    }
    if (end > whole) {
      const std::string digits = without_underscores(begin, end);
      Token& t = add(TokenKind::kFloat, digits);
      const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), t.real);
      if (r.ec != std::errc()) error("number out of range");
      at_ = end;
      return;
    }
    int base = 10;
    size_t from = begin;
    if (s_[begin] == '0' && begin + 1 < s_.size()) {
      const char c = static_cast<char>(s_[begin + 1] | 0x20);
      const int b = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
      size_t first = begin + 2;
      if (b != 10 && first < s_.size() && s_[first] == '_') ++first;
      if (b != 10 && digits_end(first, b) > first) {
        base = b;
        from = first;
        end = digits_end(first, b);
      }
    }
    const std::string digits = without_underscores(from, end);
    if (base == 10 && digits.size() > 1 && digits[0] == '0' &&
        digits.find_first_not_of('0') != std::string::npos)
      error("a number with a leading zero");
    Token& t = add(TokenKind::kInteger, digits);
    const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), t.integer, base);
    if (r.ec != std::errc()) error("number out of range");
    at_ = end;
  }

  void lex_string(char quote) {
    size_t end = at_ + 1;
    while (end < s_.size() && s_[end] != quote) end += s_[end] == '\\' ? 2 : 1;
    if (end >= s_.size()) error("a string is not closed");
    std::string value = unescape(std::string_view(s_).substr(at_ + 1, end - at_ - 1));
    add(TokenKind::kString, std::move(value));
    advance(end + 1 - at_);
  }

  /// Python's rules for escapes; an unknown one stays as it is written.
  std::string unescape(std::string_view s) const {
    std::string out;
    for (size_t i = 0; i < s.size();) {
      if (s[i] != '\\') {
        out.push_back(s[i++]);
        continue;
      }
      const char c = s[i + 1];  // a string never ends in a lone backslash
      i += 2;
      constexpr std::string_view kPlain = "\\'\"abfnrtv", kMeaning = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t p = kPlain.find(c); p != std::string_view::npos) {
        out.push_back(kMeaning[p]);
      } else if (c == '\n') {
        // a line goes on
      } else if (c >= '0' && c <= '7') {
        uint32_t v = 0;
        --i;
        for (int n = 0; n < 3 && i < s.size() && s[i] >= '0' && s[i] <= '7'; ++n)
          v = v * 8 + static_cast<uint32_t>(s[i++] - '0');
        append_utf8(v, &out);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        uint32_t v = 0;
        const std::string_view digits = s.substr(i, count);
        const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), v, 16);
        if (digits.size() != count || r.ptr != digits.data() + count) error("a truncated escape in a string");
        if (v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF)) error("an escape in a string names no character");
        append_utf8(v, &out);
        i += count;
      } else if (c == 'N') {
        error("escapes by character name are not supported");
      } else {
        out.push_back('\\');
        out.push_back(c);
      }
    }
    return out;
  }

  void lex_operator(std::vector<char>* open) {
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    std::string op;
    for (const std::string_view two : kTwo)
      if (looking_at(two)) op = two;
    if (op.empty() && kOne.find(s_[at_]) != std::string_view::npos) op = s_.substr(at_, 1);
    if (op.empty()) error("unexpected character in a tag");
    if (op == "{" || op == "(" || op == "[") {
      open->push_back(op == "{" ? '}' : op == "(" ? ')' : ']');
    } else if (op == "}" || op == ")" || op == "]") {
      if (open->empty()) error("unexpected '" + op + "'");
      if (open->back() != op[0]) error("unexpected '" + op + "', expected '" + open->back() + "'");
      open->pop_back();
    }
    const size_t size = op.size();
    add(TokenKind::kOperator, std::move(op));
    at_ += size;
  }

  const std::string s_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  const size_t bad = find_invalid_utf8(source);
  if (bad != std::string_view::npos)
    throw SyntaxError{
        1 + static_cast<int>(std::count(source.begin(), source.begin() + static_cast<ptrdiff_t>(bad), '\n')),
        "invalid UTF-8"};
  return Lexer(normalize_newlines(source, true)).run();
}

}  // namespace firesteel::jinja
