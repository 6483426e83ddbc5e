// The tests after `is`.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/output.h"

namespace firesteel::jinja {

namespace {

void no_arguments(const Args& args) {
  if (!args.positional.empty() || !args.keywords.empty()) fail("this test takes no argument");
}

const Value& one_argument(const Args& args) {
  if (args.positional.size() != 1 || !args.keywords.empty()) fail("this test takes one argument");
  return args.positional[0];
}

template <bool (*kHolds)(const Value&)>
bool simple(Interpreter&, const Value& v, const Args& args) {
  no_arguments(args);
  return kHolds(v);
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is_none(); }
bool is_boolean(const Value& v) { return v.is(Kind::kBool); }
bool is_true(const Value& v) { return v.is(Kind::kBool) && v.as_int() != 0; }
bool is_false(const Value& v) { return v.is(Kind::kBool) && v.as_int() == 0; }
bool is_integer(const Value& v) { return v.is(Kind::kInt) || v.is(Kind::kBigInt); }
bool is_float(const Value& v) { return v.is(Kind::kFloat); }
bool is_any_number(const Value& v) { return v.is_number() || v.is(Kind::kBigInt); }
bool is_text(const Value& v) { return v.is_string(); }
bool is_mapping(const Value& v) { return v.is_dict(); }
bool is_sequence(const Value& v) {
  if (v.is_list()) return v.list().flavor != Flavor::kView && v.list().flavor != Flavor::kGenerator;
  return v.is_string() || v.is_dict() || v.is_undefined();
}
bool is_callable(const Value& v) {
  return v.is(Kind::kMacro) || v.is(Kind::kFunction) || v.is(Kind::kMethod) || v.is(Kind::kLoop) ||
         v.is_undefined();
}
bool is_escaped(const Value&) { return false; }

template <bool kUpper>
bool is_case(Interpreter& in, const Value& v, const Args& args) {
  no_arguments(args);
  const Value text = to_text(v, in.budget());
  const std::string& b = text.string().text.bytes();
  in.budget()->step_bytes(b.size());
  bool any = false;
  for (size_t at = 0; at < b.size();) {
    const CodePoint c = decode_at(b, at);
    if (is_titlecase(c.value) || (kUpper ? is_lowercase(c.value) : is_uppercase(c.value))) return false;
    any = any || is_cased(c.value);
    at += c.size;
  }
  return any;
}

int64_t remainder(Interpreter& in, const Value& v, const Value& divisor) {
  const Value r = arithmetic(in, Op::kMod, v, divisor);
  return r.is(Kind::kInt) ? r.as_int() : (r.as_double() == 0 ? 0 : r.as_double() == 1 ? 1 : 2);
}

bool is_odd(Interpreter& in, const Value& v, const Args& args) {
  no_arguments(args);
  if (!v.is_number()) fail("odd needs a number");
  return remainder(in, v, Value::integer(2, false)) == 1;
}
bool is_even(Interpreter& in, const Value& v, const Args& args) {
  no_arguments(args);
  if (!v.is_number()) fail("even needs a number");
  return remainder(in, v, Value::integer(2, false)) == 0;
}
bool is_divisible(Interpreter& in, const Value& v, const Args& args) {
  if (!v.is_number()) fail("divisibleby needs a number");
  return remainder(in, v, one_argument(args)) == 0;
}

bool is_same(Interpreter&, const Value& v, const Args& args) {
  const Value& other = one_argument(args);
  if (v.kind() != other.kind()) return false;
  if (v.object() != nullptr || other.object() != nullptr) return v.object() == other.object();
  return v.is(Kind::kFloat) ? v.as_double() == other.as_double() : v.as_int() == other.as_int();
}

bool is_in(Interpreter& in, const Value& v, const Args& args) {
  const Value& container = one_argument(args);
  if (container.is_undefined()) return false;
  if (container.is_dict()) return container.dict().find(v) != nullptr;
  if (container.is_string()) {
    if (!v.is_string()) fail("'in <string>' requires a string");
    in.budget()->step_bytes(container.string().text.size() + v.string().text.size());
    return find_text(container.string().text.bytes(), v.string().text.bytes()) != std::string_view::npos;
  }
  const Values items = iterate(container, in.budget());
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return equal(item, v, in.budget()); });
}

template <Op kOp>
bool compares(Interpreter& in, const Value& v, const Args& args) {
  const Value& other = one_argument(args);
  if (kOp == Op::kEq) return equal(v, other, in.budget());
  if (kOp == Op::kNe) return !equal(v, other, in.budget());
  in.require_defined(v, "compared");
  in.require_defined(other, "compared");
  const int r = compare(v, other, in.budget());
  switch (kOp) {
    case Op::kLt:
      return r == -1;
    case Op::kLe:
      return r == -1 || r == 0;
    case Op::kGt:
      return r == 1;
    default:
      return r == 1 || r == 0;
  }
}

bool is_filter_name(Interpreter&, const Value& v, const Args& args) {
  no_arguments(args);
  return v.is_string() && (find_filter(v.string().text.bytes()) != nullptr ||
                           find_sequence_filter(v.string().text.bytes()) != nullptr);
}
bool is_test_name(Interpreter&, const Value& v, const Args& args) {
  no_arguments(args);
  return v.is_string() && find_test(v.string().text.bytes()) != nullptr;
}

struct Test {
  std::string_view name;
  TestFn holds;
};

constexpr Test kTests[] = {
    {"defined", simple<is_defined>},
    {"undefined", simple<is_undefined>},
    {"none", simple<is_none>},
    {"boolean", simple<is_boolean>},
    {"true", simple<is_true>},
    {"false", simple<is_false>},
    {"integer", simple<is_integer>},
    {"float", simple<is_float>},
    {"number", simple<is_any_number>},
    {"string", simple<is_text>},
    {"mapping", simple<is_mapping>},
    {"sequence", simple<is_sequence>},
    {"iterable", simple<is_iterable>},
    {"callable", simple<is_callable>},
    {"escaped", simple<is_escaped>},
    {"lower", is_case<false>},
    {"upper", is_case<true>},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisible},
    {"sameas", is_same},
    {"in", is_in},
    {"filter", is_filter_name},
    {"test", is_test_name},
    {"==", compares<Op::kEq>},
    {"eq", compares<Op::kEq>},
    {"equalto", compares<Op::kEq>},
    {"!=", compares<Op::kNe>},
    {"ne", compares<Op::kNe>},
    {"<", compares<Op::kLt>},
    {"lt", compares<Op::kLt>},
    {"lessthan", compares<Op::kLt>},
    {"<=", compares<Op::kLe>},
    {"le", compares<Op::kLe>},
    {">", compares<Op::kGt>},
    {"gt", compares<Op::kGt>},
    {"greaterthan", compares<Op::kGt>},
    {">=", compares<Op::kGe>},
    {"ge", compares<Op::kGe>},
};

}  // namespace

TestFn find_test(std::string_view name) {
  const auto* it =
      std::find_if(std::begin(kTests), std::end(kTests), [&](const Test& t) { return t.name == name; });
  return it == std::end(kTests) ? nullptr : it->holds;
}

}  // namespace firesteel::jinja
