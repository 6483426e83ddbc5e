// Filters on sequences and mappings. Those that are generators in Jinja give a generator here too: always
// true, read once.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/output.h"

namespace firesteel::jinja {

namespace {

/// Strings compare without case unless asked otherwise.
Value sort_key(Interpreter& in, const Value& v, bool case_sensitive) {
  return !case_sensitive && v.is_string() ? lower(v.string(), in.budget()) : v;
}

Value filter_length(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("length", args, {});
  int64_t n = 0;
  switch (value.kind()) {
    case Kind::kUndefined:
      break;
    case Kind::kString:
      n = length(value.string());
      break;
    case Kind::kDict:
      n = static_cast<int64_t>(value.dict().items.size());
      break;
    case Kind::kList:
      if (value.list().flavor != Flavor::kGenerator) {
        n = static_cast<int64_t>(value.list().items.size());
        break;
      }
      [[fallthrough]];
    default:
      fail(std::string("object of type '") + type_name(value) + "' has no len()");
  }
  static_cast<void>(in);
  return Value::integer(n, true);
}

Value filter_first(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("first", args, {});
  if (value.is_string())
    return value.string().text.empty() ? Value() : slice_text(value.string(), 0, 1, 1, in.budget());
  Values items = iterate(value, in.budget());
  return items.empty() ? Value() : std::move(items.front());
}

Value filter_last(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("last", args, {});
  if (value.is_list() && value.list().flavor == Flavor::kGenerator)
    fail("'generator' object is not reversible");
  if (value.is_string())
    return value.string().text.empty() ? Value()
                                       : slice_text(value.string(), -1, std::nullopt, 1, in.budget());
  Values items = iterate(value, in.budget());
  return items.empty() ? Value() : std::move(items.back());
}

Value filter_list(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("list", args, {});
  return in.list(iterate(value, in.budget()));
}

Value filter_items(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("items", args, {});
  Values out;
  if (!value.is_undefined()) {
    if (!value.is_dict()) fail("items needs a mapping");
    for (const auto& [k, v] : value.dict().items) out.push_back(in.list({k, v}, Flavor::kTuple));
  }
  return in.list(std::move(out), Flavor::kGenerator);
}

Value filter_reverse(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("reverse", args, {});
  if (value.is_string()) return slice_text(value.string(), std::nullopt, std::nullopt, -1, in.budget());
  Values items = iterate(value, in.budget());
  std::reverse(items.begin(), items.end());
  return in.list(std::move(items), Flavor::kGenerator);
}

Value filter_join(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("join", args, {"d", "attribute"});
  const Value separator = p.has(0) ? to_text(*p.get(0), in.budget()) : in.string("", true);
  TextBuilder out(in.budget());
  bool first = true;
  for (const Value& item : iterate(value, in.budget())) {
    if (!std::exchange(first, false)) out.add(separator.string().text);
    print(p.has(1) && !p.get(1)->is_none() ? attribute_path(in, item, *p.get(1)) : item, &out);
  }
  return out.value();
}

Value filter_map(Interpreter& in, const Value& value, const Args& args) {
  Values out;
  if (!truth(value)) return in.list(std::move(out), Flavor::kGenerator);
  if (args.positional.empty() && !args.keywords.empty()) {
    const Parameters p("map", args, {"attribute", "default"});
    for (const Value& item : iterate(value, in.budget())) {
      Value v = attribute_path(in, item, p.required(0));
      if (v.is_undefined() && p.has(1)) v = *p.get(1);
      out.push_back(std::move(v));
    }
    return in.list(std::move(out), Flavor::kGenerator);
  }
  if (args.positional.empty() || !args.positional[0].is_string()) fail("map needs the name of a filter");
  Args rest = args;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : iterate(value, in.budget()))
    out.push_back(in.call_filter(args.positional[0].string().text.bytes(), item, rest));
  return in.list(std::move(out), Flavor::kGenerator);
}

template <bool kKeep, bool kAttribute>
Value filter_select(Interpreter& in, const Value& value, const Args& args) {
  Values out;
  if (!truth(value)) return in.list(std::move(out), Flavor::kGenerator);
  Args rest = args;
  const auto take = [&]() -> std::optional<Value> {
    if (rest.positional.empty()) return std::nullopt;
    Value v = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return v;
  };
  std::optional<Value> path;
  if (kAttribute) {
    path = take();
    if (!path) fail("selectattr needs the name of an attribute");
  }
  const std::optional<Value> test = take();
  if (test && !test->is_string()) fail("the name of a test is a string");
  for (const Value& item : iterate(value, in.budget())) {
    const Value subject = path ? attribute_path(in, item, *path) : item;
    const bool holds = test ? in.call_test(test->string().text.bytes(), subject, rest) : truth(subject);
    if (holds == kKeep) out.push_back(item);
  }
  return in.list(std::move(out), Flavor::kGenerator);
}

Value filter_sort(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("sort", args, {"reverse", "case_sensitive", "attribute"});
  const bool reverse = p.flag(0, false), case_sensitive = p.flag(1, false);
  Values paths;
  if (p.text(2) != nullptr) {
    const StringObject comma(in.budget(), MarkedText::trusted(","));
    paths = split(*p.text(2), &comma, -1, false, in.budget()).list().items;
  }
  std::vector<std::pair<Values, Value>> keyed;
  for (Value& item : iterate(value, in.budget())) {
    Values keys;
    for (const Value& path : paths)
      keys.push_back(sort_key(in, attribute_path(in, item, path), case_sensitive));
    if (paths.empty()) keys.push_back(sort_key(in, item, case_sensitive));
    keyed.emplace_back(std::move(keys), std::move(item));
  }
  const auto less = [&](const Values& a, const Values& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      in.require_defined(a[i], "sort");
      if (!equal(a[i], b[i], in.budget())) return compare(a[i], b[i], in.budget()) == -1;
    }
    return false;
  };
  // Merge sort only: it keeps to its bounds whatever the comparison says (NaN has no order). Stable both
  // ways.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
  Values out;
  out.reserve(keyed.size());
  for (auto& k : keyed) out.push_back(std::move(k.second));
  return in.list(std::move(out));
}

Value filter_dictsort(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("dictsort", args, {"case_sensitive", "by", "reverse"});
  if (!value.is_dict()) fail("dictsort needs a mapping");
  const std::string by = p.text(1) != nullptr ? p.text(1)->text.bytes() : "key";
  if (by != "key" && by != "value") fail("dictsort sorts by key or value");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [k, v] : value.dict().items)
    keyed.emplace_back(sort_key(in, by == "key" ? k : v, p.flag(0, false)), in.list({k, v}, Flavor::kTuple));
  const bool reverse = p.flag(2, false);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return compare(reverse ? b.first : a.first, reverse ? a.first : b.first, in.budget()) == -1;
  });
  Values out;
  for (auto& k : keyed) out.push_back(std::move(k.second));
  return in.list(std::move(out));
}

Value filter_unique(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("unique", args, {"case_sensitive", "attribute"});
  const Ref<DictObject> seen(new DictObject(in.budget()));
  Values out;
  for (Value& item : iterate(value, in.budget())) {
    const bool by = p.has(1) && !p.get(1)->is_none();
    const Value key = sort_key(in, by ? attribute_path(in, item, *p.get(1)) : item, p.flag(0, false));
    if (seen->find(key) != nullptr) continue;
    seen->put(key, Value::none());
    out.push_back(std::move(item));
  }
  return in.list(std::move(out), Flavor::kGenerator);
}

template <int kSign>
Value filter_extreme(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("min", args, {"case_sensitive", "attribute"});
  Value best, best_key;
  bool first = true;
  for (Value& item : iterate(value, in.budget())) {
    const bool by = p.has(1) && !p.get(1)->is_none();
    Value key = sort_key(in, by ? attribute_path(in, item, *p.get(1)) : item, p.flag(0, false));
    if (!first && compare(key, best_key, in.budget()) != kSign) continue;
    first = false;
    best = std::move(item);
    best_key = std::move(key);
  }
  return best;
}

Value filter_sum(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("sum", args, {"attribute", "start"});
  Value total = p.has(1) ? *p.get(1) : Value::integer(0, false);
  if (total.is_string()) fail("sum() cannot add strings");
  for (const Value& item : iterate(value, in.budget())) {
    const bool by = p.has(0) && !p.get(0)->is_none();
    total = arithmetic(in, Op::kAdd, total, by ? attribute_path(in, item, *p.get(0)) : item);
  }
  return total;
}

Value filter_batch(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("batch", args, {"linecount", "fill_with"});
  const int64_t size = p.integer(0, 0);
  p.required(0);
  Values out, row;
  for (Value& item : iterate(value, in.budget())) {
    if (static_cast<int64_t>(row.size()) == size) {
      out.push_back(in.list(std::move(row)));
      row.clear();
    }
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (p.has(1) && !p.get(1)->is_none()) {
      while (static_cast<int64_t>(row.size()) < size) {
        in.budget()->step();
        in.budget()->check_text(row.size() * sizeof(Value));
        row.push_back(*p.get(1));
      }
    }
    out.push_back(in.list(std::move(row)));
  }
  return in.list(std::move(out), Flavor::kGenerator);
}

struct Filter {
  std::string_view name;
  FilterFn call;
};

constexpr Filter kFilters[] = {
    {"batch", filter_batch},
    {"count", filter_length},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"map", filter_map},
    {"max", filter_extreme<1>},
    {"min", filter_extreme<-1>},
    {"reject", filter_select<false, false>},
    {"rejectattr", filter_select<false, true>},
    {"reverse", filter_reverse},
    {"select", filter_select<true, false>},
    {"selectattr", filter_select<true, true>},
    {"sort", filter_sort},
    {"sum", filter_sum},
    {"unique", filter_unique},
};

}  // namespace

FilterFn find_sequence_filter(std::string_view name) {
  const auto* it =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](const Filter& f) { return f.name == name; });
  return it == std::end(kFilters) ? nullptr : it->call;
}

}  // namespace firesteel::jinja
