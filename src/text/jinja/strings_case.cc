// Python's case conversions. A converted character keeps the provenance of the one it comes from.
#include <algorithm>

#include "text/jinja/strings.h"

namespace firesteel::jinja {

namespace {

constexpr uint32_t kCapitalSigma = 0x3A3;

/// Sigma at the end of a word: a cased letter before it (from `begin` on), none after it, ignorable
/// characters aside.
bool is_final_sigma(std::string_view b, size_t begin, size_t at, Budget* budget) {
  bool before = false;
  for (size_t i = at; i > begin && !before;) {
    const CodePoint c = decode_before(b, i);
    i -= c.size;
    budget->step();
    if (is_case_ignorable(c.value)) continue;
    if (!is_cased(c.value)) return false;
    before = true;
  }
  if (!before) return false;
  for (size_t i = at + decode_at(b, at).size; i < b.size();) {
    const CodePoint c = decode_at(b, i);
    i += c.size;
    budget->step();
    if (!is_case_ignorable(c.value)) return !is_cased(c.value);
  }
  return true;
}

/// How to convert one code point. `word_begins`: what stands before the next one does not count for a sigma.
struct Choice {
  CaseMap map;
  bool word_begins = false;
};

/// Converts every code point as `choose(index, code point)` says.
template <typename Choose>
Value convert(const MarkedText& text, Budget* budget, const Choose& choose) {
  TextBuilder out(budget);
  const std::string& b = text.bytes();
  std::string buffer;
  bool trusted = true;
  budget->step_bytes(b.size());
  size_t index = 0, run = 0;
  size_t word = 0;  // byte at which the context of a sigma begins
  for (size_t at = 0; at < b.size(); ++index) {
    const CodePoint c = decode_at(b, at);
    while (text.runs()[run].end <= at) ++run;
    const bool own = text.runs()[run].trusted && text.all_trusted(at, at + c.size);
    if (own != trusted || buffer.size() >= 4096) {
      out.add(buffer, trusted);
      buffer.clear();
      trusted = own;
    }
    const Choice choice = choose(index, c.value);
    if (choice.word_begins) word = at + c.size;
    if (choice.map == CaseMap::kLower && c.value == kCapitalSigma) {
      append_utf8(is_final_sigma(b, std::min(word, at), at, budget) ? 0x3C2 : 0x3C3, &buffer);
    } else {
      append_mapped(c.value, choice.map, &buffer);
    }
    at += c.size;
  }
  out.add(buffer, trusted);
  return out.value();
}

}  // namespace

Value lower(const StringObject& s, Budget* budget) {
  return convert(s.text, budget, [](size_t, uint32_t) { return Choice{CaseMap::kLower}; });
}
Value upper(const StringObject& s, Budget* budget) {
  return convert(s.text, budget, [](size_t, uint32_t) { return Choice{CaseMap::kUpper}; });
}
Value capitalize(const StringObject& s, Budget* budget) {
  return convert(s.text, budget,
                 [](size_t i, uint32_t) { return Choice{i == 0 ? CaseMap::kTitle : CaseMap::kLower}; });
}
Value title(const StringObject& s, Budget* budget) {
  bool in_word = false;
  return convert(s.text, budget, [&in_word](size_t, uint32_t c) {
    const CaseMap map = in_word ? CaseMap::kLower : CaseMap::kTitle;
    in_word = is_cased(c);
    return Choice{map};
  });
}

Value title_words(const StringObject& s, Budget* budget) {
  const auto is_border = [](uint32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
  };
  bool was_border = false, first = true;
  // The first letter of a word is converted apart from the rest, which therefore does not see it.
  return convert(s.text, budget, [&](size_t, uint32_t c) {
    const bool border = is_border(c);
    const bool begins = first || border != was_border;
    first = false;
    was_border = border;
    return Choice{begins ? CaseMap::kUpper : CaseMap::kLower, begins};
  });
}

}  // namespace firesteel::jinja
