// Python's arithmetic on numbers, texts and lists, and numbers read from text. Integers are 64 bits: a result
// beyond them is an error, not a wrong number.
#include <charconv>
#include <cmath>

#include "text/jinja/builtins.h"

namespace firesteel::jinja {

namespace {

[[noreturn]] void bad_operands(const char* op, const Value& a, const Value& b) {
  fail(std::string("unsupported operand types for ") + op + ": '" + type_name(a) + "' and '" + type_name(b) +
       "'");
}

const char* spelling(Op op) {
  switch (op) {
    case Op::kAdd:
      return "+";
    case Op::kSub:
      return "-";
    case Op::kMul:
      return "*";
    case Op::kDiv:
      return "/";
    case Op::kFloorDiv:
      return "//";
    case Op::kMod:
      return "%";
    default:
      return "**";
  }
}

[[noreturn]] void too_large() { fail("an integer is beyond 64 bits"); }

int64_t add(int64_t a, int64_t b) {
  int64_t r = 0;
  if (__builtin_add_overflow(a, b, &r)) too_large();
  return r;
}
int64_t subtract(int64_t a, int64_t b) {
  int64_t r = 0;
  if (__builtin_sub_overflow(a, b, &r)) too_large();
  return r;
}
int64_t multiply(int64_t a, int64_t b) {
  int64_t r = 0;
  if (__builtin_mul_overflow(a, b, &r)) too_large();
  return r;
}

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) fail("division by zero");
  if (b == -1) return subtract(0, a);
  const int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

int64_t modulo(int64_t a, int64_t b) {
  if (b == 0) fail("division by zero");
  if (b == -1) return 0;
  const int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

double float_modulo(double a, double b) {
  if (b == 0) fail("float modulo by zero");
  double r = std::fmod(a, b);
  if (r == 0) return std::copysign(0.0, b);
  if ((r < 0) != (b < 0)) r += b;
  return r;
}

double float_floor_divide(double a, double b) {
  if (b == 0) fail("float floor division by zero");
  const double mod = std::fmod(a, b);
  double div = (a - mod) / b;
  if (mod != 0 && (mod < 0) != (b < 0)) div -= 1;
  if (div == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(div);
  return div - floor > 0.5 ? floor + 1 : floor;
}

Value power(const Value& a, const Value& b, bool caller) {
  if (a.is_integral() && b.is_integral() && b.as_int() >= 0) {
    int64_t result = 1, base = a.as_int();
    for (auto n = static_cast<uint64_t>(b.as_int()); n != 0; n >>= 1) {
      if ((n & 1) != 0) result = multiply(result, base);
      if (n > 1) {
        // 0, 1 and -1 never grow; any other base overflows within six squarings.
        base = multiply(base, base);
      }
    }
    return Value::integer(result, caller);
  }
  const double x = a.as_double(), y = b.as_double();
  if (x == 0 && y < 0) fail("zero cannot be raised to a negative power");
  const double r = std::pow(x, y);
  if (std::isnan(r) && !std::isnan(x) && !std::isnan(y)) fail("complex numbers are not supported");
  if (std::isinf(r) && std::isfinite(x) && std::isfinite(y)) fail("numerical result out of range");
  return Value::real(r);
}

Value numbers(Op op, const Value& a, const Value& b) {
  const bool caller = a.from_caller() || b.from_caller();
  if (op == Op::kPow) return power(a, b, caller);
  if (op == Op::kDiv) {
    if (b.as_double() == 0) fail("division by zero");
    return Value::real(a.as_double() / b.as_double());
  }
  if (a.is_integral() && b.is_integral()) {
    const int64_t x = a.as_int(), y = b.as_int();
    int64_t r = 0;
    switch (op) {
      case Op::kAdd:
        r = add(x, y);
        break;
      case Op::kSub:
        r = subtract(x, y);
        break;
      case Op::kMul:
        r = multiply(x, y);
        break;
      case Op::kFloorDiv:
        r = floor_divide(x, y);
        break;
      default:
        r = modulo(x, y);
    }
    return Value::integer(r, caller);
  }
  const double x = a.as_double(), y = b.as_double();
  switch (op) {
    case Op::kAdd:
      return Value::real(x + y);
    case Op::kSub:
      return Value::real(x - y);
    case Op::kMul:
      return Value::real(x * y);
    case Op::kFloorDiv:
      return Value::real(float_floor_divide(x, y));
    default:
      return Value::real(float_modulo(x, y));
  }
}

bool is_plain_sequence(const Value& v) {
  return v.is_list() && (v.list().flavor == Flavor::kList || v.list().flavor == Flavor::kTuple);
}

Value repeat(Interpreter& in, const Value& what, int64_t count) {
  Budget* budget = in.budget();
  const auto n = static_cast<uint64_t>(count < 0 ? 0 : count);
  if (what.is_string()) {
    const MarkedText& text = what.string().text;
    if (text.empty()) return what;
    if (n > budget->max_text() / text.size()) fail_limit("a text is longer than the output limit");
    TextBuilder out(budget);
    for (uint64_t i = 0; i < n; ++i) {
      budget->step();
      out.add(text);
    }
    return out.value();
  }
  const Values& items = what.list().items;
  if (items.empty()) return what;
  if (n > budget->max_text() / (items.size() * sizeof(Value))) fail_limit("the memory limit was reached");
  budget->step(n * items.size() / 8);
  Values out;
  out.reserve(n * items.size());
  for (uint64_t i = 0; i < n; ++i) out.insert(out.end(), items.begin(), items.end());
  return in.list(std::move(out), what.list().flavor);
}

std::string_view trim_spaces(std::string_view text) {
  while (!text.empty()) {
    const CodePoint c = decode_at(text, 0);
    if (!is_space(c.value)) break;
    text.remove_prefix(c.size);
  }
  while (!text.empty()) {
    const CodePoint c = decode_before(text, text.size());
    if (!is_space(c.value)) break;
    text.remove_suffix(c.size);
  }
  return text;
}

/// Underscores may stand between digits only.
bool drop_underscores(std::string_view text, std::string* out) {
  const auto is_word = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out->push_back(text[i]);
    } else if (i == 0 || i + 1 == text.size() || !is_word(text[i - 1]) || !is_word(text[i + 1])) {
      return false;
    }
  }
  return true;
}

}  // namespace

Value negate(const Value& v) {
  if (v.is(Kind::kFloat)) return Value::real(-v.as_double());
  if (!v.is_integral()) fail(std::string("bad operand type for unary -: '") + type_name(v) + "'");
  return Value::integer(subtract(0, v.as_int()), v.from_caller());
}

Value arithmetic(Interpreter& in, Op op, const Value& a, const Value& b) {
  in.require_defined(a, spelling(op));
  if (op == Op::kMod && a.is_string()) return format_percent(in, a.string(), b);
  in.require_defined(b, spelling(op));
  if (a.is_number() && b.is_number()) return numbers(op, a, b);
  if (a.is(Kind::kBigInt) || b.is(Kind::kBigInt)) too_large();
  if (op == Op::kAdd) {
    if (a.is_string() && b.is_string()) {
      TextBuilder out(in.budget());
      out.add(a.string().text);
      out.add(b.string().text);
      return out.value();
    }
    if (is_plain_sequence(a) && is_plain_sequence(b) && a.list().flavor == b.list().flavor) {
      const Values &x = a.list().items, &y = b.list().items;
      in.budget()->step((x.size() + y.size()) / 8);
      Values items;
      items.reserve(x.size() + y.size());
      items.insert(items.end(), x.begin(), x.end());
      items.insert(items.end(), y.begin(), y.end());
      return in.list(std::move(items), a.list().flavor);
    }
  }
  if (op == Op::kMul) {
    if ((a.is_string() || is_plain_sequence(a)) && b.is_integral()) return repeat(in, a, b.as_int());
    if ((b.is_string() || is_plain_sequence(b)) && a.is_integral()) return repeat(in, b, a.as_int());
  }
  bad_operands(spelling(op), a, b);
}

std::optional<Value> parse_int(std::string_view text, int base, bool caller, Budget* budget) {
  if (base != 0 && (base < 2 || base > 36)) fail("int() base must be >= 2 and <= 36, or 0");
  text = trim_spaces(text);
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  bool prefixed = false;
  if (text.size() > 1 && text[0] == '0') {
    const char c = static_cast<char>(text[1] | 0x20);
    const int b = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
    if (b != 0 && (base == b || base == 0)) {
      base = b;
      prefixed = true;
      text.remove_prefix(2);
      if (!text.empty() && text[0] == '_') text.remove_prefix(1);
    }
  }
  std::string digits;
  if (!drop_underscores(text, &digits) || digits.empty()) return std::nullopt;
  if (base == 0) {
    if (!prefixed && digits.size() > 1 && digits[0] == '0' &&
        digits.find_first_not_of('0') != std::string::npos)
      return std::nullopt;
    base = 10;
  }
  if (digits[0] == '-' || digits[0] == '+') return std::nullopt;
  if (negative) digits.insert(digits.begin(), '-');
  int64_t value = 0;
  const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (r.ptr != digits.data() + digits.size()) return std::nullopt;
  if (r.ec == std::errc()) return Value::integer(value, caller);
  if (base != 10) too_large();
  digits.erase(0, digits.find_first_not_of("-0"));
  if (negative) digits.insert(digits.begin(), '-');
  return make_big_int(budget, digits);
}

std::optional<double> parse_float(std::string_view text) {
  text = trim_spaces(text);
  std::string digits;
  if (!drop_underscores(text, &digits)) return std::nullopt;
  std::string_view t = digits;
  double sign = 1;
  if (!t.empty() && (t[0] == '-' || t[0] == '+')) {
    sign = t[0] == '-' ? -1 : 1;
    t.remove_prefix(1);
  }
  std::string word(t);
  for (char& c : word)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
  if (word == "inf" || word == "infinity") return sign * HUGE_VAL;
  if (word == "nan") return std::nan("");
  if (t.empty() || !((t[0] >= '0' && t[0] <= '9') || t[0] == '.')) return std::nullopt;
  double value = 0;
  const auto r = std::from_chars(t.data(), t.data() + t.size(), value);
  if (r.ptr != t.data() + t.size()) return std::nullopt;
  if (r.ec == std::errc::result_out_of_range) {
    // Too large gives infinity and too small zero, as in Python; the exponent's sign tells which.
    const size_t e = word.find('e');
    const bool tiny =
        e != std::string::npos ? word.compare(e + 1, 1, "-") == 0 : word[0] == '.' || word[0] == '0';
    return sign * (tiny ? 0.0 : HUGE_VAL);
  }
  if (r.ec != std::errc()) return std::nullopt;
  return sign * value;
}

}  // namespace firesteel::jinja
