// Code points as Python's str methods see them (Unicode 14), and UTF-8 steps. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace firesteel::jinja {

struct CodePoint {
  uint32_t value;  // 0xDC00 + byte for a byte that is no valid UTF-8
  size_t size;     // bytes
};
/// The code point at `at` < s.size(). Never reads past the end.
CodePoint decode_at(std::string_view s, size_t at);
/// The code point that ends before `end` > 0.
CodePoint decode_before(std::string_view s, size_t end);
void append_utf8(uint32_t code_point, std::string* out);

bool is_space(uint32_t c);
bool is_printable(uint32_t c);
bool is_alpha(uint32_t c);
bool is_decimal(uint32_t c);
bool is_digit(uint32_t c);
bool is_numeric(uint32_t c);
bool is_lowercase(uint32_t c);
bool is_uppercase(uint32_t c);
bool is_titlecase(uint32_t c);
bool is_cased(uint32_t c);
bool is_case_ignorable(uint32_t c);
/// str.splitlines ends a line here.
bool is_line_break(uint32_t c);

enum class CaseMap { kLower, kUpper, kTitle };
/// Full mapping (one code point may become up to three), without the final-sigma rule.
void append_mapped(uint32_t c, CaseMap map, std::string* out);

}  // namespace firesteel::jinja
