// UTF-8 as bytes: validation, decoding and replacement. Free functions, no state, any thread.
//
// "Invalid" follows the Unicode standard: surrogates, overlong forms and values above U+10FFFF are invalid,
// and a malformed stretch is cut into maximal prefixes of valid sequences, each of which becomes one U+FFFD
// (as Rust's from_utf8_lossy and Python's errors="replace" do).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace firesteel {

/// What stands at the start of a byte string.
struct Utf8Step {
  uint32_t code_point = 0;  // meaningful when `valid`
  uint8_t size = 0;         // bytes of the character, or of the maximal invalid prefix; at least 1
  bool valid = false;
  bool incomplete = false;  // not valid only because the string ends here; more bytes might complete it
};

/// `text` is not empty.
Utf8Step utf8_step(std::string_view text);

/// Bytes of the longest valid UTF-8 prefix.
size_t utf8_valid_prefix(std::string_view text);

inline bool utf8_is_valid(std::string_view text) { return utf8_valid_prefix(text) == text.size(); }

/// Appends the code point, which must be a scalar value.
void utf8_append(std::string& out, uint32_t code_point);

/// The text with each maximal invalid prefix replaced by U+FFFD.
std::string utf8_lossy(std::string_view text);

/// Decodes the character at `p` of text known to be valid, and moves `p` past it.
inline uint32_t utf8_next_valid(const unsigned char*& p) {
  const uint32_t a = *p++;
  if (a < 0x80) return a;
  const uint32_t b = *p++ & 0x3f;
  if (a < 0xe0) return (a & 0x1f) << 6 | b;
  const uint32_t c = *p++ & 0x3f;
  if (a < 0xf0) return (a & 0x0f) << 12 | b << 6 | c;
  const uint32_t d = *p++ & 0x3f;
  return (a & 0x07) << 18 | b << 12 | c << 6 | d;
}

}  // namespace firesteel
