#include "text/jinja/output.h"

#include <algorithm>
#include <cmath>

#include "base/json_writer.h"

namespace firesteel::jinja {

namespace {

constexpr int kMaxReprDepth = 2 * kMaxValueDepth;  // namespaces may hold themselves

void append_float(double d, std::string* out) {
  if (std::isnan(d)) {
    out->append("nan");
  } else if (std::isinf(d)) {
    out->append(d < 0 ? "-inf" : "inf");
  } else {
    append_python_float(d, out);
  }
}

void append_escape(uint32_t c, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  const bool byte = c<0x100, wide = c> 0xFFFF;
  out->append(byte ? "\\x" : wide ? "\\U" : "\\u");
  for (int shift = byte ? 4 : wide ? 28 : 12; shift >= 0; shift -= 4) out->push_back(kHex[c >> shift & 0xF]);
}

void append_quoted(std::string_view s, std::string* out) {
  const char quote =
      s.find('\'') != std::string_view::npos && s.find('"') == std::string_view::npos ? '"' : '\'';
  out->push_back(quote);
  for (size_t at = 0; at < s.size();) {
    const CodePoint c = decode_at(s, at);
    if (c.value == static_cast<unsigned char>(quote) || c.value == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c.value));
    } else if (c.value == '\n' || c.value == '\r' || c.value == '\t') {
      out->append(c.value == '\n' ? "\\n" : c.value == '\r' ? "\\r" : "\\t");
    } else if (is_printable(c.value)) {
      out->append(s.substr(at, c.size));
    } else {
      append_escape(c.value, out);
    }
    at += c.size;
  }
  out->push_back(quote);
}

class Repr {
 public:
  explicit Repr(Budget* budget) : budget_(budget) {}

  void write(const Value& v, int depth) {
    if (depth > kMaxReprDepth) fail_limit("values are nested too deeply to print");
    budget_->step_bytes(out.size() - counted_);
    counted_ = out.size();
    budget_->check_text(out.size());
    switch (v.kind()) {
      case Kind::kUndefined:
        out += "Undefined";
        return;
      case Kind::kNone:
        out += "None";
        return;
      case Kind::kBool:
        out += v.as_int() != 0 ? "True" : "False";
        return;
      case Kind::kInt:
        out += std::to_string(v.as_int());
        return;
      case Kind::kBigInt:
        out += v.digits();
        return;
      case Kind::kFloat:
        return append_float(v.as_double(), &out);
      case Kind::kString:
        budget_->check_text(out.size() + v.string().text.size());
        return append_quoted(v.string().text.bytes(), &out);
      case Kind::kList:
        return write_list(v.list(), depth);
      case Kind::kDict:
        return write_dict(v.dict().items, depth);
      case Kind::kNamespace: {
        out += "<Namespace {";
        bool first = true;
        for (const auto& [name, value] : v.name_space().attributes) {
          if (!std::exchange(first, false)) out += ", ";
          append_quoted(name, &out);
          out += ": ";
          write(value, depth + 1);
        }
        out += "}>";
        return;
      }
      case Kind::kMacro:
        out += "<Macro>";
        return;
      case Kind::kFunction:
      case Kind::kMethod:
        out += "<function>";
        return;
      case Kind::kLoop:
        out += "<LoopContext>";
        return;
    }
  }

  std::string out;

 private:
  void write_list(const ListObject& list, int depth) {
    if (list.flavor == Flavor::kGenerator) {
      out += "<generator>";
      return;
    }
    const bool tuple = list.flavor == Flavor::kTuple;
    if (list.flavor == Flavor::kView) out += "dict_view(";
    out.push_back(tuple ? '(' : '[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i != 0) out += ", ";
      write(list.items[i], depth + 1);
    }
    if (tuple && list.items.size() == 1) out.push_back(',');
    out.push_back(tuple ? ')' : ']');
    if (list.flavor == Flavor::kView) out.push_back(')');
  }

  void write_dict(const std::vector<std::pair<Value, Value>>& items, int depth) {
    out.push_back('{');
    bool first = true;
    for (const auto& [key, value] : items) {
      if (!std::exchange(first, false)) out += ", ";
      write(key, depth + 1);
      out += ": ";
      write(value, depth + 1);
    }
    out.push_back('}');
  }

  Budget* budget_;
  size_t counted_ = 0;
};

class JsonText {
 public:
  JsonText(const JsonStyle& style, Budget* budget) : style_(style), budget_(budget), writer_(style, &out) {}

  void write(const Value& v) {
    budget_->step_bytes(out.size() - counted_);
    counted_ = out.size();
    budget_->check_text(out.size());
    switch (v.kind()) {
      case Kind::kNone:
        return writer_.raw("null");
      case Kind::kBool:
        return writer_.raw(v.as_int() != 0 ? "true" : "false");
      case Kind::kInt:
        return writer_.integer(v.as_int());
      case Kind::kBigInt:
        return writer_.raw(v.digits());
      case Kind::kFloat:
        return writer_.real(v.as_double());
      case Kind::kString:
        budget_->check_text(out.size() + v.string().text.size());
        return writer_.string(v.string().text.bytes());
      case Kind::kList:
        if (v.list().flavor != Flavor::kList && v.list().flavor != Flavor::kTuple) refuse(v);
        writer_.begin_array();
        for (const Value& item : v.list().items) write(item);
        return writer_.end_array();
      case Kind::kDict:
        return write_dict(v.dict());
      default:
        refuse(v);
    }
  }

  std::string out;

 private:
  [[noreturn]] void refuse(const Value& v) {
    fail(std::string("Object of type ") + type_name(v) + " is not JSON serializable");
  }

  static std::string key_text(const Value& key) {
    std::string text;
    switch (key.kind()) {
      case Kind::kString:
        return key.string().text.bytes();
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return key.as_int() != 0 ? "true" : "false";
      case Kind::kInt:
        return std::to_string(key.as_int());
      case Kind::kBigInt:
        return std::string(key.digits());
      case Kind::kFloat:
        append_python_float(key.as_double(), &text);
        return text;
      default:
        fail(std::string("keys must be str, int, float, bool or None, not ") + type_name(key));
    }
  }

  void write_dict(const DictObject& dict) {
    std::vector<const std::pair<Value, Value>*> order;
    order.reserve(dict.items.size());
    for (const auto& item : dict.items) order.push_back(&item);
    if (style_.sort_keys)
      std::stable_sort(order.begin(), order.end(), [this](const auto* a, const auto* b) {
        return compare(a->first, b->first, budget_) < 0;
      });
    writer_.begin_object();
    for (const auto* item : order) {
      writer_.key(key_text(item->first));
      write(item->second);
    }
    writer_.end_object();
  }

  const JsonStyle& style_;
  Budget* budget_;
  JsonWriter writer_;
  size_t counted_ = 0;
};

}  // namespace

std::string repr(const Value& value, Budget* budget) {
  Repr r(budget);
  r.write(value, 0);
  budget->check_text(r.out.size());
  return std::move(r.out);
}

void print(const Value& value, TextBuilder* out) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return;
    case Kind::kString:
      return out->add(value.string().text);
    case Kind::kInt:
      return out->add(std::to_string(value.as_int()), !value.from_caller());
    default:
      return out->add(repr(value, out->budget()), false);
  }
}

Value to_text(const Value& value, Budget* budget) {
  if (value.is_string()) return value;
  TextBuilder out(budget);
  print(value, &out);
  return out.value();
}

Value to_json(const Value& value, const JsonStyle& style, Budget* budget) {
  JsonText text(style, budget);
  text.write(value);
  return make_string(budget, text.out, false);
}

}  // namespace firesteel::jinja
