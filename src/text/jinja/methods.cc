// Methods of strings, dicts, lists and the loop object.
#include <algorithm>
#include <functional>

#include "text/jinja/builtins.h"
#include "text/jinja/output.h"

namespace firesteel::jinja {

namespace {

using MethodFn = Value (*)(Interpreter& in, const Value& self, const Args& args);

// Strings.

template <bool kFromRight>
Value str_split(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("split", args, {"sep", "maxsplit"});
  return split(self.string(), p.text(0), p.integer(1, -1), kFromRight, in.budget());
}

template <bool kLeft, bool kRight>
Value str_strip(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("strip", args, {"chars"});
  return strip(self.string(), p.text(0), kLeft, kRight, in.budget());
}

template <Value (*kConvert)(const StringObject&, Budget*)>
Value str_case(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("case conversion", args, {});
  return kConvert(self.string(), in.budget());
}

/// self[start:end] for the methods that take these two after `first`.
Value window(Interpreter& in, const Value& self, const Parameters& p, size_t first) {
  const auto bound = [&](size_t i) -> std::optional<int64_t> {
    if (!p.has(i) || p.get(i)->is_none()) return std::nullopt;
    return p.integer(i, 0);
  };
  if (!p.has(first)) return self;
  return slice_text(self.string(), bound(first), bound(first + 1), 1, in.budget());
}

template <bool kAtEnd>
Value str_affix(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p(kAtEnd ? "endswith" : "startswith", args, {"affix", "start", "end"});
  const Value text = window(in, self, p, 1);
  const std::string_view b = text.string().text.bytes();
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string()) fail("startswith and endswith need a string or a tuple of strings");
    const std::string& a = affix.string().text.bytes();
    return kAtEnd ? b.ends_with(a) : b.starts_with(a);
  };
  const Value& affix = p.required(0);
  if (!affix.is_list() || affix.list().flavor != Flavor::kTuple) return Value::boolean(matches(affix));
  const Values& all = affix.list().items;
  return Value::boolean(std::any_of(all.begin(), all.end(), matches));
}

template <bool kFromRight, bool kRaise>
Value str_find(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("find", args, {"sub", "start", "end"});
  p.required(0);
  const Value text = window(in, self, p, 1);
  const std::string& b = text.string().text.bytes();
  const std::string& needle =
      p.text(0) != nullptr ? p.text(0)->text.bytes() : (fail("find() needs a string"), b);
  in.budget()->step_bytes(2 * (b.size() + needle.size()));
  const size_t at = kFromRight ? rfind_text(b, needle) : find_text(b, needle);
  if (at == std::string::npos) {
    if (kRaise) fail("substring not found");
    return Value::integer(-1, true);
  }
  int64_t index = 0;
  for (size_t i = 0; i < at; i += decode_at(b, i).size) ++index;
  const int64_t n = length(self.string());
  int64_t start = p.has(1) && !p.get(1)->is_none() ? p.integer(1, 0) : 0;
  if (start < 0) start = std::max<int64_t>(0, start + n);
  return Value::integer(start + index, true);
}

Value str_count(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("count", args, {"sub", "start", "end"});
  p.required(0);
  const Value text = window(in, self, p, 1);
  if (p.text(0) == nullptr) fail("count() needs a string");
  const std::string& needle = p.text(0)->text.bytes();
  in.budget()->step_bytes(text.string().text.size() + needle.size());
  if (needle.empty()) return Value::integer(length(text.string()) + 1, true);
  return Value::integer(count_text(text.string().text.bytes(), needle), true);
}

Value str_replace(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("replace", args, {"old", "new", "count"});
  if (p.text(0) == nullptr || p.text(1) == nullptr) fail("replace() needs two strings");
  return replace(self.string(), *p.text(0), *p.text(1), p.integer(2, -1), in.budget());
}

Value str_join(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("join", args, {"iterable"});
  TextBuilder out(in.budget());
  bool first = true;
  for (const Value& v : iterate(p.required(0), in.budget())) {
    if (!v.is_string()) fail(std::string("join() needs strings, found ") + type_name(v));
    if (!std::exchange(first, false)) out.add(self.string().text);
    out.add(v.string().text);
  }
  return out.value();
}

Value str_splitlines(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("splitlines", args, {"keepends"});
  return split_lines(self.string(), p.flag(0, false), in.budget());
}

template <bool kSuffix>
Value str_remove(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("removeprefix", args, {"affix"});
  if (p.text(0) == nullptr) fail("removeprefix and removesuffix need a string");
  const std::string& b = self.string().text.bytes();
  const std::string& a = p.text(0)->text.bytes();
  if (a.empty() || !(kSuffix ? b.ends_with(a) : b.starts_with(a))) return self;
  const size_t rest = b.size() - a.size();
  return make_string(in.budget(), self.string().text.substr(kSuffix ? 0 : a.size(), rest));
}

template <bool kFromRight>
Value str_partition(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("partition", args, {"sep"});
  if (p.text(0) == nullptr || p.text(0)->text.empty()) fail("partition() needs a separator");
  const MarkedText& text = self.string().text;
  const std::string& sep = p.text(0)->text.bytes();
  in.budget()->step_bytes(2 * (text.size() + sep.size()));
  const size_t at = kFromRight ? rfind_text(text.bytes(), sep) : find_text(text.bytes(), sep);
  const Value empty = in.string("", true);
  if (at == std::string::npos)
    return in.list(kFromRight ? Values{empty, empty, self} : Values{self, empty, empty}, Flavor::kTuple);
  const auto part = [&](size_t begin, size_t end) {
    return make_string(in.budget(), text.substr(begin, end - begin));
  };
  return in.list({part(0, at), part(at, at + sep.size()), part(at + sep.size(), text.size())},
                 Flavor::kTuple);
}

/// True when there is a character and `test` holds for all.
template <bool (*kTest)(uint32_t)>
Value str_all(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("character test", args, {});
  const std::string& b = self.string().text.bytes();
  in.budget()->step_bytes(b.size());
  for (size_t at = 0; at < b.size();) {
    const CodePoint c = decode_at(b, at);
    if (!kTest(c.value)) return Value::boolean(false);
    at += c.size;
  }
  return Value::boolean(!b.empty());
}

bool is_alphanumeric(uint32_t c) { return is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c); }

template <bool kUpper>
Value str_is_case(Interpreter& in, const Value& self, const Args& args) {
  return Value::boolean(in.call_test(kUpper ? "upper" : "lower", self, args));
}

Value str_format(Interpreter& in, const Value& self, const Args& args) {
  return format_braces(in, self.string(), args);
}

// Dicts.

template <int kWhat>  // 0 items, 1 keys, 2 values
Value dict_view(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("items", args, {});
  Values out;
  in.budget()->step(self.dict().items.size() / 4);
  out.reserve(self.dict().items.size());
  for (const auto& [k, v] : self.dict().items) {
    if (kWhat == 0) {
      out.push_back(in.list({k, v}, Flavor::kTuple));
    } else {
      out.push_back(kWhat == 1 ? k : v);
    }
  }
  return in.list(std::move(out), Flavor::kView);
}

Value dict_get(Interpreter&, const Value& self, const Args& args) {
  const Parameters p("get", args, {"key", "default"});
  if (!args.keywords.empty()) fail("get() takes no keyword arguments");
  if (const Value* v = self.dict().find(p.required(0))) return *v;
  return p.has(1) ? *p.get(1) : Value::none();
}

Value copy(Interpreter&, const Value& self, const Args& args) {
  const Parameters p("copy", args, {});
  return self;  // immutable: as good as a copy
}

// Lists.

Value list_index(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("index", args, {"value"});
  const Values& items = self.list().items;
  for (size_t i = 0; i < items.size(); ++i)
    if (equal(items[i], p.required(0), in.budget())) return Value::integer(static_cast<int64_t>(i), true);
  fail("the value is not in the list");
}

Value list_count(Interpreter& in, const Value& self, const Args& args) {
  const Parameters p("count", args, {"value"});
  const Value& needle = p.required(0);
  const Values& items = self.list().items;
  return Value::integer(std::count_if(items.begin(), items.end(),
                                      [&](const Value& v) { return equal(v, needle, in.budget()); }),
                        true);
}

// The loop object.

Value loop_cycle(Interpreter&, const Value& self, const Args& args) {
  if (!args.keywords.empty() || args.positional.empty()) fail("loop.cycle() needs values to choose from");
  return args.positional[self.loop().index % args.positional.size()];
}

Value loop_changed(Interpreter& in, const Value& self, const Args& args) {
  LoopObject& loop = self.loop();
  bool same = loop.has_changed && loop.changed.size() == args.positional.size();
  for (size_t i = 0; same && i < loop.changed.size(); ++i)
    same = equal(loop.changed[i], args.positional[i], in.budget());
  loop.changed = args.positional;
  loop.has_changed = true;
  return Value::boolean(!same);
}

struct Method {
  Kind kind;
  std::string_view name;
  MethodFn call;
};

constexpr Method kMethods[] = {
    {Kind::kString, "split", str_split<false>},
    {Kind::kString, "rsplit", str_split<true>},
    {Kind::kString, "strip", str_strip<true, true>},
    {Kind::kString, "lstrip", str_strip<true, false>},
    {Kind::kString, "rstrip", str_strip<false, true>},
    {Kind::kString, "upper", str_case<upper>},
    {Kind::kString, "lower", str_case<lower>},
    {Kind::kString, "title", str_case<title>},
    {Kind::kString, "capitalize", str_case<capitalize>},
    {Kind::kString, "startswith", str_affix<false>},
    {Kind::kString, "endswith", str_affix<true>},
    {Kind::kString, "find", str_find<false, false>},
    {Kind::kString, "rfind", str_find<true, false>},
    {Kind::kString, "index", str_find<false, true>},
    {Kind::kString, "rindex", str_find<true, true>},
    {Kind::kString, "count", str_count},
    {Kind::kString, "replace", str_replace},
    {Kind::kString, "join", str_join},
    {Kind::kString, "splitlines", str_splitlines},
    {Kind::kString, "removeprefix", str_remove<false>},
    {Kind::kString, "removesuffix", str_remove<true>},
    {Kind::kString, "partition", str_partition<false>},
    {Kind::kString, "rpartition", str_partition<true>},
    {Kind::kString, "isalpha", str_all<is_alpha>},
    {Kind::kString, "isdigit", str_all<is_digit>},
    {Kind::kString, "isdecimal", str_all<is_decimal>},
    {Kind::kString, "isnumeric", str_all<is_numeric>},
    {Kind::kString, "isalnum", str_all<is_alphanumeric>},
    {Kind::kString, "isspace", str_all<is_space>},
    {Kind::kString, "islower", str_is_case<false>},
    {Kind::kString, "isupper", str_is_case<true>},
    {Kind::kString, "format", str_format},
    {Kind::kDict, "items", dict_view<0>},
    {Kind::kDict, "keys", dict_view<1>},
    {Kind::kDict, "values", dict_view<2>},
    {Kind::kDict, "get", dict_get},
    {Kind::kDict, "copy", copy},
    {Kind::kList, "index", list_index},
    {Kind::kList, "count", list_count},
    {Kind::kList, "copy", copy},
    {Kind::kLoop, "cycle", loop_cycle},
    {Kind::kLoop, "changed", loop_changed},
};

/// Methods that would change the value: the sandbox hides them, so that they are undefined even beside a key
/// of that name.
constexpr std::string_view kHiddenDict[] = {"clear", "pop", "popitem", "setdefault", "update"};

}  // namespace

int find_method(const Value& self, std::string_view name) {
  for (size_t i = 0; i < std::size(kMethods); ++i)
    if (kMethods[i].kind == self.kind() && kMethods[i].name == name) return static_cast<int>(i);
  if (self.is_dict() &&
      std::find(std::begin(kHiddenDict), std::end(kHiddenDict), name) != std::end(kHiddenDict))
    return kHiddenMethod;
  return -1;
}

Value call_method(Interpreter& in, const Value& self, int id, const Args& args) {
  return kMethods[static_cast<size_t>(id)].call(in, self, args);
}

}  // namespace firesteel::jinja
