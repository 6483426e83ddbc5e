#include "text/tool_schema.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace firesteel {

using nlohmann::ordered_json;

namespace {

constexpr int kMaxReferences = 16;  // a schema may refer to itself
constexpr int kMaxBranches = 64;

enum TypeBit : unsigned {
  kString = 1,
  kInteger = 2,
  kNumber = 4,  // includes kInteger
  kBoolean = 8,
  kNull = 16,
  kArray = 32,
  kObject = 64,
};

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'; }

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && is_blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_blank(s.back())) s.remove_suffix(1);
  return s;
}

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

const ordered_json* member(const ordered_json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() ? nullptr : &*it;
}

unsigned bit_of_name(const ordered_json& name) {
  if (!name.is_string()) return 0;
  static const std::pair<const char*, unsigned> kNames[] = {
      {"string", kString},   {"integer", kInteger}, {"number", kNumber | kInteger},
      {"boolean", kBoolean}, {"null", kNull},       {"array", kArray},
      {"object", kObject}};
  for (const auto& [n, bit] : kNames)
    if (name == n) return bit;
  return 0;
}

unsigned bit_of_value(const ordered_json& v) {
  if (v.is_string()) return kString;
  if (v.is_number_integer() || is_big_integer(v)) return kInteger;
  if (v.is_number_float()) return kNumber;
  if (v.is_boolean()) return kBoolean;
  if (v.is_null()) return kNull;
  return v.is_array() ? kArray : kObject;
}

/// The schema that `schema` stands for: follows references into the tool's own document.
const ordered_json* resolved(const ordered_json& root, const ordered_json* schema) {
  for (int hop = 0; schema && hop < kMaxReferences; ++hop) {
    const ordered_json* ref = member(*schema, "$ref");
    if (!ref) return schema;
    if (!ref->is_string()) return nullptr;
    const auto& text = ref->get_ref<const std::string&>();
    if (text.empty() || text[0] != '#') return nullptr;
    // A JSON pointer, walked by hand: a bad one is no error, only a schema that is not known.
    schema = &root;
    for (size_t at = 1; at < text.size() && schema;) {
      if (text[at] != '/') return nullptr;
      const size_t stop = std::min(text.find('/', at + 1), text.size());
      std::string part = text.substr(at + 1, stop - at - 1);
      for (const auto& [from, to] : {std::pair("~1", "/"), std::pair("~0", "~")})
        for (size_t p = 0; (p = part.find(from, p)) != part.npos; ++p) part.replace(p, 2, to);
      schema = member(*schema, part.c_str());
      at = stop;
    }
  }
  return nullptr;
}

/// The types a schema allows; 0: not known.
unsigned types_of(const ordered_json& root, const ordered_json* schema, int& budget) {
  schema = resolved(root, schema);
  if (!schema || !schema->is_object() || --budget < 0) return 0;
  if (const ordered_json* type = member(*schema, "type")) {
    if (type->is_string()) return bit_of_name(*type);
    unsigned bits = 0;
    for (const ordered_json& t : *type) bits |= bit_of_name(t);
    return bits;
  }
  for (const char* name : {"anyOf", "oneOf"}) {
    const ordered_json* list = member(*schema, name);
    if (!list || !list->is_array() || list->empty()) continue;
    unsigned bits = 0;
    for (const ordered_json& branch : *list) {
      const unsigned b = types_of(root, &branch, budget);
      if (b == 0) return 0;
      bits |= b;
    }
    return bits;
  }
  if (const ordered_json* list = member(*schema, "allOf"); list && list->is_array()) {
    unsigned bits = 0;
    for (const ordered_json& branch : *list) {
      const unsigned b = types_of(root, &branch, budget);
      if (b != 0) bits = bits == 0 ? b : bits & b;
    }
    if (bits != 0) return bits;
  }
  if (const ordered_json* list = member(*schema, "enum"); list && list->is_array()) {
    unsigned bits = 0;
    for (const ordered_json& v : *list) bits |= bit_of_value(v);
    return bits;
  }
  if (const ordered_json* value = member(*schema, "const")) return bit_of_value(*value);
  return 0;
}

/// The member of `enum`, or the `const`, that the text names: as its own text, or as its JSON.
std::optional<ordered_json> listed_value(const ordered_json& schema, std::string_view text) {
  const std::string_view inner = trimmed(text);
  const auto names = [&](const ordered_json& v) { return dump_json(v) == inner; };
  if (const ordered_json* list = member(schema, "enum"); list && list->is_array()) {
    for (const ordered_json& v : *list)
      if (v.is_string() && v.get_ref<const std::string&>() == text) return v;
    for (const ordered_json& v : *list)
      if (names(v)) return v;
  }
  if (const ordered_json* v = member(schema, "const")) {
    if ((v->is_string() && v->get_ref<const std::string&>() == text) || names(*v)) return *v;
  }
  return std::nullopt;
}

/// `text` with the closing brackets that it lacks; nullopt when it lacks none or is not JSON so far.
std::optional<std::string> closed(std::string_view text) {
  std::string closers;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (closers.size() >= static_cast<size_t>(kMaxJsonDepth)) return std::nullopt;
      closers.push_back(c == '{' ? '}' : ']');
    } else if (c == '}' || c == ']') {
      if (closers.empty() || closers.back() != c) return std::nullopt;
      closers.pop_back();
    }
  }
  if (in_string || closers.empty()) return std::nullopt;
  return std::string(text) + std::string(closers.rbegin(), closers.rend());
}

/// A JSON value as one of the allowed types; an integral float becomes an integer where only integers are
/// allowed.
std::optional<ordered_json> fitted(ordered_json v, unsigned allowed) {
  if (bit_of_value(v) & allowed) return v;
  if (!v.is_number_float() || !(allowed & kInteger)) return std::nullopt;
  const double d = v.get<double>();
  constexpr double kExact = 9007199254740992;  // every integer up to here is a double
  if (d != std::floor(d) || std::abs(d) > kExact) return std::nullopt;
  return ordered_json(static_cast<int64_t>(d));
}

std::optional<ordered_json> as_types(std::string_view text, unsigned allowed) {
  const std::string_view inner = trimmed(text);
  if (auto v = parse_json(inner); v.ok()) {
    if (auto fit = fitted(*v, allowed)) return fit;
    if (v->is_string()) {  // a quoted number, boolean, list …
      const std::string quoted = v->get<std::string>();
      if (auto again = parse_json(trimmed(quoted)); again.ok() && !again->is_string())
        if (auto fit = fitted(*std::move(again), allowed)) return fit;
    }
  }
  if (allowed & (kArray | kObject)) {
    if (const auto whole = closed(inner))
      if (auto v = parse_json(*whole); v.ok())
        if (auto fit = fitted(*std::move(v), allowed & (kArray | kObject))) return fit;
  }
  if (inner == "True" && (allowed & kBoolean)) return ordered_json(true);
  if (inner == "False" && (allowed & kBoolean)) return ordered_json(false);
  if (inner == "None" && (allowed & kNull)) return ordered_json(nullptr);
  return std::nullopt;
}

}  // namespace

struct ToolSet::Impl {
  struct Tool {
    std::string name, lower_name;
    ordered_json parameters;
  };
  std::vector<Tool> tools;

  /// What a tool's schema says of argument `key`; null: nothing.
  const ordered_json* property(int tool, std::string_view key) const {
    if (tool < 0) return nullptr;
    const ordered_json& root = tools[static_cast<size_t>(tool)].parameters;
    const ordered_json* schema = resolved(root, &root);
    const ordered_json* properties = schema ? member(*schema, "properties") : nullptr;
    return resolved(root, properties ? member(*properties, std::string(key).c_str()) : nullptr);
  }
  unsigned types(int tool, const ordered_json* property) const {
    int budget = kMaxBranches;
    return types_of(tools[static_cast<size_t>(tool)].parameters, property, budget);
  }
};

ToolSet::ToolSet(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ToolSet::~ToolSet() = default;

std::shared_ptr<const ToolSet> ToolSet::create(const ordered_json& tools) {
  auto impl = std::make_unique<Impl>();
  if (tools.is_array()) {
    for (const ordered_json& entry : tools) {
      const ordered_json* function = member(entry, "function");
      const ordered_json& tool = function ? *function : entry;
      const ordered_json* name = member(tool, "name");
      if (!name || !name->is_string()) continue;
      const ordered_json* parameters = member(tool, "parameters");
      const auto& text = name->get_ref<const std::string&>();
      impl->tools.push_back({text, lower(text), parameters ? *parameters : ordered_json()});
    }
  }
  return std::shared_ptr<const ToolSet>(new ToolSet(std::move(impl)));
}

bool ToolSet::empty() const { return impl_->tools.empty(); }

int ToolSet::find(std::string_view name) const {
  const auto& tools = impl_->tools;
  for (size_t i = 0; i < tools.size(); ++i)
    if (tools[i].name == name) return static_cast<int>(i);
  const std::string wanted = lower(name);
  for (size_t i = 0; i < tools.size(); ++i)
    if (tools[i].lower_name == wanted) return static_cast<int>(i);
  return -1;
}

const std::string& ToolSet::name(int tool) const { return impl_->tools[static_cast<size_t>(tool)].name; }

bool ToolSet::has_required(int tool, const ordered_json& arguments) const {
  const ordered_json& root = impl_->tools[static_cast<size_t>(tool)].parameters;
  const ordered_json* schema = resolved(root, &root);
  const ordered_json* required = schema ? member(*schema, "required") : nullptr;
  if (!required || !required->is_array()) return true;
  return std::all_of(required->begin(), required->end(), [&](const ordered_json& key) {
    return !key.is_string() || arguments.contains(key.get_ref<const std::string&>());
  });
}

ordered_json ToolSet::value(int tool, std::string_view key, std::string_view text) const {
  unsigned allowed = 0;
  if (const ordered_json* property = impl_->property(tool, key)) {
    if (auto listed = listed_value(*property, text)) return *listed;
    allowed = impl_->types(tool, property);
  }
  if (allowed & kString) {
    if ((allowed & kNull) && trimmed(text) == "null") return nullptr;
    return std::string(text);
  }
  if (allowed != 0) {
    if (auto typed = as_types(text, allowed)) return *std::move(typed);
    return std::string(text);
  }
  auto any = parse_json(trimmed(text));
  if (any.ok() && !any->is_string()) return std::move(any).value();
  return std::string(text);
}

bool ToolSet::is_text(int tool, std::string_view key) const {
  const ordered_json* property = impl_->property(tool, key);
  if (!property || member(*property, "enum") || member(*property, "const")) return false;
  const unsigned allowed = impl_->types(tool, property);
  return (allowed & kString) && !(allowed & kNull);
}

}  // namespace firesteel
