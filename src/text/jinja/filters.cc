// Filters on one value: texts, numbers, JSON.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/builtins.h"
#include "text/jinja/output.h"

namespace firesteel::jinja {

namespace {

constexpr int64_t kMaxIndent = 100;
constexpr int64_t kMaxWidth = 10000;

template <Value (*kConvert)(const StringObject&, Budget*)>
Value convert_case(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("case filter", args, {});
  return kConvert(to_text(value, in.budget()).string(), in.budget());
}

Value filter_trim(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("trim", args, {"chars"});
  return strip(to_text(value, in.budget()).string(), p.text(0), true, true, in.budget());
}

Value filter_string(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("string", args, {});
  return to_text(value, in.budget());
}

/// Marks a text as HTML, which means nothing here.
Value filter_safe(Interpreter&, const Value& value, const Args& args) {
  const Parameters p("safe", args, {});
  return value;
}

Value filter_replace(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("replace", args, {"old", "new", "count"});
  const Value from = to_text(p.required(0), in.budget()), to = to_text(p.required(1), in.budget());
  const bool all = !p.has(2) || p.get(2)->is_none();
  return replace(to_text(value, in.budget()).string(), from.string(), to.string(),
                 all ? -1 : p.integer(2, -1), in.budget());
}

Value filter_format(Interpreter& in, const Value& value, const Args& args) {
  const Value format = to_text(value, in.budget());
  if (!args.positional.empty() && !args.keywords.empty())
    fail("format takes positional or keyword arguments, not both");
  if (args.keywords.empty())
    return format_percent(in, format.string(), in.list(args.positional, Flavor::kTuple));
  const Ref<DictObject> dict(new DictObject(in.budget()));
  for (const auto& [k, v] : args.keywords) dict->put(in.string(k, true), v);
  return format_percent(in, format.string(), Value::object(Kind::kDict, dict.get()));
}

Value filter_indent(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("indent", args, {"width", "first", "blank"});
  if (!value.is_string()) fail("indent needs a string");
  MarkedText indent;
  if (p.has(0) && p.get(0)->is_string()) {
    indent = p.get(0)->string().text;
  } else {
    const int64_t width = p.integer(0, 4);
    if (width > kMaxIndent) fail_limit("an indent is too wide");
    indent = MarkedText::trusted(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '));
  }
  const bool blank = p.flag(2, false);
  TextBuilder with_end(in.budget());
  with_end.add(value.string().text);
  with_end.add("\n", true);
  const Value lines = split_lines(with_end.value().string(), false, in.budget());
  TextBuilder out(in.budget());
  if (p.flag(1, false)) out.add(indent);
  bool first = true;
  for (const Value& line : lines.list().items) {
    if (!first) {
      out.add("\n", true);
      if (blank || !line.string().text.empty()) out.add(indent);
    }
    first = false;
    out.add(line.string().text);
  }
  return out.value();
}

Value filter_truncate(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("truncate", args, {"length", "killwords", "end", "leeway"});
  if (!value.is_string()) fail("truncate needs a string");
  const StringObject& s = value.string();
  const int64_t limit = p.integer(0, 255);
  const Value end = p.has(2) ? to_text(*p.get(2), in.budget()) : in.string("...", true);
  const int64_t leeway = p.has(3) && !p.get(3)->is_none() ? p.integer(3, 5) : 5;
  const int64_t end_length = length(end.string());
  if (limit < end_length) fail("truncate: the length is shorter than the end mark");
  if (leeway < 0) fail("truncate: the leeway is negative");
  if (length(s) - limit <= leeway) return value;
  Value head = slice_text(s, std::nullopt, limit - end_length, 1, in.budget());
  if (!p.flag(1, false)) {
    const StringObject blank(in.budget(), MarkedText::trusted(" "));
    head = split(head.string(), &blank, 1, true, in.budget()).list().items[0];
  }
  TextBuilder out(in.budget());
  out.add(head.string().text);
  out.add(end.string().text);
  return out.value();
}

Value filter_center(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("center", args, {"width"});
  const Value text = to_text(value, in.budget());
  const int64_t width = p.integer(0, 80), n = length(text.string());
  if (width <= n) return text;
  if (width > kMaxWidth) fail_limit("a field is too wide");
  const int64_t pad = width - n;
  const int64_t left = pad / 2 + (pad & width & 1);  // where Python puts an odd blank
  TextBuilder out(in.budget());
  out.add(std::string(static_cast<size_t>(left), ' '), true);
  out.add(text.string().text);
  out.add(std::string(static_cast<size_t>(pad - left), ' '), true);
  return out.value();
}

Value filter_wordcount(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("wordcount", args, {});
  const Value text = to_text(value, in.budget());
  const std::string& b = text.string().text.bytes();
  in.budget()->step_bytes(b.size());
  int64_t words = 0;
  bool in_word = false;
  for (size_t at = 0; at < b.size();) {
    const CodePoint c = decode_at(b, at);
    const bool word = c.value == '_' || is_alpha(c.value) || is_decimal(c.value) || is_digit(c.value) ||
                      is_numeric(c.value);
    words += word && !in_word ? 1 : 0;
    in_word = word;
    at += c.size;
  }
  return Value::integer(words, true);
}

// Numbers.

Value from_double(double d, const Value& missing, Budget* budget) {
  if (std::isnan(d)) return missing;
  if (std::isinf(d)) fail("cannot convert float infinity to integer");
  const double whole = std::trunc(d);
  if (whole >= -9223372036854775808.0 && whole < 9223372036854775808.0)
    return Value::integer(static_cast<int64_t>(whole), true);
  return make_big_int(budget, double_as_digits(whole));
}

Value filter_int(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("int", args, {"default", "base"});
  in.require_defined(value, "int");
  const Value missing = p.has(0) ? *p.get(0) : Value::integer(0, false);
  if (value.is(Kind::kBigInt)) return value;
  if (value.is_integral()) return Value::integer(value.as_int(), value.from_caller());
  if (value.is(Kind::kFloat)) return from_double(value.as_double(), missing, in.budget());
  if (!value.is_string()) return missing;
  const MarkedText& text = value.string().text;
  in.budget()->step_bytes(text.size());
  const bool caller = !text.all_trusted(0, text.size());
  if (auto i = parse_int(text.bytes(), static_cast<int>(std::clamp<int64_t>(p.integer(1, 10), -1, 99)),
                         caller, in.budget()))
    return *i;
  if (auto d = parse_float(text.bytes())) return from_double(*d, missing, in.budget());
  return missing;
}

Value filter_float(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("float", args, {"default"});
  in.require_defined(value, "float");
  if (value.is_number()) return Value::real(value.as_double());
  const Value missing = p.has(0) ? *p.get(0) : Value::real(0.0);
  if (!value.is_string() && !value.is(Kind::kBigInt)) return missing;
  const auto d =
      parse_float(value.is_string() ? std::string_view(value.string().text.bytes()) : value.digits());
  return d ? Value::real(*d) : missing;
}

Value filter_abs(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("abs", args, {});
  in.require_defined(value, "abs");
  if (value.is(Kind::kFloat)) return Value::real(std::fabs(value.as_double()));
  if (!value.is_integral()) fail(std::string("bad operand type for abs(): '") + type_name(value) + "'");
  return value.as_int() < 0 ? negate(value) : Value::integer(value.as_int(), value.from_caller());
}

/// round(d, digits) as Python does: on the exact decimal value, ties to even.
double round_decimal(double d, int64_t digits) {
  if (!std::isfinite(d) || digits > 330) return d;
  if (digits < -310) return std::copysign(0.0, d);
  if (digits >= 0) {
    char buffer[800];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(digits), d);
    return *parse_float(buffer);
  }
  const double scale = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(d / scale) * scale;
}

Value filter_round(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("round", args, {"precision", "method"});
  in.require_defined(value, "round");
  const int64_t digits = p.integer(0, 0);
  const std::string method = p.text(1) != nullptr ? p.text(1)->text.bytes() : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    fail("method must be common, ceil or floor");
  if (!value.is_number()) fail(std::string("type '") + type_name(value) + "' cannot be rounded");
  if (method == "common") {
    if (value.is_integral() && digits >= 0) return Value::integer(value.as_int(), value.from_caller());
    if (value.is_integral()) fail("integers are not rounded to tens");
    return Value::real(round_decimal(value.as_double(), digits));
  }
  const double scale = std::pow(10.0, static_cast<double>(digits)), scaled = value.as_double() * scale;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

// Anything.

Value filter_default(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("default", args, {"default_value", "boolean"});
  if (!value.is_undefined() && !(p.flag(1, false) && !truth(value))) return value;
  return p.has(0) ? *p.get(0) : in.string("", true);
}

Value filter_tojson(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style = python_style();
  style.ascii_only = p.flag(0, false);
  style.sort_keys = p.flag(3, false);
  if (p.has(1) && !p.get(1)->is_none()) {
    const int64_t indent = p.integer(1, 0);
    if (indent > kMaxIndent) fail_limit("an indent is too wide");
    style.indent = static_cast<int>(std::max<int64_t>(indent, 0));
    style.item_separator = std::string(1, ',');
  }
  if (p.has(2) && !p.get(2)->is_none()) {
    const Values separators = iterate(*p.get(2), in.budget());
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string())
      fail("separators are two strings");
    style.item_separator = separators[0].string().text.bytes();
    style.key_separator = separators[1].string().text.bytes();
  }
  return to_json(value, style, in.budget());
}

Value filter_attr(Interpreter& in, const Value& value, const Args& args) {
  const Parameters p("attr", args, {"name"});
  in.require_defined(value, "attr");
  const Value name = to_text(p.required(0), in.budget());
  // Attributes only, never a dict's items.
  if (value.is_dict() && find_method(value, name.string().text.bytes()) < 0) return Value();
  return in.attribute(value, name.string().text.bytes());
}

struct Filter {
  std::string_view name;
  FilterFn call;
};

constexpr Filter kFilters[] = {
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"capitalize", convert_case<capitalize>},
    {"center", filter_center},
    {"d", filter_default},
    {"default", filter_default},
    {"float", filter_float},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"lower", convert_case<lower>},
    {"replace", filter_replace},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", convert_case<title_words>},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"upper", convert_case<upper>},
    {"wordcount", filter_wordcount},
};

}  // namespace

FilterFn find_filter(std::string_view name) {
  const auto* it =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](const Filter& f) { return f.name == name; });
  return it == std::end(kFilters) ? nullptr : it->call;
}

}  // namespace firesteel::jinja
