// The built-in filters, tests, functions and methods, and how they read their arguments.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>

#include "text/jinja/interp.h"

namespace firesteel::jinja {

/// Binds call arguments to parameter names as Python does: by place, then by keyword. Fails on what is left
/// over.
class Parameters {
 public:
  Parameters(std::string_view function, const Args& args, std::initializer_list<std::string_view> names);
  const Value* get(size_t i) const { return values_[i]; }
  bool has(size_t i) const { return values_[i] != nullptr; }
  const Value& required(size_t i) const;
  int64_t integer(size_t i, int64_t missing) const;
  bool flag(size_t i, bool missing) const { return has(i) ? truth(*get(i)) : missing; }
  /// A string; null when it is absent or None.
  const StringObject* text(size_t i) const;

 private:
  [[noreturn]] void bad(size_t i, const char* expected) const;
  std::string_view function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

using FilterFn = Value (*)(Interpreter& in, const Value& value, const Args& args);
using TestFn = bool (*)(Interpreter& in, const Value& value, const Args& args);
FilterFn find_filter(std::string_view name);           // filters.cc; null: unknown
FilterFn find_sequence_filter(std::string_view name);  // filters_sequence.cc
TestFn find_test(std::string_view name);               // tests.cc

/// Id of the function of that name, or -1. functions.cc
int find_function(std::string_view name);
Value call_function(Interpreter& in, int id, const Args& args);

/// Id of the method, -1 if a value of this kind has no such attribute, kHiddenMethod if it has one that
/// templates may not use. methods.cc
inline constexpr int kHiddenMethod = -2;
int find_method(const Value& self, std::string_view name);
Value call_method(Interpreter& in, const Value& self, int id, const Args& args);

/// Python's arithmetic. arithmetic.cc
Value arithmetic(Interpreter& in, Op op, const Value& a, const Value& b);
Value negate(const Value& v);
/// int(text) and float(text); nullopt when Python would raise ValueError. An integer beyond 64 bits gives
/// kBigInt.
std::optional<Value> parse_int(std::string_view text, int base, bool caller, Budget* budget);
std::optional<double> parse_float(std::string_view text);

/// format % args and format.format(…). format.cc
Value format_percent(Interpreter& in, const StringObject& format, const Value& args);
Value format_braces(Interpreter& in, const StringObject& format, const Args& args);

/// The attribute path of `map(attribute=…)` and its kin: "a.b.0".
Value attribute_path(Interpreter& in, const Value& object, const Value& path);

const StringObject& as_text(const Value& v);  // v is a string

}  // namespace firesteel::jinja
