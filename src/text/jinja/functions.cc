// Attribute and item look-up, and the global functions.
#include <algorithm>
#include <array>

#include "text/jinja/builtins.h"
#include "text/jinja/output.h"

namespace firesteel::jinja {

// Arguments.

Parameters::Parameters(std::string_view function, const Args& args,
                       std::initializer_list<std::string_view> names)
    : function_(function), names_(names), values_(names.size(), nullptr) {
  if (args.positional.size() > names_.size())
    fail(std::string(function_) + "() takes at most " + std::to_string(names_.size()) + " argument(s)");
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [key, value] : args.keywords) {
    const auto it = std::find(names_.begin(), names_.end(), key);
    if (it == names_.end()) fail(std::string(function_) + "() has no argument '" + key + "'");
    const auto i = static_cast<size_t>(it - names_.begin());
    if (values_[i] != nullptr) fail(std::string(function_) + "() got two values for '" + key + "'");
    values_[i] = &value;
  }
}

void Parameters::bad(size_t i, const char* expected) const {
  fail(std::string(function_) + "() needs " + expected + " as '" + std::string(names_[i]) + "'");
}

const Value& Parameters::required(size_t i) const {
  if (!has(i)) fail(std::string(function_) + "() needs the argument '" + std::string(names_[i]) + "'");
  return *values_[i];
}

int64_t Parameters::integer(size_t i, int64_t missing) const {
  if (!has(i)) return missing;
  if (!values_[i]->is_integral()) bad(i, "an integer");
  return values_[i]->as_int();
}

const StringObject* Parameters::text(size_t i) const {
  if (!has(i) || values_[i]->is_none()) return nullptr;
  if (!values_[i]->is_string()) bad(i, "a string");
  return &values_[i]->string();
}

const StringObject& as_text(const Value& v) { return v.string(); }

// Look-up.

namespace {

Value loop_attribute(Interpreter& in, const Value& v, std::string_view name) {
  const LoopObject& loop = v.loop();
  const auto index = static_cast<int64_t>(loop.index), count = static_cast<int64_t>(loop.items.size());
  const auto number = [](int64_t i) { return Value::integer(i, false); };
  if (name == "index") return number(index + 1);
  if (name == "index0") return number(index);
  if (name == "revindex") return number(count - index);
  if (name == "revindex0") return number(count - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == count);
  if (name == "length") return number(count);
  if (name == "depth") return number(1);  // loops that call themselves are not supported
  if (name == "depth0") return number(0);
  if (name == "previtem") return index == 0 ? Value() : loop.items[loop.index - 1];
  if (name == "nextitem") return index + 1 < count ? loop.items[loop.index + 1] : Value();
  const int method = find_method(v, name);
  return method >= 0 ? Value::object(Kind::kMethod, new MethodObject(in.budget(), v, method)) : Value();
}

/// Items of lists and tuples and characters of strings, counted from the end when negative; undefined beyond.
Value indexed(Interpreter& in, const Value& object, int64_t index) {
  if (object.is_list()) {
    const ListObject& l = object.list();
    if (l.flavor == Flavor::kView || l.flavor == Flavor::kGenerator) return Value();
    const auto n = static_cast<int64_t>(l.items.size());
    if (index < -n || index >= n) return Value();
    return l.items[static_cast<size_t>(index < 0 ? index + n : index)];
  }
  const StringObject& s = object.string();
  const int64_t n = length(s);
  if (index < -n || index >= n) return Value();
  if (index < 0) index += n;
  return slice_text(s, index, index + 1, 1, in.budget());
}

}  // namespace

Value Interpreter::attribute(const Value& object, std::string_view name) {
  require_defined(object, "attribute '" + std::string(name.substr(0, 60)) + "'");
  switch (object.kind()) {
    case Kind::kLoop:
      return loop_attribute(*this, object, name);
    case Kind::kNamespace: {
      const Value* v = object.name_space().find(name);
      return v == nullptr ? Value() : *v;
    }
    case Kind::kMacro:
      return name == "name" ? string(object.macro().node->name, true) : Value();
    default:
      break;
  }
  const int method = find_method(object, name);
  if (method == kHiddenMethod) return Value();
  if (method >= 0) return Value::object(Kind::kMethod, new MethodObject(&budget_, object, method));
  if (object.is_dict()) {
    const Value* v = object.dict().find(name);
    return v == nullptr ? Value() : *v;
  }
  return Value();
}

Value Interpreter::item(const Value& object, const Value& key) {
  require_defined(object, "item");
  if (object.is_dict()) {
    const bool hashable = !key.is_dict() && !(key.is_list() && key.list().flavor != Flavor::kTuple);
    const Value* v = hashable ? object.dict().find(key) : nullptr;
    if (v != nullptr) return *v;
  } else if ((object.is_list() || object.is_string()) && key.is_integral()) {
    return indexed(*this, object, key.as_int());
  }
  if (!key.is_string() || object.is_dict()) {
    // A dict's missing key may still name one of its methods.
    if (!key.is_string()) return Value();
    const int method = find_method(object, key.string().text.bytes());
    return method >= 0 ? Value::object(Kind::kMethod, new MethodObject(&budget_, object, method)) : Value();
  }
  return attribute(object, key.string().text.bytes());
}

Value attribute_path(Interpreter& in, const Value& object, const Value& path) {
  if (path.is_integral()) return in.item(object, path);
  if (!path.is_string()) fail("an attribute is named by a string or an integer");
  Value v = object;
  const StringObject dot(in.budget(), MarkedText::trusted("."));
  const Value parts = split(path.string(), &dot, -1, false, in.budget());
  for (const Value& part : parts.list().items) {
    const std::string& text = part.string().text.bytes();
    const bool digits =
        !text.empty() && text.find_first_not_of("0123456789") == std::string::npos && text.size() < 18;
    v = in.item(v, digits ? Value::integer(std::stoll(text), false) : part);
  }
  return v;
}

// Global functions.

namespace {

constexpr int64_t kMaxRange = 100000;  // as Jinja's sandbox

enum FunctionId { kRange, kNamespace, kDict, kRaise };
constexpr std::array<std::string_view, 4> kFunctions = {"range", "namespace", "dict", "raise_exception"};

Value range(Interpreter& in, const Args& args) {
  const Parameters p("range", args, {"start", "stop", "step"});
  if (!args.keywords.empty()) fail("range() takes no keyword arguments");
  p.required(0);
  const bool one = !p.has(1);
  const int64_t start = one ? 0 : p.integer(0, 0), stop = one ? p.integer(0, 0) : p.integer(1, 0);
  const int64_t step = p.integer(2, 1);
  if (step == 0) fail("range() arg 3 must not be zero");
  // In unsigned distance, which cannot overflow.
  const bool empty = step > 0 ? start >= stop : start <= stop;
  const uint64_t distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                     : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const uint64_t count = empty ? 0 : (distance - 1) / stride + 1;
  if (count > kMaxRange) fail("range too big, the sandbox allows no more than 100000 items");
  const bool caller = std::any_of(args.positional.begin(), args.positional.end(),
                                  [](const Value& v) { return v.from_caller(); });
  in.budget()->step(count / 8);
  Values items;
  items.reserve(count);
  for (uint64_t i = 0; i < count; ++i)
    items.push_back(Value::integer(
        static_cast<int64_t>(static_cast<uint64_t>(start) + i * static_cast<uint64_t>(step)), caller));
  return in.list(std::move(items), Flavor::kRange);
}

/// dict(…) and namespace(…): one mapping or list of pairs, then keywords.
void collect(Interpreter& in, const Args& args, DictObject* out) {
  if (args.positional.size() > 1) fail("at most one argument without a keyword was expected");
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is_dict()) {
      for (const auto& [k, v] : from.dict().items) out->put(k, v);
    } else {
      for (const Value& pair : iterate(from, in.budget())) {
        const Values kv = iterate(pair, in.budget());
        if (kv.size() != 2) fail("a dict is made of pairs");
        out->put(kv[0], kv[1]);
      }
    }
  }
  for (const auto& [k, v] : args.keywords) out->put(in.string(k, true), v);
}

}  // namespace

int find_function(std::string_view name) {
  const auto* it = std::find(kFunctions.begin(), kFunctions.end(), name);
  return it == kFunctions.end() ? -1 : static_cast<int>(it - kFunctions.begin());
}

Value call_function(Interpreter& in, int id, const Args& args) {
  switch (id) {
    case kRange:
      return range(in, args);
    case kNamespace: {
      const Ref<DictObject> members(new DictObject(in.budget()));
      collect(in, args, members.get());
      const Value n = in.new_namespace();
      for (const auto& [k, v] : members->items) {
        if (!k.is_string()) fail("attributes are named by strings");
        n.name_space().set(k.string().text.bytes(), v);
      }
      return n;
    }
    case kDict: {
      const Ref<DictObject> dict(new DictObject(in.budget()));
      collect(in, args, dict.get());
      return Value::object(Kind::kDict, dict.get());
    }
    default: {
      const Parameters p("raise_exception", args, {"message"});
      constexpr size_t kMaxMessage = 300;
      const Value text = to_text(p.required(0), in.budget());
      std::string message = text.string().text.bytes();
      if (message.size() > kMaxMessage) {
        size_t end = kMaxMessage;
        while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
        message.resize(end);
      }
      fail(std::move(message));
    }
  }
}

}  // namespace firesteel::jinja
