// The one door for JSON that came from outside: text to nlohmann::ordered_json and back.
//
// Free functions, any thread. The grammar is strict JSON. What differs from nlohmann's own front: a depth
// limit, no quadratic look-up of duplicate keys (the last value wins and stays at the place of the first, as
// in Python), lone surrogate escapes become U+FFFD, and integers beyond 64 bits keep their digits. Such a big
// integer is held as a `binary` value of subtype kBigIntegerSubtype, a kind that JSON text can never produce:
// is_number() is false for it, so code that wants a number in range refuses it by itself, and dump_json()
// writes the digits back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"

namespace firesteel {

inline constexpr int kMaxJsonDepth = 128;
inline constexpr uint8_t kBigIntegerSubtype = 0x42;

/// kInvalidArgument, always with a byte offset into `text`: "invalid UTF-8 at byte 7", "invalid JSON at byte
/// 12: …". Also refused: nesting deeper than `max_depth` containers, numbers beyond the range of a double,
/// NaN and Infinity.
Result<nlohmann::ordered_json> parse_json(std::string_view text, int max_depth = kMaxJsonDepth);

/// How to write. The default is compact (`{"a":1}`, non-ASCII raw), what HTTP bodies use; python_style() is
/// what Python's json.dumps(ensure_ascii=False) writes, byte for byte.
struct JsonStyle {
  std::string item_separator = ",";
  std::string key_separator = ":";
  bool ascii_only = false;  // \u escapes for everything beyond ASCII
  bool sort_keys = false;
  int indent = -1;  // spaces per level; -1: one line
};
JsonStyle python_style();

/// Bytes of strings that are no valid UTF-8 are written as U+FFFD, so that the output is always valid.
std::string dump_json(const nlohmann::ordered_json& value, const JsonStyle& style = {});

/// A big integer and its decimal digits ("-123…"); digits are "" for every other value.
bool is_big_integer(const nlohmann::ordered_json& value);
std::string_view big_integer_digits(const nlohmann::ordered_json& value);
nlohmann::ordered_json make_big_integer(std::string_view digits);

/// `s` as a JSON string with its quotes.
void append_json_string(std::string_view s, bool ascii_only, std::string* out);
/// Python's repr of a float: the shortest digits that round-trip, "1e+20", "1e-07", "-0.0", "1.0". Not
/// finite: "NaN", "Infinity", "-Infinity", as json.dumps.
void append_python_float(double value, std::string* out);

/// Offset of the first byte that is not part of valid UTF-8 (surrogates and overlong forms are invalid), or
/// npos.
size_t find_invalid_utf8(std::string_view s);

}  // namespace firesteel
