#include "grammar/number_range.h"

#include <algorithm>

namespace firesteel::grammar {

namespace {

constexpr size_t kMaxWhole = 32, kMaxFraction = 25;

Automaton finished(const Nfa& nfa, uint32_t from, uint32_t to) { return determinize(nfa, from, to, {}); }

void digit(Nfa* nfa, uint32_t from, char low, char high, uint32_t to) {
  if (low <= high) nfa->byte(from, static_cast<uint8_t>(low), static_cast<uint8_t>(high), to);
}

/// Up to `most` further digits, any of which may be the last.
void up_to_digits(Nfa* nfa, uint32_t from, size_t most, uint32_t to) {
  nfa->empty(from, to);
  for (size_t i = 0; i < most; ++i) {
    const uint32_t next = nfa->new_state();
    digit(nfa, from, '0', '9', next);
    nfa->empty(next, to);
    from = next;
  }
}

void whole_part(Nfa* nfa, uint32_t from, uint32_t to, size_t most = kMaxWhole) {
  digit(nfa, from, '0', '0', to);
  const uint32_t more = nfa->new_state();
  digit(nfa, from, '1', '9', more);
  up_to_digits(nfa, more, most - 1, to);
}

void fraction_part(Nfa* nfa, uint32_t from, uint32_t to, size_t most = kMaxFraction) {
  nfa->empty(from, to);
  const uint32_t point = nfa->new_state(), first = nfa->new_state();
  nfa->byte(from, '.', '.', point);
  digit(nfa, point, '0', '9', first);
  up_to_digits(nfa, first, most - 1, to);
}

/// Parts of "absolute value at least / at most", for one bound.
class OneSided {
 public:
  OneSided(Nfa* nfa, bool integer, const Decimal& bound, bool exclusive)
      : nfa_(nfa), integer_(integer), bound_(bound), exclusive_(exclusive) {}

  void any(uint32_t from, uint32_t to) {
    const uint32_t whole = nfa_->new_state();
    whole_part(nfa_, from, whole);
    rest(whole, to);
  }

  void at_least(uint32_t from, uint32_t to) {
    const uint32_t above = nfa_->new_state(), equal = nfa_->new_state();
    compare_whole(from, above, equal, /*larger=*/true);
    rest(above, to);
    if (integer_) {
      if (bound_.fraction.empty() && !exclusive_) nfa_->empty(equal, to);
      return;
    }
    // The fraction: equal so far, until a digit decides.
    const std::string& f = bound_.fraction;
    if (f.empty() && !exclusive_) nfa_->empty(equal, to);
    const uint32_t point = nfa_->new_state();
    nfa_->byte(equal, '.', '.', point);
    uint32_t at = point;
    for (size_t i = 0; i < kMaxFraction; ++i) {
      const char d = i < f.size() ? f[i] : '0';
      const uint32_t free = nfa_->new_state(), same = nfa_->new_state();
      digit(nfa_, at, static_cast<char>(d + 1), '9', free);
      up_to_digits(nfa_, free, kMaxFraction - 1 - i, to);
      digit(nfa_, at, d, d, same);
      if (i + 1 >= f.size() && !exclusive_) nfa_->empty(same, to);
      at = same;
    }
  }

  void at_most(uint32_t from, uint32_t to) {
    const uint32_t below = nfa_->new_state(), equal = nfa_->new_state();
    compare_whole(from, below, equal, /*larger=*/false);
    rest(below, to);
    const std::string& f = bound_.fraction;
    // Ending before the fraction's last digit is below it, as that digit is not zero.
    if (!f.empty() || !exclusive_) nfa_->empty(equal, to);
    if (integer_) return;
    const uint32_t point = nfa_->new_state();
    nfa_->byte(equal, '.', '.', point);
    uint32_t at = point;
    for (size_t i = 0; i < kMaxFraction; ++i) {
      const char d = i < f.size() ? f[i] : '0';
      const uint32_t free = nfa_->new_state(), same = nfa_->new_state();
      digit(nfa_, at, '0', static_cast<char>(d - 1), free);
      up_to_digits(nfa_, free, kMaxFraction - 1 - i, to);
      digit(nfa_, at, d, d, same);
      if (i + 1 < f.size() || !exclusive_) nfa_->empty(same, to);
      at = same;
    }
  }

 private:
  void rest(uint32_t from, uint32_t to) {
    if (integer_) return nfa_->empty(from, to);
    fraction_part(nfa_, from, to);
  }

  /// Whole parts that are larger (or smaller) than the bound's lead to `decided`, the equal one to `equal`.
  void compare_whole(uint32_t from, uint32_t decided, uint32_t equal, bool larger) {
    const std::string& w = bound_.whole;
    const size_t shortest = larger ? w.size() + 1 : 1, longest = larger ? kMaxWhole : w.size() - 1;
    for (size_t length = shortest; length <= longest && length <= kMaxWhole; ++length) {
      uint32_t at = nfa_->new_state();
      digit(nfa_, from, length == 1 ? '0' : '1', '9', at);
      exactly(at, length - 1, decided);
    }
    if (w.size() > kMaxWhole) return;
    uint32_t at = from;
    for (size_t i = 0; i < w.size(); ++i) {
      const char least = i == 0 && w.size() > 1 ? '1' : '0';
      const uint32_t free = nfa_->new_state(), same = i + 1 == w.size() ? equal : nfa_->new_state();
      if (larger) {
        digit(nfa_, at, static_cast<char>(w[i] + 1), '9', free);
      } else {
        digit(nfa_, at, least, static_cast<char>(w[i] - 1), free);
      }
      exactly(free, w.size() - 1 - i, decided);
      digit(nfa_, at, w[i], w[i], same);
      at = same;
    }
  }

  void exactly(uint32_t from, size_t digits, uint32_t to) {
    for (size_t i = 0; i < digits; ++i) {
      const uint32_t next = nfa_->new_state();
      digit(nfa_, from, '0', '9', next);
      from = next;
    }
    nfa_->empty(from, to);
  }

  Nfa* nfa_;
  bool integer_;
  Decimal bound_;
  bool exclusive_;
};

Automaton integers(size_t most_digits, CompileBudget* budget) {
  Nfa nfa(budget);
  const uint32_t from = nfa.new_state(), to = nfa.new_state(), minus = nfa.new_state(),
                 first = nfa.new_state();
  nfa.byte(from, '-', '-', minus);
  whole_part(&nfa, from, to, most_digits);
  digit(&nfa, minus, '1', '9', first);
  up_to_digits(&nfa, first, most_digits - 1, to);
  return finished(nfa, from, to);
}

/// value ≥ bound (low) or value ≤ bound.
Automaton half_line(const Decimal& bound, bool exclusive, bool low, bool integer, CompileBudget* budget) {
  Nfa nfa(budget);
  const uint32_t from = nfa.new_state(), to = nfa.new_state(), minus = nfa.new_state();
  nfa.byte(from, '-', '-', minus);
  OneSided side(&nfa, integer, bound, exclusive);
  // The sign of the bound decides which sign is free, which is bounded and which is out. Zero counts as
  // positive;
  // "-0.0" is only written where zero fits.
  const bool bound_negative = bound.negative && !bound.is_zero();
  if (low && !bound_negative) {
    side.at_least(from, to);
    if (bound.is_zero() && !exclusive) {
      OneSided(&nfa, integer, Decimal{}, false).at_most(minus, to);
    }
  } else if (low) {
    side.any(from, to);
    side.at_most(minus, to);
  } else if (!bound_negative && !(bound.is_zero() && exclusive)) {
    side.at_most(from, to);
    side.any(minus, to);
  } else {
    side.at_least(minus, to);
  }
  return finished(nfa, from, to);
}

Automaton divisible(uint32_t divisor, CompileBudget* budget) {
  Automaton out;
  // State 0: start; 1: after the sign; 2 + r: remainder r.
  for (uint32_t s = 0; s < divisor + 2; ++s) {
    Automaton::State state;
    const uint32_t r = s < 2 ? 0 : s - 2;
    state.accept = s >= 2 && r == 0;
    if (s == 0) state.edges.push_back({'-', '-', 1});
    for (uint32_t d = 0; d < 10; ++d) {
      if (!budget->spend()) return {};
      const auto b = static_cast<uint8_t>('0' + d);
      state.edges.push_back({b, b, 2 + (r * 10 + d) % divisor});
    }
    out.states.push_back(std::move(state));
  }
  return out;
}

}  // namespace

Result<Decimal> parse_decimal(std::string_view literal) {
  constexpr long kMaxExponent = 400;
  Decimal out;
  size_t i = 0;
  if (i < literal.size() && literal[i] == '-') {
    out.negative = true;
    ++i;
  }
  std::string digits;
  long point = -1, exponent = 0;
  for (; i < literal.size() && (literal[i] == '.' || (literal[i] >= '0' && literal[i] <= '9')); ++i) {
    if (literal[i] == '.') {
      point = static_cast<long>(digits.size());
    } else {
      digits += literal[i];
    }
  }
  if (i < literal.size()) {  // e or E
    const bool negative = i + 1 < literal.size() && literal[i + 1] == '-';
    for (++i; i < literal.size(); ++i) {
      if (literal[i] >= '0' && literal[i] <= '9' && exponent <= kMaxExponent)
        exponent = exponent * 10 + (literal[i] - '0');
    }
    if (negative) exponent = -exponent;
  }
  if (exponent > kMaxExponent || exponent < -kMaxExponent)
    return Error{ErrorCode::kUnsupported,
                 "the number " + std::string(literal.substr(0, 64)) + " is out of range"};
  point = (point < 0 ? static_cast<long>(digits.size()) : point) + exponent;
  while (point < 1) {
    digits.insert(digits.begin(), '0');
    ++point;
  }
  while (static_cast<long>(digits.size()) < point) digits += '0';
  out.whole = digits.substr(0, static_cast<size_t>(point));
  out.fraction = digits.substr(static_cast<size_t>(point));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size() - 1));
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.is_zero()) out.negative = false;
  return out;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int c = 0;
  if (a.whole.size() != b.whole.size()) {
    c = a.whole.size() < b.whole.size() ? -1 : 1;
  } else if (a.whole != b.whole) {
    c = a.whole < b.whole ? -1 : 1;
  } else if (a.fraction != b.fraction) {
    c = a.fraction < b.fraction ? -1 : 1;  // no zeros at the end: the order of digits is the order of values
  }
  return a.negative ? -c : c;
}

void NumberBounds::at_least(const Decimal& value, bool exclusive) {
  const int c = low ? compare(value, *low) : 1;
  if (c < 0) return;
  low_exclusive = exclusive || (c == 0 && low_exclusive);
  low = value;
}

void NumberBounds::at_most(const Decimal& value, bool exclusive) {
  const int c = high ? compare(value, *high) : -1;
  if (c > 0) return;
  high_exclusive = exclusive || (c == 0 && high_exclusive);
  high = value;
}

Automaton integer_automaton(CompileBudget* budget) { return integers(kMaxWhole, budget); }

Automaton number_automaton(CompileBudget* budget) {
  // 1 + 32 + 1 + 25 + 2 + 3 = 64 characters; 32 digits and 10^269 stay below 10^308.
  Nfa nfa(budget);
  const uint32_t from = nfa.new_state(), to = nfa.new_state(), minus = nfa.new_state();
  const uint32_t whole = nfa.new_state(), fraction = nfa.new_state();
  nfa.byte(from, '-', '-', minus);
  nfa.empty(from, minus);
  whole_part(&nfa, minus, whole);
  fraction_part(&nfa, whole, fraction);
  nfa.empty(fraction, to);
  const uint32_t e = nfa.new_state(), plus = nfa.new_state(), small = nfa.new_state(), last = nfa.new_state();
  nfa.byte(fraction, 'E', 'E', e);
  nfa.byte(fraction, 'e', 'e', e);
  nfa.byte(e, '-', '-', small);
  nfa.byte(e, '+', '+', plus);
  nfa.empty(e, plus);
  digit(&nfa, small, '0', '9', last);
  up_to_digits(&nfa, last, 2, to);
  const uint32_t one = nfa.new_state(), two = nfa.new_state(), hundreds = nfa.new_state();
  digit(&nfa, plus, '0', '9', one);
  up_to_digits(&nfa, one, 1, to);
  digit(&nfa, plus, '0', '1', hundreds);
  digit(&nfa, hundreds, '0', '9', two);
  digit(&nfa, two, '0', '9', to);
  const uint32_t from_200 = nfa.new_state(), tens = nfa.new_state();
  digit(&nfa, plus, '2', '2', from_200);
  digit(&nfa, from_200, '0', '6', tens);
  digit(&nfa, tens, '0', '9', to);
  return finished(nfa, from, to);
}

Automaton bounded_automaton(const NumberBounds& bounds, bool integer, uint32_t divisor,
                            CompileBudget* budget) {
  // Readers take numbers as doubles: an exclusive bound or a divisor must still hold after rounding, so
  // literals have no more digits than a double keeps (unless a bound itself has more).
  constexpr size_t kExact = 15;
  size_t whole = 1, fraction = 0;
  for (const auto& bound : {bounds.low, bounds.high}) {
    if (!bound) continue;
    whole = std::max(whole, bound->whole.size());
    fraction = std::max(fraction, bound->fraction.size());
  }
  const bool strictly = bounds.low_exclusive || bounds.high_exclusive || divisor > 0;
  const size_t most_whole = strictly ? std::clamp(kExact, std::min(whole, kMaxWhole), kMaxWhole) : kMaxWhole;
  Automaton out;
  if (integer) {
    out = integers(most_whole, budget);
  } else {
    Nfa nfa(budget);
    const uint32_t from = nfa.new_state(), to = nfa.new_state(), minus = nfa.new_state(),
                   point = nfa.new_state();
    nfa.byte(from, '-', '-', minus);
    nfa.empty(from, minus);
    whole_part(&nfa, minus, point, most_whole);
    const size_t room = whole + 1 < kExact ? kExact - 1 - whole : 1;
    fraction_part(&nfa, point, to, std::max(std::min<size_t>(room, 10), std::min(fraction, kMaxFraction)));
    out = finished(nfa, from, to);
  }
  if (bounds.low)
    out = intersect(out, half_line(*bounds.low, bounds.low_exclusive, true, integer, budget), budget);
  if (bounds.high)
    out = intersect(out, half_line(*bounds.high, bounds.high_exclusive, false, integer, budget), budget);
  if (divisor > 1) out = intersect(out, divisible(divisor, budget), budget);
  return out;
}

}  // namespace firesteel::grammar
