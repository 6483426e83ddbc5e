// The translation from the reference library's regex dialect to PCRE2's (pretokenizer_regex.h).
#include <cstdio>
#include <span>

#include "text/pretokenizer_classes.h"
#include "text/pretokenizer_regex.h"
#include "text/utf8.h"

namespace firesteel {

namespace {

constexpr size_t kMaxPattern = 16 * 1024;

Error unsupported(const std::string& what) {
  return {ErrorCode::kUnsupported, "the pattern uses " + what + ", which is not supported"};
}
Error malformed(const std::string& what) { return {ErrorCode::kInvalidFile, "the pattern has " + what}; }

bool is_alnum(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

void put_code_point(std::string& out, uint32_t cp) {
  char text[16];
  std::snprintf(text, sizeof text, "\\x{%x}", cp);
  out += text;
}

/// Class members for the ranges, or for everything but them.
void put_ranges(std::string& out, std::span<const CodePointRange> ranges, bool complement) {
  const auto put = [&](uint32_t first, uint32_t last) {
    if (first > last) return;
    put_code_point(out, first);
    if (last == first) return;
    out += '-';
    put_code_point(out, last);
  };
  const auto put_scalars = [&](uint32_t first, uint32_t last) {  // PCRE2 refuses surrogates as range ends
    if (first < 0xd800 && last > 0xdfff) {
      put(first, 0xd7ff);
      put(0xe000, last);
    } else {
      put(first, last);
    }
  };
  if (!complement) {
    for (const CodePointRange& r : ranges) put(r.first, r.last);
    return;
  }
  uint32_t next = 0;
  for (const CodePointRange& r : ranges) {
    if (r.first > next) put_scalars(next, r.first - 1);
    next = r.last + 1;
  }
  put_scalars(next, 0x10ffff);
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    if (in_.size() > kMaxPattern) return malformed("more than 16 KiB");
    if (!utf8_is_valid(in_)) return malformed("invalid UTF-8");
    while (at_ < in_.size()) RETURN_IF_ERROR(element());
    return std::move(out_);
  }

 private:
  bool looking_at(std::string_view s) const { return in_.substr(at_).starts_with(s); }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool is_set(size_t at) const {
    return at + 1 < in_.size() && in_[at] == '\\' && std::string_view("sSdDpP").find(in_[at + 1]) != in_.npos;
  }
  void copy(size_t n) {
    out_ += in_.substr(at_, n);
    at_ += n;
  }

  Status element() {
    const char c = peek();
    switch (c) {
      case '\\':
        return escape(false);
      case '[':
        return char_class();
      case '(':
        return group();
      case ')':
        if (depth_ > 0 && --depth_ < caseless_depth_) caseless_depth_ = kNever;
        copy(1);
        return {};
      case '{':
        return interval();
      case '^':
      case '$':
        return unsupported("the anchor '" + std::string(1, c) + "'");
      case '*':
      case '+':
      case '?':
        copy(1);
        if (peek() == '?' || peek() == '+') copy(1);  // lazy and possessive mean the same in both
        return {};
      default:
        copy(utf8_step(in_.substr(at_)).size);
        return {};
    }
  }

  Status group() {
    static constexpr std::string_view kPlain[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?-i:"};
    ++depth_;
    if (peek(1) != '?') {
      copy(1);
      return {};
    }
    for (std::string_view opener : kPlain) {
      if (!looking_at(opener)) continue;
      copy(opener.size());
      return {};
    }
    if (looking_at("(?i:")) {
      if (caseless_depth_ == kNever) caseless_depth_ = depth_;
      copy(4);
      return {};
    }
    return unsupported("the group '" + std::string(in_.substr(at_, 3)) + "'");
  }

  /// {n}, {n,}, {n,m} or {,m}; anything else in braces is literal text in the reference dialect.
  Status interval() {
    size_t i = at_ + 1;
    const size_t low = i;
    while (i < in_.size() && is_digit(in_[i])) ++i;
    const bool has_low = i > low;
    bool comma = false, has_high = false;
    if (i < in_.size() && in_[i] == ',') {
      comma = true;
      const size_t high = ++i;
      while (i < in_.size() && is_digit(in_[i])) ++i;
      has_high = i > high;
    }
    if (i >= in_.size() || in_[i] != '}' || !(has_low || has_high)) {
      out_ += "\\{";
      ++at_;
      return {};
    }
    if (!has_low) {
      out_ += "{0";
      ++at_;
    }
    copy(i + 1 - at_);
    if (peek() == '+' || (peek() == '?' && !comma)) return unsupported("a quantified interval");
    if (peek() == '?') copy(1);
    return {};
  }

  /// An escape; in a class only its members are written, outside a class of its own is opened for sets.
  Status escape(bool in_class) {
    const char c = peek(1);
    if (at_ + 1 >= in_.size()) return malformed("a backslash at its end");
    const auto set = [&](std::span<const CodePointRange> ranges, bool complement) -> Status {
      if (caseless_depth_ != kNever) return unsupported("a character set in a caseless group");
      if (!in_class) out_ += complement ? "[^" : "[";
      put_ranges(out_, ranges, complement && in_class);
      if (!in_class) out_ += ']';
      return {};
    };
    switch (c) {
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        copy(2);
        return {};
      case 'v':
        at_ += 2;
        out_ += "\\x0b";
        return {};
      case 's':
        at_ += 2;
        return set(blank_ranges(), false);
      case 'S':
        at_ += 2;
        return set(blank_ranges(), true);
      case 'd':
        at_ += 2;
        out_ += "\\p{Nd}";
        return {};
      case 'D':
        at_ += 2;
        out_ += "\\P{Nd}";
        return {};
      case 'p':
      case 'P':
        return property(in_class);
      case 'x':
      case 'u':
        return code_point();
      default:
        break;
    }
    if (is_alnum(c)) return unsupported(std::string("the escape \\") + c);
    if (static_cast<unsigned char>(c) >= 0x80) {
      ++at_;  // an escaped non-ASCII character stands for itself
      copy(utf8_step(in_.substr(at_)).size);
      return {};
    }
    copy(2);
    return {};
  }

  Status property(bool in_class) {
    const bool negated_letter = peek(1) == 'P';
    if (peek(2) != '{') return malformed("a property without braces");
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) return malformed("a property that does not end");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    bool complement = negated_letter;
    if (name.starts_with('^')) {
      complement = !complement;
      name.remove_prefix(1);
    }
    if (name.empty() || name.size() > 32) return malformed("a property without a name");
    for (char c : name)
      if (!is_alnum(c) && c != '_') return unsupported("the property \\p{" + std::string(name) + "}");
    if (caseless_depth_ != kNever) return unsupported("a character set in a caseless group");
    at_ = close + 1;
    if (name == "L" || name == "N") {
      if (!in_class) out_ += complement ? "[^" : "[";
      put_ranges(out_, name == "L" ? letter_ranges() : number_ranges(), complement && in_class);
      if (!in_class) out_ += ']';
      return {};
    }
    out_ += complement ? "\\P{" : "\\p{";
    out_ += name;
    out_ += '}';
    return {};
  }

  /// \xHH, \x{H…} and \uHHHH.
  Status code_point() {
    const bool braces = peek(1) == 'x' && peek(2) == '{';
    size_t i = at_ + (braces ? 3 : 2);
    const size_t most = braces ? 8 : peek(1) == 'x' ? 2 : 4;
    uint32_t value = 0;
    size_t digits = 0;
    for (; i < in_.size() && digits < most; ++i, ++digits) {
      const char c = in_[i];
      if (is_digit(c))
        value = value * 16 + static_cast<uint32_t>(c - '0');
      else if (c >= 'a' && c <= 'f')
        value = value * 16 + static_cast<uint32_t>(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        value = value * 16 + static_cast<uint32_t>(c - 'A' + 10);
      else
        break;
    }
    if (digits == 0 || (!braces && digits != most)) return malformed("a damaged character number");
    if (braces && (i >= in_.size() || in_[i++] != '}')) return malformed("a damaged character number");
    // In the reference dialect \x80 and above are bytes, not characters.
    if (!braces && most == 2 && value >= 0x80) return unsupported("a byte escape");
    if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
      return malformed("a number that is no character");
    put_code_point(out_, value);
    at_ = i;
    return {};
  }

  Status char_class() {
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') return unsupported("an empty class");
    bool after_set = false;
    while (at_ < in_.size() && peek() != ']') {
      if (peek() == '[') return unsupported("a class inside a class");
      if (looking_at("&&")) return unsupported("a class intersection");
      if (peek() == '-') {
        // Beside a set a hyphen is itself; beside the ranges that replace the set it would not be.
        out_ += after_set || is_set(at_ + 1) || peek(1) == ']' ? "\\-" : "-";
        ++at_;
        after_set = false;
      } else if (peek() == '\\') {
        after_set = is_set(at_);
        RETURN_IF_ERROR(escape(true));
      } else {
        after_set = false;
        copy(utf8_step(in_.substr(at_)).size);
      }
    }
    if (at_ >= in_.size()) return malformed("a class that does not end");
    copy(1);
    return {};
  }

  static constexpr int kNever = 1 << 30;
  std::string_view in_;
  std::string out_;
  size_t at_ = 0;
  int depth_ = 0;
  int caseless_depth_ = kNever;  // the depth of the outermost (?i: group that is open
};

}  // namespace

Result<std::string> translate_pattern(std::string_view pattern) { return Translator(pattern).run(); }

std::string literal_pattern(std::string_view literal) {
  std::string out;
  for (char c : literal) {
    if (static_cast<unsigned char>(c) < 0x80 && !is_alnum(c)) {
      // Control characters have no escape by backslash, so every special character is written as a number.
      put_code_point(out, static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace firesteel
