// Automata of JSON number literals: plain ones, and those within bounds or divisible by an integer.
//
// Literals are at most 64 characters. With bounds no exponent is written, so that digits decide. Free
// functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "grammar/automaton.h"

namespace firesteel::grammar {

/// A decimal number without exponent: value = ± whole.fraction, digits only, no leading zeros but "0", no
/// zeros at the end of the fraction.
struct Decimal {
  bool negative = false;
  std::string whole = "0";
  std::string fraction;
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

/// From a JSON number literal ("-1.5e3"). kUnsupported where the exponent is beyond what literals here can
/// say.
Result<Decimal> parse_decimal(std::string_view literal);
/// −1, 0, 1.
int compare(const Decimal& a, const Decimal& b);

struct NumberBounds {
  std::optional<Decimal> low, high;
  bool low_exclusive = false, high_exclusive = false;
  void at_least(const Decimal& value, bool exclusive);
  void at_most(const Decimal& value, bool exclusive);
  bool any() const { return low.has_value() || high.has_value(); }
};

inline constexpr uint32_t kMaxDivisor = 1024;

/// -?digits, at most 32 digits, no "-0".
Automaton integer_automaton(CompileBudget* budget);
/// With fraction and exponent, always within the range of a double.
Automaton number_automaton(CompileBudget* budget);
/// `integer`: no fraction. `divisor` (integers only): 0, or at most kMaxDivisor. Empty when nothing fits.
Automaton bounded_automaton(const NumberBounds& bounds, bool integer, uint32_t divisor,
                            CompileBudget* budget);

}  // namespace firesteel::grammar
