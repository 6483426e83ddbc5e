// Writes JSON text piece by piece in a given style: the commas, indents and escapes that every writer of JSON
// here shares. The caller keeps the nesting right. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace firesteel {

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, std::string* out) : style_(style), out_(out) {}

  void begin_object() { begin('{'); }
  void end_object() { end('}'); }
  void begin_array() { begin('['); }
  void end_array() { end(']'); }
  /// A key's text without quotes; its value comes next.
  void key(std::string_view name);
  void string(std::string_view s);
  void integer(int64_t i);
  void unsigned_integer(uint64_t u);
  void real(double d);
  /// null, true, digits: written as it is.
  void raw(std::string_view text);

 private:
  void begin(char open);
  void end(char close);
  void before_value();
  void new_line();
  const JsonStyle& style_;
  std::string* out_;
  int level_ = 0;
  bool first_ = true;  // nothing in the innermost container yet
  bool after_key_ = false;
};

}  // namespace firesteel
