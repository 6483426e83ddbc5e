#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/strings.h"

namespace firesteel::jinja {

namespace {
constexpr size_t kIndexFrom = 8;  // dicts smaller than this are searched in order

/// An integer and a float, compared without rounding the integer.
int compare_mixed(int64_t i, double d) {
  if (std::isnan(d)) return 2;
  if (d >= 9223372036854775808.0) return -1;
  if (d < -9223372036854775808.0) return 1;
  const double whole = std::trunc(d);
  const auto w = static_cast<int64_t>(whole);
  if (i != w) return i < w ? -1 : 1;
  if (d == whole) return 0;
  return d > whole ? -1 : 1;
}

/// -1, 0, 1, or 2 when one is not a number.
int compare_numbers(const Value& a, const Value& b) {
  const bool fa = a.is(Kind::kFloat), fb = b.is(Kind::kFloat);
  if (!fa && !fb) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
  if (fa && fb) {
    const double x = a.as_double(), y = b.as_double();
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
  }
  if (fb) return compare_mixed(a.as_int(), b.as_double());
  const int r = compare_mixed(b.as_int(), a.as_double());
  return r == 2 ? 2 : -r;
}

int compare_digits(std::string_view a, std::string_view b) {
  const bool na = a[0] == '-', nb = b[0] == '-';
  if (na != nb) return na ? -1 : 1;
  int r = a.size() != b.size() ? (a.size() < b.size() ? -1 : 1) : a.compare(b);
  r = r < 0 ? -1 : r > 0 ? 1 : 0;
  return na ? -r : r;
}

bool is_sequence_pair(const Value& a, const Value& b) {
  if (!a.is_list() || !b.is_list()) return false;
  const Flavor f = a.list().flavor;
  return f == b.list().flavor && (f == Flavor::kList || f == Flavor::kTuple);
}
}  // namespace

void fail(std::string message) { throw Failure{ErrorCode::kTemplate, std::move(message)}; }
void fail_limit(std::string message) { throw Failure{ErrorCode::kLimit, std::move(message)}; }

void adopt(Object* object, const Value& child) {
  object->depth = std::max(object->depth, child.depth() + 1);
  if (object->depth > kMaxValueDepth) fail_limit("values are nested too deeply");
}

ListObject::ListObject(Budget* b, Flavor f, Values v)
    : Object(b, sizeof(ListObject) + v.size() * sizeof(Value)), flavor(f), items(std::move(v)) {
  for (const Value& item : items) adopt(this, item);
}

void DictObject::build_index() const {
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].first.is_string()) index_.emplace(items[i].first.string().text.bytes(), i);
}

const Value* DictObject::find(std::string_view key) const {
  if (items.size() >= kIndexFrom) {
    if (index_.empty()) build_index();
    const auto it = index_.find(key);
    return it == index_.end() ? nullptr : &items[it->second].second;
  }
  for (const auto& [k, v] : items)
    if (k.is_string() && k.string().text.bytes() == key) return &v;
  return nullptr;
}

const Value* DictObject::find(const Value& key) const {
  check_hashable(key);
  if (key.is_string()) return find(std::string_view(key.string().text.bytes()));
  budget->step(items.size() / 4);
  for (const auto& [k, v] : items)
    if (!k.is_string() && equal(k, key, budget)) return &v;
  return nullptr;
}

void DictObject::put(Value key, Value value) {
  adopt(this, key);
  adopt(this, value);
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  recharge(2 * sizeof(Value));
  items.emplace_back(std::move(key), std::move(value));
  if (!index_.empty() && items.back().first.is_string()) {
    recharge(4 * sizeof(void*));
    index_.emplace(items.back().first.string().text.bytes(), items.size() - 1);
  }
}

const Value* NamespaceObject::find(std::string_view name) const {
  for (const auto& [k, v] : attributes)
    if (k == name) return &v;
  return nullptr;
}

void NamespaceObject::set(std::string_view name, Value value) {
  if (const Value* old = find(name)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  recharge(sizeof(Value) + sizeof(std::string) + name.size());
  attributes.emplace_back(std::string(name), std::move(value));
}

std::string_view Value::digits() const { return string().text.bytes(); }

Value make_string(Budget* budget, MarkedText text) {
  budget->check_text(text.size());
  budget->step_bytes(text.size());
  return Value::object(Kind::kString, new StringObject(budget, std::move(text)));
}

Value make_string(Budget* budget, std::string_view text, bool trusted) {
  budget->check_text(text.size());
  return make_string(budget, trusted ? MarkedText::trusted(text) : MarkedText::from_caller(text));
}

Value make_list(Budget* budget, Values items, Flavor flavor) {
  budget->step(1 + items.size() / 8);
  return Value::object(Kind::kList, new ListObject(budget, flavor, std::move(items)));
}

Value make_big_int(Budget* budget, std::string_view digits) {
  return Value::object(Kind::kBigInt, new StringObject(budget, MarkedText::from_caller(digits)));
}

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kMacro:
      return "Macro";
    case Kind::kFunction:
    case Kind::kMethod:
      return "function";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kList:
      switch (value.list().flavor) {
        case Flavor::kList:
          return "list";
        case Flavor::kTuple:
          return "tuple";
        case Flavor::kRange:
          return "range";
        case Flavor::kView:
          return "dict view";
        case Flavor::kGenerator:
          return "generator";
      }
  }
  return "object";
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_double() != 0;
    case Kind::kString:
      return !value.string().text.empty();
    case Kind::kList:
      return value.list().flavor == Flavor::kGenerator || !value.list().items.empty();
    case Kind::kDict:
      return !value.dict().items.empty();
    default:
      return true;
  }
}

bool equal(const Value& a, const Value& b, Budget* budget) {
  budget->step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) {
    // A float can equal an integer beyond 64 bits only when it is that large; its exact digits decide.
    const Value* big = a.is(Kind::kBigInt) ? &a : b.is(Kind::kBigInt) ? &b : nullptr;
    const Value& other = big == &a ? b : a;
    return big != nullptr && other.is(Kind::kFloat) && double_as_digits(other.as_double()) == big->digits();
  }
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kBigInt:
      return a.digits() == b.digits();
    case Kind::kFunction:
      return a.as_int() == b.as_int();
    case Kind::kString: {
      const std::string& x = a.string().text.bytes();
      const std::string& y = b.string().text.bytes();
      if (x.size() != y.size()) return false;
      budget->step_bytes(x.size());
      return x == y;
    }
    case Kind::kList: {
      if (a.object() == b.object()) return true;
      if (!is_sequence_pair(a, b) &&
          !(a.list().flavor == Flavor::kRange && b.list().flavor == Flavor::kRange))
        return false;
      const Values &x = a.list().items, &y = b.list().items;
      if (x.size() != y.size()) return false;
      for (size_t i = 0; i < x.size(); ++i)
        if (!equal(x[i], y[i], budget)) return false;
      return true;
    }
    case Kind::kDict: {
      if (a.object() == b.object()) return true;
      if (a.dict().items.size() != b.dict().items.size()) return false;
      for (const auto& [k, v] : a.dict().items) {
        const Value* other = b.dict().find(k);
        if (other == nullptr || !equal(v, *other, budget)) return false;
      }
      return true;
    }
    default:
      return a.object() == b.object();
  }
}

int compare(const Value& a, const Value& b, Budget* budget) {
  budget->step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is(Kind::kBigInt) && b.is(Kind::kBigInt)) return compare_digits(a.digits(), b.digits());
  if (a.is(Kind::kBigInt) && b.is_integral()) return a.digits()[0] == '-' ? -1 : 1;
  if (b.is(Kind::kBigInt) && a.is_integral()) return b.digits()[0] == '-' ? 1 : -1;
  if (a.is_string() && b.is_string()) {
    const std::string &x = a.string().text.bytes(), &y = b.string().text.bytes();
    budget->step_bytes(std::min(x.size(), y.size()));
    const int r = x.compare(y);  // UTF-8 orders as code points do
    return r < 0 ? -1 : r > 0 ? 1 : 0;
  }
  if (is_sequence_pair(a, b)) {
    const Values &x = a.list().items, &y = b.list().items;
    const size_t n = std::min(x.size(), y.size());
    for (size_t i = 0; i < n; ++i)
      if (!equal(x[i], y[i], budget)) return compare(x[i], y[i], budget);
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  fail(std::string("'") + type_name(a) + "' and '" + type_name(b) + "' cannot be ordered");
}

void check_hashable(const Value& value) {
  if (value.is_dict()) fail("unhashable type: 'dict'");
  if (!value.is_list()) return;
  if (value.list().flavor == Flavor::kList || value.list().flavor == Flavor::kView)
    fail(std::string("unhashable type: '") + type_name(value) + "'");
  for (const Value& item : value.list().items) check_hashable(item);
}

bool is_iterable(const Value& value) {
  return value.is_string() || value.is_list() || value.is_dict() || value.is_undefined() ||
         value.is(Kind::kLoop);
}

Values iterate(const Value& value, Budget* budget) {
  Values out;
  switch (value.kind()) {
    case Kind::kUndefined:
      return out;
    case Kind::kString:
      return characters(value, budget);
    case Kind::kDict:
      budget->step(value.dict().items.size() / 4);
      out.reserve(value.dict().items.size());
      for (const auto& item : value.dict().items) out.push_back(item.first);
      return out;
    case Kind::kList: {
      ListObject& list = value.list();
      budget->step(list.items.size() / 8);
      if (list.flavor != Flavor::kGenerator) return list.items;
      if (!list.consumed) out = list.items;
      list.consumed = true;
      return out;
    }
    default:
      fail(std::string("'") + type_name(value) + "' object is not iterable");
  }
}

}  // namespace firesteel::jinja
