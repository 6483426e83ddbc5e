// Expressions.
#include "text/jinja/builtins.h"
#include "text/jinja/interp.h"
#include "text/jinja/output.h"

namespace firesteel::jinja {

Value Interpreter::eval(const Expr& e) {
  const Nest nest(this);
  budget_.step();
  line_ = e.line;
  return eval_inner(e);
}

Value Interpreter::eval_inner(const Expr& e) {
  switch (e.kind) {
    case ExprKind::kNone:
      return Value::none();
    case ExprKind::kBool:
      return Value::boolean(e.integer != 0);
    case ExprKind::kInteger:
      return Value::integer(e.integer, false);
    case ExprKind::kFloat:
      return Value::real(e.real);
    case ExprKind::kString:
      return eval_constant(e);
    case ExprKind::kName:
      return lookup(e.name_id);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return eval_collection(e);
    case ExprKind::kDict:
      return eval_dict(e);
    case ExprKind::kAttribute:
      return attribute(eval(*e.children[0]), e.text);
    case ExprKind::kItem:
      return eval_item(e);
    case ExprKind::kSlice:
      fail("a slice stands only in brackets");
    case ExprKind::kCall:
      return eval_call(e, nullptr);
    case ExprKind::kFilter:
      return eval_filter(e, nullptr);
    case ExprKind::kTest:
      return eval_test(e);
    case ExprKind::kNot:
      return Value::boolean(!truth(eval(*e.children[0])));
    case ExprKind::kNegate:
    case ExprKind::kPlus:
      return eval_sign(e);
    case ExprKind::kAnd: {
      Value left = eval(*e.children[0]);
      return truth(left) ? eval(*e.children[1]) : left;
    }
    case ExprKind::kOr: {
      Value left = eval(*e.children[0]);
      return truth(left) ? left : eval(*e.children[1]);
    }
    case ExprKind::kCondition:
      if (truth(eval(*e.children[0]))) return eval(*e.children[1]);
      return e.children[2] ? eval(*e.children[2]) : Value();
    case ExprKind::kCompare:
      return eval_compare(e);
    case ExprKind::kConcat:
      return eval_concat(e);
    case ExprKind::kArithmetic: {
      const Value left = eval(*e.children[0]);
      const Value right = eval(*e.children[1]);
      line_ = e.line;
      return arithmetic(*this, e.operators[0], left, right);
    }
  }
  return Value();
}

Value Interpreter::eval_constant(const Expr& e) {
  Value& cached = constants_[static_cast<size_t>(e.constant)];
  if (cached.is_undefined()) cached = string(e.text, true);
  return cached;
}

Value Interpreter::eval_collection(const Expr& e) {
  Values items;
  items.reserve(e.children.size());
  for (const ExprPtr& child : e.children) items.push_back(eval(*child));
  return list(std::move(items), e.kind == ExprKind::kTuple ? Flavor::kTuple : Flavor::kList);
}

Value Interpreter::eval_dict(const Expr& e) {
  const Ref<DictObject> dict(new DictObject(&budget_));
  for (size_t i = 0; i + 1 < e.children.size(); i += 2) {
    Value key = eval(*e.children[i]);
    dict->put(std::move(key), eval(*e.children[i + 1]));
  }
  return Value::object(Kind::kDict, dict.get());
}

Value Interpreter::eval_sign(const Expr& e) {
  const Value v = eval(*e.children[0]);
  require_defined(v, "sign");
  if (e.kind == ExprKind::kNegate) return negate(v);
  if (!v.is_number() && !v.is(Kind::kBigInt))
    fail(std::string("bad operand type for unary +: '") + type_name(v) + "'");
  return v.is(Kind::kBool) ? Value::integer(v.as_int(), false) : v;
}

Value Interpreter::eval_item(const Expr& e) {
  const Value object = eval(*e.children[0]);
  if (e.children[1]->kind == ExprKind::kSlice) return eval_slice(object, *e.children[1]);
  const Value key = eval(*e.children[1]);
  line_ = e.line;
  return item(object, key);
}

Value Interpreter::eval_slice(const Value& object, const Expr& slice) {
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (!slice.children[i]) continue;
    const Value v = eval(*slice.children[i]);
    if (v.is_none()) continue;
    if (!v.is_integral()) fail("slice indices must be integers or None");
    bounds[i] = v.as_int();
  }
  require_defined(object, "slice");
  const bool sliceable = object.is_string() || (object.is_list() && object.list().flavor != Flavor::kView &&
                                                object.list().flavor != Flavor::kGenerator);
  if (!sliceable) fail(std::string("'") + type_name(object) + "' object cannot be sliced");
  const int64_t step = bounds[2].value_or(1);
  if (step == 0) fail("slice step cannot be zero");
  if (object.is_string()) return slice_text(object.string(), bounds[0], bounds[1], step, &budget_);
  const ListObject& list_object = object.list();
  const SliceRange range =
      resolve_slice(bounds[0], bounds[1], step, static_cast<int64_t>(list_object.items.size()));
  budget_.step(static_cast<uint64_t>(range.count) / 8);
  Values items;
  items.reserve(static_cast<size_t>(range.count));
  int64_t at = range.start;
  for (int64_t i = 0; i < range.count; ++i) {
    items.push_back(list_object.items[static_cast<size_t>(at)]);
    if (i + 1 < range.count) at += step;
  }
  return list(std::move(items), list_object.flavor);
}

Args Interpreter::eval_args(const CallArgs* args) {
  Args out;
  if (args == nullptr) return out;
  for (const ExprPtr& e : args->positional) out.positional.push_back(eval(*e));
  for (const auto& [key, e] : args->keywords) out.keywords.emplace_back(key, eval(*e));
  if (args->star) {
    for (Value& v : iterate(eval(*args->star), &budget_)) out.positional.push_back(std::move(v));
  }
  if (args->star_star) {
    const Value more = eval(*args->star_star);
    if (!more.is_dict()) fail("the argument after ** must be a mapping");
    for (const auto& [key, value] : more.dict().items) {
      if (!key.is_string()) fail("keywords must be strings");
      const std::string& name = key.string().text.bytes();
      for (const auto& k : out.keywords)
        if (k.first == name) fail("two values for keyword '" + name + "'");
      budget_.step(out.keywords.size());
      out.keywords.emplace_back(name, value);
    }
  }
  return out;
}

Value Interpreter::eval_call(const Expr& e, const Value* caller) {
  const Value callee = eval(*e.children[0]);
  const Args args = eval_args(e.args.get());
  line_ = e.line;
  if (callee.is(Kind::kMacro)) return call_macro(callee.macro(), args, caller);
  if (caller != nullptr) fail("only a macro can be used in a call block");
  return call(callee, args);
}

Value Interpreter::call(const Value& callee, const Args& args) {
  budget_.step();
  switch (callee.kind()) {
    case Kind::kMacro:
      return call_macro(callee.macro(), args, nullptr);
    case Kind::kFunction:
      return call_function(*this, static_cast<int>(callee.as_int()), args);
    case Kind::kMethod:
      return call_method(*this, callee.method().self, callee.method().method, args);
    case Kind::kUndefined:
      require_defined(callee, "called");
      [[fallthrough]];
    default:
      fail(std::string("'") + type_name(callee) + "' object is not callable");
  }
}

Value Interpreter::call_filter(std::string_view name, const Value& value, const Args& args) {
  budget_.step();
  FilterFn filter = find_filter(name);
  if (filter == nullptr) filter = find_sequence_filter(name);
  if (filter == nullptr) fail("no filter named '" + std::string(name) + "'");
  return filter(*this, value, args);
}

bool Interpreter::call_test(std::string_view name, const Value& value, const Args& args) {
  budget_.step();
  const TestFn test = find_test(name);
  if (test == nullptr) fail("no test named '" + std::string(name) + "'");
  return test(*this, value, args);
}

Value Interpreter::eval_filter(const Expr& e, const Value* operand) {
  const Nest nest(this);
  Value value;
  if (!e.children[0]) {
    if (operand == nullptr) fail("a filter without a value");
    value = *operand;
  } else if (operand != nullptr && e.children[0]->kind == ExprKind::kFilter) {
    value = eval_filter(*e.children[0], operand);
  } else {
    value = eval(*e.children[0]);
  }
  const Args args = eval_args(e.args.get());
  line_ = e.line;
  return call_filter(e.text, value, args);
}

Value Interpreter::eval_test(const Expr& e) {
  const Value value = eval(*e.children[0]);
  const Args args = eval_args(e.args.get());
  line_ = e.line;
  return Value::boolean(call_test(e.text, value, args));
}

bool Interpreter::contains(const Value& container, const Value& needle) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      require_defined(needle, "in a string");
      if (!needle.is_string()) fail(std::string("'in <string>' requires a string, not ") + type_name(needle));
      budget_.step_bytes(container.string().text.size() + needle.string().text.size());
      return find_text(container.string().text.bytes(), needle.string().text.bytes()) !=
             std::string_view::npos;
    case Kind::kDict:
      return container.dict().find(needle) != nullptr;
    case Kind::kList:
      if (container.list().flavor == Flavor::kGenerator && std::exchange(container.list().consumed, true))
        return false;
      for (const Value& v : container.list().items)
        if (equal(v, needle, &budget_)) return true;
      return false;
    default:
      fail(std::string("argument of type '") + type_name(container) + "' is not iterable");
  }
}

Value Interpreter::eval_compare(const Expr& e) {
  Value left = eval(*e.children[0]);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = eval(*e.children[i + 1]);
    line_ = e.line;
    bool holds = false;
    switch (e.operators[i]) {
      case Op::kEq:
        holds = equal(left, right, &budget_);
        break;
      case Op::kNe:
        holds = !equal(left, right, &budget_);
        break;
      case Op::kIn:
        holds = contains(right, left);
        break;
      case Op::kNotIn:
        holds = !contains(right, left);
        break;
      default: {
        require_defined(left, "compared");
        require_defined(right, "compared");
        const int r = compare(left, right, &budget_);  // 2: not ordered (NaN)
        const Op op = e.operators[i];
        holds = (r == -1 && (op == Op::kLt || op == Op::kLe)) ||
                (r == 1 && (op == Op::kGt || op == Op::kGe)) || (r == 0 && (op == Op::kLe || op == Op::kGe));
      }
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::eval_concat(const Expr& e) {
  TextBuilder out(&budget_);
  for (const ExprPtr& child : e.children) print(eval(*child), &out);
  return out.value();
}

}  // namespace firesteel::jinja
