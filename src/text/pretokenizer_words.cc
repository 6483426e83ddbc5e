#include "text/pretokenizer_words.h"

#include "text/pretokenizer_classes.h"
#include "text/utf8.h"

namespace firesteel {

const std::string_view kWordsPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

using Byte = unsigned char;

/// Walks one text. Every method takes and returns positions on character borders.
class Matcher {
 public:
  explicit Matcher(std::string_view text)
      : begin_(reinterpret_cast<const Byte*>(text.data())),
        end_(begin_ + text.size()),
        table_(CharClassTable::get()) {}

  const Byte* begin() const { return begin_; }
  const Byte* end() const { return end_; }

  /// End of the piece that starts at `at`, which is not the end of the text.
  const Byte* piece(const Byte* at) const {
    const Byte* next = at;
    const CharClass first = read(next);
    if (first == CharClass::kLetter) return skip(next, CharClass::kLetter);
    if (*at == '\'') {
      if (const Byte* e = contraction(next)) return e;
    }
    if (first == CharClass::kNumber) return number(next);
    const CharClass second = next == end_ ? CharClass::kBlank : peek(next);
    if (second == CharClass::kLetter && *at != '\r' && *at != '\n') return skip(next, CharClass::kLetter);
    if (first == CharClass::kOther) return symbols(next);
    if (*at == ' ' && second == CharClass::kOther && next != end_) return symbols(next);
    return blanks(at);
  }

 private:
  /// Class of the character at `p`; moves past it.
  CharClass read(const Byte*& p) const { return table_.of(utf8_next_valid(p)); }
  CharClass peek(const Byte* p) const { return read(p); }

  const Byte* skip(const Byte* p, CharClass wanted) const {
    while (p != end_) {
      const Byte* next = p;
      if (read(next) != wanted) break;
      p = next;
    }
    return p;
  }

  /// `p` is behind an apostrophe. The end of 's, 't, 're, 've, 'm, 'll or 'd without regard to case, else
  /// null. Simple case folding gives `s` a third form, U+017F; none of the other letters has one.
  const Byte* contraction(const Byte* p) const {
    const auto left = static_cast<size_t>(end_ - p);
    if (left == 0) return nullptr;
    const auto lower = [](Byte b) { return b | 0x20; };
    const int a = lower(p[0]);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 1;
    if (left < 2) return nullptr;
    if (p[0] == 0xc5 && p[1] == 0xbf) return p + 2;
    const int b = lower(p[1]);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 2;
    return nullptr;
  }

  /// One number character is read; up to two more belong to the piece.
  const Byte* number(const Byte* p) const {
    for (int i = 0; i < 2 && p != end_; ++i) {
      const Byte* next = p;
      if (read(next) != CharClass::kNumber) break;
      p = next;
    }
    return p;
  }

  const Byte* symbols(const Byte* p) const {
    p = skip(p, CharClass::kOther);
    while (p != end_ && (*p == '\r' || *p == '\n')) ++p;
    return p;
  }

  /// A run of blanks that no letter or symbol takes its first character of: up to its last line end if it has
  /// one; else all of it at the end of the text; else all but the last character, which is left for what
  /// follows.
  const Byte* blanks(const Byte* at) const {
    const Byte* after_line_end = nullptr;
    const Byte* last = at;
    const Byte* p = at;
    while (p != end_) {
      const Byte* next = p;
      if (read(next) != CharClass::kBlank) break;
      if (*p == '\r' || *p == '\n') after_line_end = next;
      last = p;
      p = next;
    }
    if (after_line_end) return after_line_end;
    return p == end_ || last == at ? p : last;
  }

  const Byte* begin_;
  const Byte* end_;
  const CharClassTable& table_;
};

}  // namespace

void split_words(std::string_view text, uint32_t base, std::vector<uint32_t>& ends) {
  const Matcher matcher(text);
  for (const Byte* p = matcher.begin(); p != matcher.end();) {
    p = matcher.piece(p);
    ends.push_back(base + static_cast<uint32_t>(p - matcher.begin()));
  }
}

}  // namespace firesteel
