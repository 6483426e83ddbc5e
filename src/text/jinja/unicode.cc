#include "text/jinja/unicode.h"

#include <algorithm>
#include <iterator>

namespace firesteel::jinja {

namespace {

struct CodeRange {
  uint32_t first, last, stride;
};
struct CaseRange {
  uint32_t first, last, stride;
  int32_t delta;
};
struct CaseSpecial {
  uint32_t code_point;
  const char* text;
};

#include "text/jinja/unicode_tables.inc"

template <typename Range, size_t N>
const Range* find_range(const Range (&table)[N], uint32_t c) {
  // The first range that ends at or after c; ranges are sorted and do not overlap, but a stride may step over
  // others.
  const Range* it = std::lower_bound(std::begin(table), std::end(table), c,
                                     [](const Range& r, uint32_t v) { return r.last < v; });
  if (it == std::end(table) || c < it->first || (c - it->first) % it->stride != 0) return nullptr;
  return it;
}

template <size_t N, size_t M>
void map_with(const CaseRange (&table)[N], const CaseSpecial (&special)[M], uint32_t c, std::string* out) {
  const CaseSpecial* s = std::lower_bound(std::begin(special), std::end(special), c,
                                          [](const CaseSpecial& r, uint32_t v) { return r.code_point < v; });
  if (s != std::end(special) && s->code_point == c) {
    out->append(s->text);
    return;
  }
  const CaseRange* r = find_range(table, c);
  append_utf8(r == nullptr ? c : static_cast<uint32_t>(static_cast<int32_t>(c) + r->delta), out);
}

bool is_continuation(unsigned char b) { return (b & 0xC0) == 0x80; }

}  // namespace

CodePoint decode_at(std::string_view s, size_t at) {
  const auto b0 = static_cast<unsigned char>(s[at]);
  if (b0 < 0x80) return {b0, 1};
  const CodePoint bad{0xDC00u + b0, 1};
  const size_t size = b0 >= 0xF0 ? 4 : b0 >= 0xE0 ? 3 : 2;
  if (b0 < 0xC2 || b0 > 0xF4 || s.size() - at < size) return bad;
  uint32_t c = b0 & (0x7Fu >> size);
  for (size_t i = 1; i < size; ++i) {
    const auto b = static_cast<unsigned char>(s[at + i]);
    if (!is_continuation(b)) return bad;
    c = c << 6 | (b & 0x3Fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (c < kLeast[size] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return bad;
  return {c, size};
}

CodePoint decode_before(std::string_view s, size_t end) {
  for (size_t size = 1; size <= 4 && size <= end; ++size) {
    if (is_continuation(static_cast<unsigned char>(s[end - size]))) continue;
    const CodePoint c = decode_at(s, end - size);
    if (c.size == size) return c;
    break;
  }
  return {0xDC00u + static_cast<unsigned char>(s[end - 1]), 1};
}

void append_utf8(uint32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c >= 0xDC80 && c <= 0xDCFF) {  // a byte that was no UTF-8 goes back as it came
    out->push_back(static_cast<char>(c - 0xDC00));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}
bool is_line_break(uint32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_printable(uint32_t c) { return find_range(kPrintable, c) != nullptr; }
bool is_alpha(uint32_t c) { return find_range(kAlpha, c) != nullptr; }
bool is_decimal(uint32_t c) { return find_range(kDecimal, c) != nullptr; }
bool is_digit(uint32_t c) { return find_range(kDigit, c) != nullptr; }
bool is_numeric(uint32_t c) { return find_range(kNumeric, c) != nullptr; }
bool is_lowercase(uint32_t c) { return find_range(kLowercase, c) != nullptr; }
bool is_uppercase(uint32_t c) { return find_range(kUppercase, c) != nullptr; }
bool is_titlecase(uint32_t c) { return find_range(kTitlecase, c) != nullptr; }
bool is_cased(uint32_t c) { return is_lowercase(c) || is_uppercase(c) || is_titlecase(c); }
bool is_case_ignorable(uint32_t c) { return find_range(kCaseIgnorable, c) != nullptr; }

void append_mapped(uint32_t c, CaseMap map, std::string* out) {
  if (c < 0x80) {
    const bool upper = c >= 'A' && c <= 'Z', lower = c >= 'a' && c <= 'z';
    if (map == CaseMap::kLower ? upper : lower) c ^= 0x20;
    out->push_back(static_cast<char>(c));
    return;
  }
  switch (map) {
    case CaseMap::kLower:
      return map_with(kLower, kLowerSpecial, c, out);
    case CaseMap::kUpper:
      return map_with(kUpper, kUpperSpecial, c, out);
    case CaseMap::kTitle:
      return map_with(kTitle, kTitleSpecial, c, out);
  }
}

}  // namespace firesteel::jinja
