// "…%s…" % values and "…{}…".format(values): the parts that chat templates use. A format that is not the
// template's own as a whole gives a caller's text, since a caller would then say where the template's words
// go.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/builtins.h"
#include "text/jinja/output.h"

namespace firesteel::jinja {

namespace {

constexpr int kMaxWidth = 1000;

/// A conversion: %[flags][width][.precision]type.
struct Spec {
  bool left = false, zero = false, plus = false, blank = false, alternate = false;
  int width = 0;
  int precision = -1;
  char type = 's';
};

int read_number(std::string_view f, size_t* at) {
  int v = 0;
  while (*at < f.size() && f[*at] >= '0' && f[*at] <= '9') {
    v = v * 10 + (f[(*at)++] - '0');
    if (v > kMaxWidth) fail_limit("a format is too wide");
  }
  return v;
}

/// Text of a number for %d, %x, %f and their kin.
std::string number_text(const Spec& s, const Value& v) {
  char buffer[1500];
  std::string sign_flag = s.plus ? "+" : s.blank ? " " : "";
  int n = 0;
  if (s.type == 'd' || s.type == 'i' || s.type == 'u' || s.type == 'x' || s.type == 'X' || s.type == 'o') {
    if (v.is(Kind::kBigInt) && (s.type == 'd' || s.type == 'i' || s.type == 'u'))
      return std::string(v.digits());
    int64_t i = 0;
    if (v.is(Kind::kFloat) && (s.type == 'd' || s.type == 'i' || s.type == 'u')) {
      const double d = std::trunc(v.as_double());
      if (!(std::fabs(d) < 9.2e18)) fail("a number is out of range for %d");
      i = static_cast<int64_t>(d);
    } else if (v.is_integral()) {
      i = v.as_int();
    } else {
      fail(std::string("a number is required, not ") + type_name(v));
    }
    const uint64_t magnitude = i < 0 ? 0 - static_cast<uint64_t>(i) : static_cast<uint64_t>(i);
    const char* format = s.type == 'x'   ? (s.alternate ? "%#.*llx" : "%.*llx")
                         : s.type == 'X' ? (s.alternate ? "%#.*llX" : "%.*llX")
                         : s.type == 'o' ? "%.*llo"
                                         : "%.*llu";
    n = std::snprintf(buffer, sizeof buffer, format, std::max(s.precision, 1),
                      static_cast<unsigned long long>(magnitude));
    return (i < 0 ? "-" : sign_flag) + std::string(buffer, static_cast<size_t>(n));
  }
  if (!v.is_number()) fail(std::string("must be a real number, not ") + type_name(v));
  const double d = v.as_double();
  const int precision = s.precision < 0 ? 6 : s.precision;
  const char* format = s.type == 'e'   ? "%.*e"
                       : s.type == 'E' ? "%.*E"
                       : s.type == 'g' ? "%.*g"
                       : s.type == 'G' ? "%.*G"
                       : s.type == 'F' ? "%.*F"
                                       : "%.*f";
  n = std::snprintf(buffer, sizeof buffer, format, precision, std::fabs(d));
  return (std::signbit(d) && !std::isnan(d) ? "-" : sign_flag) + std::string(buffer, static_cast<size_t>(n));
}

void add_padded(const Spec& s, const MarkedText& text, int64_t length, bool trusted, TextBuilder* out) {
  const auto pad = static_cast<size_t>(std::max<int64_t>(0, s.width - length));
  if (!s.left) out->add(std::string(pad, ' '), trusted);
  if (trusted) {
    out->add(text);
  } else {
    out->add(text.bytes(), false);
  }
  if (s.left) out->add(std::string(pad, ' '), trusted);
}

void add_number(const Spec& s, const Value& v, bool trusted, TextBuilder* out) {
  std::string text = number_text(s, v);
  const auto width = static_cast<size_t>(s.width);
  if (s.zero && !s.left && text.size() < width) {
    const size_t digits = !text.empty() && (text[0] == '-' || text[0] == '+' || text[0] == ' ') ? 1 : 0;
    text.insert(digits, width - text.size(), '0');
  }
  const auto n = static_cast<int64_t>(text.size());
  add_padded(s, v.from_caller() ? MarkedText::from_caller(text) : MarkedText::trusted(text), n, trusted, out);
}

void add_text(Interpreter& in, const Spec& s, const Value& v, bool trusted, TextBuilder* out) {
  Value text = s.type == 's' ? to_text(v, in.budget()) : in.string(repr(v, in.budget()), false);
  if (s.precision >= 0) text = slice_text(text.string(), std::nullopt, s.precision, 1, in.budget());
  add_padded(s, text.string().text, length(text.string()), trusted, out);
}

}  // namespace

Value format_percent(Interpreter& in, const StringObject& format, const Value& args) {
  const std::string& f = format.text.bytes();
  const bool trusted = format.text.all_trusted(0, f.size());
  const bool is_tuple = args.is_list() && args.list().flavor == Flavor::kTuple;
  size_t used = 0;
  const auto next_value = [&]() -> Value {
    if (is_tuple) {
      if (used >= args.list().items.size()) fail("not enough arguments for format string");
      return args.list().items[used++];
    }
    if (used++ > 0) fail("not enough arguments for format string");
    return args;
  };
  TextBuilder out(in.budget());
  bool named = false;
  for (size_t at = 0; at < f.size();) {
    in.budget()->step();
    const size_t percent = std::min(f.find('%', at), f.size());
    out.add(f.substr(at, percent - at), trusted);
    at = percent + 1;
    if (percent == f.size()) break;
    std::optional<Value> value;
    if (at < f.size() && f[at] == '(') {
      const size_t close = f.find(')', at);
      if (close == std::string::npos) fail("incomplete format key");
      if (!args.is_dict()) fail("format requires a mapping");
      const Value* v = args.dict().find(std::string_view(f).substr(at + 1, close - at - 1));
      if (v == nullptr) fail("a key of the format is missing");
      value = *v;
      named = true;
      at = close + 1;
    }
    Spec s;
    for (; at < f.size() && std::string_view("-0+ #").find(f[at]) != std::string_view::npos; ++at) {
      s.left |= f[at] == '-';
      s.zero |= f[at] == '0';
      s.plus |= f[at] == '+';
      s.blank |= f[at] == ' ';
      s.alternate |= f[at] == '#';
    }
    s.width = read_number(f, &at);
    if (at < f.size() && f[at] == '.') {
      ++at;
      s.precision = read_number(f, &at);
    }
    if (at >= f.size()) fail("incomplete format");
    s.type = f[at++];
    if (s.type == '%') {
      out.add("%", trusted);
      continue;
    }
    if (!value) value = next_value();
    if (s.type == 's' || s.type == 'r') {
      add_text(in, s, *value, trusted, &out);
    } else if (std::string_view("diuxXoeEfFgG").find(s.type) != std::string_view::npos) {
      add_number(s, *value, trusted, &out);
    } else {
      fail("unsupported format character");
    }
  }
  const size_t given = is_tuple ? args.list().items.size() : 1;
  const bool may_be_unused = args.is_dict() || (args.is_list() && !is_tuple) || named;
  if (used < given && !may_be_unused) fail("not all arguments converted during string formatting");
  return out.value();
}

Value format_braces(Interpreter& in, const StringObject& format, const Args& args) {
  const std::string& f = format.text.bytes();
  const bool trusted = format.text.all_trusted(0, f.size());
  TextBuilder out(in.budget());
  size_t next_index = 0;
  for (size_t at = 0; at < f.size();) {
    in.budget()->step();
    const size_t brace = std::min(f.find_first_of("{}", at), f.size());
    out.add(f.substr(at, brace - at), trusted);
    at = brace;
    if (at == f.size()) break;
    if (at + 1 < f.size() && f[at + 1] == f[at]) {
      out.add(f.substr(at, 1), trusted);
      at += 2;
      continue;
    }
    const size_t close = f.find('}', at);
    if (f[at] == '}' || close == std::string::npos) fail("a single brace in a format string");
    std::string field = f.substr(at + 1, close - at - 1);
    at = close + 1;
    Spec s;
    if (const size_t bang = field.rfind('!'); bang != std::string::npos) {
      if (field.substr(bang) != "!r" && field.substr(bang) != "!s")
        fail("unsupported conversion in a format string");
      s.type = field[bang + 1];
      field.resize(bang);
    }
    if (field.find_first_of(":.[{") != std::string::npos)
      fail("only plain fields are supported in format strings");
    const Value* value = nullptr;
    if (field.find_first_not_of("0123456789") == std::string::npos) {
      const size_t index = field.empty() ? next_index++ : field.size() > 6 ? SIZE_MAX : std::stoul(field);
      if (index < args.positional.size()) value = &args.positional[index];
    } else {
      for (const auto& [key, v] : args.keywords)
        if (key == field) value = &v;
    }
    if (value == nullptr) fail("a field of the format string has no value");
    add_text(in, s, *value, trusted, &out);
  }
  return out.value();
}

}  // namespace firesteel::jinja
