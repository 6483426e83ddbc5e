#include "base/json_writer.h"

#include <charconv>
#include <cmath>

namespace firesteel {

namespace {

constexpr char kHex[] = "0123456789abcdef";

void append_u(uint32_t unit, std::string* out) {
  out->append("\\u");
  for (int shift = 12; shift >= 0; shift -= 4) out->push_back(kHex[unit >> shift & 0xF]);
}

/// Size of the valid UTF-8 sequence at the start of `s` (at least one byte), or 0; the code point goes to
/// `c`.
size_t decode(std::string_view s, uint32_t* c) {
  const auto b0 = static_cast<unsigned char>(s[0]);
  if (b0 < 0x80) {
    *c = b0;
    return 1;
  }
  const size_t size = b0 >= 0xF0 ? 4 : b0 >= 0xE0 ? 3 : 2;
  if (b0 < 0xC2 || b0 > 0xF4 || s.size() < size) return 0;
  uint32_t value = b0 & (0x7Fu >> size);
  for (size_t i = 1; i < size; ++i) {
    const auto b = static_cast<unsigned char>(s[i]);
    if ((b & 0xC0) != 0x80) return 0;
    value = value << 6 | (b & 0x3Fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kLeast[size] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return 0;
  *c = value;
  return size;
}

}  // namespace

size_t find_invalid_utf8(std::string_view s) {
  for (size_t at = 0; at < s.size();) {
    if (static_cast<unsigned char>(s[at]) < 0x80) {
      ++at;
      continue;
    }
    uint32_t c;
    const size_t size = decode(s.substr(at), &c);
    if (size == 0) return at;
    at += size;
  }
  return std::string_view::npos;
}

void append_json_string(std::string_view s, bool ascii_only, std::string* out) {
  out->push_back('"');
  for (size_t at = 0; at < s.size();) {
    // Most text needs no escape: copy up to the next byte that may.
    size_t plain = at;
    while (plain < s.size()) {
      const auto b = static_cast<unsigned char>(s[plain]);
      if (b < 0x20 || b == '"' || b == '\\' || b >= 0x80) break;
      ++plain;
    }
    out->append(s.substr(at, plain - at));
    at = plain;
    if (at == s.size()) break;
    uint32_t c = 0xFFFD;
    size_t size = decode(s.substr(at), &c);
    if (size == 0) {
      size = 1;
      out->append(ascii_only ? "\\ufffd" : "\xEF\xBF\xBD");
    } else if (c >= 0x80) {
      if (!ascii_only) {
        out->append(s.substr(at, size));
      } else if (c < 0x10000) {
        append_u(c, out);
      } else {
        append_u(0xD800 + ((c - 0x10000) >> 10), out);
        append_u(0xDC00 + ((c - 0x10000) & 0x3FF), out);
      }
    } else {
      switch (c) {
        case '"':
          out->append("\\\"");
          break;
        case '\\':
          out->append("\\\\");
          break;
        case '\n':
          out->append("\\n");
          break;
        case '\r':
          out->append("\\r");
          break;
        case '\t':
          out->append("\\t");
          break;
        case '\b':
          out->append("\\b");
          break;
        case '\f':
          out->append("\\f");
          break;
        default:
          append_u(c, out);
      }
    }
    at += size;
  }
  out->push_back('"');
}

void append_python_float(double value, std::string* out) {
  if (std::isnan(value)) {
    out->append("NaN");
    return;
  }
  if (std::isinf(value)) {
    out->append(value < 0 ? "-Infinity" : "Infinity");
    return;
  }
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  if (text[0] == '-') {
    out->push_back('-');
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  const bool negative = text[e + 1] == '-';
  std::from_chars(text.data() + e + 2, text.data() + text.size(), exponent);
  if (negative) exponent = -exponent;
  std::string digits(text.substr(0, 1));
  if (e > 2) digits.append(text.substr(2, e - 2));
  if (exponent < -4 || exponent >= 16) {
    out->push_back(digits[0]);
    if (digits.size() > 1) out->append(".").append(digits, 1);
    out->append(negative ? "e-" : "e+");
    const std::string power = std::to_string(std::abs(exponent));
    if (power.size() < 2) out->push_back('0');
    out->append(power);
    return;
  }
  if (exponent < 0) {
    out->append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
    return;
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) {
    out->append(digits).append(whole - digits.size(), '0').append(".0");
  } else {
    out->append(digits, 0, whole).append(".").append(digits, whole);
  }
}

void JsonWriter::new_line() {
  out_->push_back('\n');
  out_->append(static_cast<size_t>(level_) * static_cast<size_t>(style_.indent), ' ');
}

void JsonWriter::before_value() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (level_ == 0) return;
  if (!first_) out_->append(style_.item_separator);
  if (style_.indent >= 0) new_line();
  first_ = false;
}

void JsonWriter::begin(char open) {
  before_value();
  out_->push_back(open);
  ++level_;
  first_ = true;
}

void JsonWriter::end(char close) {
  --level_;
  if (!first_ && style_.indent >= 0) new_line();
  out_->push_back(close);
  first_ = false;
}

void JsonWriter::key(std::string_view name) {
  before_value();
  append_json_string(name, style_.ascii_only, out_);
  out_->append(style_.key_separator);
  after_key_ = true;
}

void JsonWriter::string(std::string_view s) {
  before_value();
  append_json_string(s, style_.ascii_only, out_);
}

void JsonWriter::integer(int64_t i) {
  before_value();
  out_->append(std::to_string(i));
}

void JsonWriter::unsigned_integer(uint64_t u) {
  before_value();
  out_->append(std::to_string(u));
}

void JsonWriter::real(double d) {
  before_value();
  append_python_float(d, out_);
}

void JsonWriter::raw(std::string_view text) {
  before_value();
  out_->append(text);
}

}  // namespace firesteel
