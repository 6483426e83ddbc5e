#include "grammar/schema_items.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/json.h"
#include "grammar/number_range.h"
#include "grammar/regex.h"

namespace firesteel::grammar {

namespace {

constexpr int kMaxNesting = 300;  // of $ref, allOf and values while one conjunction is worked out

std::string percent_decoded(std::string_view s) {
  const auto hex = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
  };
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '%' && i + 2 < s.size() && hex(s[i + 1]) >= 0 && hex(s[i + 2]) >= 0) {
      out += static_cast<char>(hex(s[i + 1]) * 16 + hex(s[i + 2]));
      i += 2;
    } else {
      out += s[i];
    }
  }
  return out;
}

uint8_t type_bits(std::string_view name) {
  if (name == "null") return kNullType;
  if (name == "boolean") return kBooleanType;
  if (name == "integer") return kIntegerType;
  if (name == "number") return kIntegerType | kFractionType;
  if (name == "string") return kStringType;
  if (name == "array") return kArrayType;
  if (name == "object") return kObjectType;
  return 0;
}

uint8_t type_of(const Json& value) {
  if (value.is_null()) return kNullType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_string()) return kStringType;
  if (value.is_array()) return kArrayType;
  if (value.is_object()) return kObjectType;
  if (!value.is_number_float()) return kIntegerType;
  const auto decimal = parse_decimal(number_text(value));
  return decimal.ok() && !decimal->fraction.empty() ? kFractionType : kIntegerType;
}

}  // namespace

std::string number_text(const Json& number) {
  return is_big_integer(number) ? std::string(big_integer_digits(number)) : dump_json(number);
}

bool is_number(const Json& value) { return value.is_number() || is_big_integer(value); }

std::string SchemaItems::path(const Json* json) const {
  const auto it = paths_.find(json);
  return it == paths_.end() ? "$" : it->second;
}

void SchemaItems::fail(ErrorCode code, const Json* where, const std::string& what) {
  if (failed_) return;
  failed_ = true;
  error_ = {code, "schema at " + path(where) + ": " + what};
}

void SchemaItems::not_enforced(std::string_view keyword, const Json* where) {
  const std::string name = std::string(keyword) + " at " + path(where);
  if (std::find(unsupported_.begin(), unsupported_.end(), name) == unsupported_.end())
    unsupported_.push_back(name);
  if (!strict_ || failed_) return;
  failed_ = true;
  error_ = {ErrorCode::kUnsupported, "schema keyword '" + std::string(keyword) + "' at " + path(where) +
                                         " cannot be enforced; remove it or set strict to false"};
}

const Json* SchemaItems::array_of(const Json* schema, const char* keyword) {
  const auto it = schema->find(keyword);
  if (it == schema->end()) return nullptr;
  if (it->is_array()) return &*it;
  fail(ErrorCode::kInvalidArgument, schema, std::string("'") + keyword + "' must be an array");
  return nullptr;
}

const Json* SchemaItems::object_of(const Json* schema, const char* keyword) {
  const auto it = schema->find(keyword);
  if (it == schema->end()) return nullptr;
  if (it->is_object()) return &*it;
  fail(ErrorCode::kInvalidArgument, schema, std::string("'") + keyword + "' must be an object");
  return nullptr;
}

bool SchemaItems::count_of(const Json* schema, const char* keyword, uint32_t* value) {
  constexpr double kLargest = 1e9;
  const auto it = schema->find(keyword);
  if (it == schema->end()) return false;
  const double v = it->is_number() ? it->get<double>() : is_big_integer(*it) ? kLargest : -1;
  if (!(v >= 0) || v != static_cast<double>(static_cast<uint64_t>(std::min(v, 1e15)))) {
    fail(ErrorCode::kInvalidArgument, schema, std::string("'") + keyword + "' must be a whole number from 0");
    return false;
  }
  *value = static_cast<uint32_t>(std::min(v, kLargest));
  return true;
}

const Json* SchemaItems::resolve(const std::string& reference, const Json* where) {
  if (reference.empty() || reference[0] != '#' || (reference.size() > 1 && reference[1] != '/')) {
    not_enforced("$ref", where);
    return nullptr;
  }
  const Json* at = root_;
  std::string path = "$";
  const std::string pointer = percent_decoded(std::string_view(reference).substr(1));
  for (size_t from = 1; from <= pointer.size() && !pointer.empty();) {
    const size_t to = std::min(pointer.find('/', from), pointer.size());
    std::string name;
    for (size_t i = from; i < to; ++i) {
      const bool escaped =
          pointer[i] == '~' && i + 1 < to && (pointer[i + 1] == '0' || pointer[i + 1] == '1');
      name += escaped ? (pointer[++i] == '0' ? '~' : '/') : pointer[i];
    }
    from = to + 1;
    path += "." + name;
    const Json* next = nullptr;
    if (at->is_object()) {
      if (const auto it = at->find(name); it != at->end()) next = &*it;
    } else if (at->is_array() && !name.empty() && name.size() < 9 &&
               name.find_first_not_of("0123456789") == std::string::npos) {
      const size_t index = std::stoul(name);
      if (index < at->size()) next = &(*at)[index];
    }
    if (next == nullptr) {
      fail(ErrorCode::kInvalidArgument, where, "'$ref' points to nothing: " + reference.substr(0, 200));
      return nullptr;
    }
    at = next;
  }
  return place(*at, path);
}

void SchemaItems::check_keywords(const Json* schema) {
  if (!checked_.try_emplace(schema, true).second) return;
  static constexpr const char* kNever[] = {
      "not",      "if",           "dependentRequired", "dependentSchemas",
      "contains", "dependencies", "$dynamicRef",       "$recursiveRef"};
  for (const char* keyword : kNever) {
    if (schema->contains(keyword)) not_enforced(keyword, schema);
  }
  if (const auto it = schema->find("uniqueItems"); it != schema->end() && *it != Json(false))
    not_enforced("uniqueItems", schema);
}

void SchemaItems::expand(const SchemaItem& item, Conjunction* out, bool* never,
                         std::vector<const Json*>* path, int depth) {
  if (!ok() || !budget_->spend(16)) return;
  const Json* json = item.json;
  const auto add = [out](const SchemaItem& i) {
    if (std::find(out->begin(), out->end(), i) == out->end()) out->push_back(i);
  };
  if (item.kind != SchemaItem::Kind::kSchema) return add(item);
  if (json->is_boolean()) {
    *never |= !json->get<bool>();
    return;
  }
  if (!json->is_object())
    return fail(ErrorCode::kInvalidArgument, json, "a schema must be an object or a boolean");
  if (std::find(path->begin(), path->end(), json) != path->end())
    return fail(ErrorCode::kInvalidArgument, json, "the schema refers to itself without end");
  if (depth > kMaxNesting) return fail(ErrorCode::kLimit, json, "references are nested too deeply");
  check_keywords(json);
  add({json, SchemaItem::Kind::kPlain});
  path->push_back(json);
  if (const auto it = json->find("$ref"); it != json->end()) {
    if (!it->is_string()) return fail(ErrorCode::kInvalidArgument, json, "'$ref' must be a string");
    if (const Json* target = resolve(it->get_ref<const std::string&>(), json); target != nullptr)
      expand({target}, out, never, path, depth + 1);
  }
  if (const Json* all = array_of(json, "allOf"); all != nullptr) {
    for (size_t i = 0; i < all->size(); ++i)
      expand({place((*all)[i], this->path(json) + ".allOf[" + std::to_string(i) + "]")}, out, never, path,
             depth + 1);
  }
  path->pop_back();
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const Json* branches = array_of(json, keyword);
    if (branches == nullptr) continue;
    place(*branches, this->path(json) + "." + keyword);
    for (size_t i = 0; i < branches->size(); ++i)
      place((*branches)[i], this->path(branches) + "[" + std::to_string(i) + "]");
    if (keyword[0] == 'o' && checked_.try_emplace(branches, true).second) {
      constexpr size_t kMaxPairs = 64;
      bool certain = branches->size() <= kMaxPairs;
      for (size_t i = 0; certain && i < branches->size(); ++i) {
        for (size_t j = 0; certain && j < i; ++j) certain = disjoint(&(*branches)[i], &(*branches)[j]);
      }
      if (!certain) not_enforced("oneOf", json);
    }
    add({branches, SchemaItem::Kind::kOneBranch});
  }
}

Conjunction SchemaItems::flatten(const Conjunction& items, bool* never) {
  Conjunction out;
  std::vector<const Json*> path;
  for (const SchemaItem& item : items) expand(item, &out, never, &path, 0);
  return out;
}

uint8_t SchemaItems::types(const Conjunction& plain, bool* said) {
  uint8_t all = kAllTypes;
  for (const SchemaItem& item : plain) {
    if (item.kind != SchemaItem::Kind::kPlain) continue;
    const auto it = item.json->find("type");
    if (it == item.json->end()) continue;
    *said = true;
    uint8_t mine = 0;
    const auto take = [&](const Json& name) {
      const uint8_t bits = name.is_string() ? type_bits(name.get_ref<const std::string&>()) : 0;
      if (bits == 0) fail(ErrorCode::kInvalidArgument, item.json, "'type' is none of the known types");
      mine |= bits;
    };
    if (it->is_array()) {
      for (const Json& name : *it) take(name);
    } else {
      take(*it);
    }
    all &= mine;
  }
  return all;
}

uint8_t SchemaItems::implied_types(const Conjunction& plain) {
  static const std::pair<const char*, uint8_t> kAbout[] = {{"properties", kObjectType},
                                                           {"required", kObjectType},
                                                           {"additionalProperties", kObjectType},
                                                           {"patternProperties", kObjectType},
                                                           {"propertyNames", kObjectType},
                                                           {"minProperties", kObjectType},
                                                           {"maxProperties", kObjectType},
                                                           {"items", kArrayType},
                                                           {"prefixItems", kArrayType},
                                                           {"minItems", kArrayType},
                                                           {"maxItems", kArrayType},
                                                           {"minLength", kStringType},
                                                           {"maxLength", kStringType},
                                                           {"pattern", kStringType},
                                                           {"format", kStringType},
                                                           {"minimum", kIntegerType | kFractionType},
                                                           {"maximum", kIntegerType | kFractionType},
                                                           {"exclusiveMinimum", kIntegerType | kFractionType},
                                                           {"exclusiveMaximum", kIntegerType | kFractionType},
                                                           {"multipleOf", kIntegerType | kFractionType},
                                                           {"unevaluatedProperties", kObjectType}};
  uint8_t bits = 0;
  for (const SchemaItem& item : plain) {
    if (item.kind != SchemaItem::Kind::kPlain) continue;
    for (const auto& [keyword, about] : kAbout) {
      if (item.json->contains(keyword)) bits |= about;
    }
  }
  return bits == 0 ? static_cast<uint8_t>(kAllTypes) : bits;
}

bool SchemaItems::matches_pattern(const std::string& pattern, const std::string& text, const Json* where) {
  ExprPool pool;
  const auto expr = parse_regex(pattern, RegexMatch::kSearch, &pool);
  if (!expr.ok()) {
    fail(expr.error().code, where, expr.error().message);
    return false;
  }
  return regular(pool, *expr, Encoding::kUtf8, budget_).matches(text);
}

bool SchemaItems::satisfies(const Json& value, const Conjunction& items, int depth) {
  if (depth > kMaxNesting || !budget_->spend(16)) return false;
  bool never = false;
  for (const SchemaItem& item : flatten(items, &never)) {
    if (item.kind == SchemaItem::Kind::kPlain) {
      if (!plain_satisfied(value, item.json, depth)) return false;
      continue;
    }
    const bool one = std::any_of(item.json->begin(), item.json->end(), [&](const Json& branch) {
      return satisfies(value, {{&branch}}, depth + 1);
    });
    if (!one) return false;
  }
  return !never && ok();
}

bool SchemaItems::plain_satisfied(const Json& value, const Json* schema, int depth) {
  bool said = false;
  if ((types({{schema, SchemaItem::Kind::kPlain}}, &said) & type_of(value)) == 0) return false;
  if (const auto it = schema->find("const"); it != schema->end() && *it != value) return false;
  if (const Json* values = array_of(schema, "enum"); values != nullptr) {
    if (std::find(values->begin(), values->end(), value) == values->end()) return false;
  }
  uint32_t bound = 0;
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const auto length = static_cast<uint32_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
    if (count_of(schema, "minLength", &bound) && length < bound) return false;
    if (count_of(schema, "maxLength", &bound) && length > bound) return false;
    const auto it = schema->find("pattern");
    if (it != schema->end() && it->is_string() && !matches_pattern(it->get<std::string>(), text, schema))
      return false;
  }
  if (is_number(value)) {
    const auto number = parse_decimal(number_text(value));
    for (const auto& [keyword, sign, strictly] : {std::tuple{"minimum", 1, false},
                                                  {"exclusiveMinimum", 1, true},
                                                  {"maximum", -1, false},
                                                  {"exclusiveMaximum", -1, true}}) {
      const auto it = schema->find(keyword);
      if (it == schema->end() || !is_number(*it)) continue;
      const auto limit = parse_decimal(number_text(*it));
      if (!number.ok() || !limit.ok()) return false;
      const int c = compare(*number, *limit) * sign;
      if (c < 0 || (c == 0 && strictly)) return false;
    }
  }
  if (value.is_array()) {
    if (count_of(schema, "minItems", &bound) && value.size() < bound) return false;
    if (count_of(schema, "maxItems", &bound) && value.size() > bound) return false;
    const auto prefix = schema->find("prefixItems"), items = schema->find("items");
    const size_t fixed = prefix != schema->end() && prefix->is_array() ? prefix->size() : 0;
    for (size_t i = 0; i < value.size(); ++i) {
      const Json* own = i < fixed                                      ? &(*prefix)[i]
                        : items != schema->end() && !items->is_array() ? &*items
                                                                       : nullptr;
      if (own != nullptr && !satisfies(value[i], {{own}}, depth + 1)) return false;
    }
  }
  return !value.is_object() || object_satisfied(value, schema, depth);
}

bool SchemaItems::object_satisfied(const Json& value, const Json* schema, int depth) {
  uint32_t bound = 0;
  if (count_of(schema, "minProperties", &bound) && value.size() < bound) return false;
  if (count_of(schema, "maxProperties", &bound) && value.size() > bound) return false;
  if (const Json* required = array_of(schema, "required"); required != nullptr) {
    for (const Json& name : *required) {
      if (name.is_string() && !value.contains(name.get<std::string>())) return false;
    }
  }
  const Json* properties = object_of(schema, "properties");
  const Json* patterns = object_of(schema, "patternProperties");
  const auto others = schema->find("additionalProperties");
  for (const auto& [name, member] : value.items()) {
    bool known = false;
    if (properties != nullptr) {
      if (const auto it = properties->find(name); it != properties->end()) {
        known = true;
        if (!satisfies(member, {{&*it}}, depth + 1)) return false;
      }
    }
    if (patterns != nullptr) {
      for (const auto& [pattern, sub] : patterns->items()) {
        if (!matches_pattern(pattern, name, schema)) continue;
        known = true;
        if (!satisfies(member, {{&sub}}, depth + 1)) return false;
      }
    }
    if (!known && others != schema->end() && !satisfies(member, {{&*others}}, depth + 1)) return false;
  }
  return true;
}

bool SchemaItems::disjoint(const Json* a, const Json* b) {
  // Facts of one branch: its types, and the finite sets of values of itself and of its required members.
  struct Facts {
    uint8_t types = kAllTypes;
    bool finite = false;
    std::vector<Json> values;
    std::map<std::string, std::vector<Json>> members;
    std::set<std::string> required;
  };
  const auto values_of = [](const Json& schema, std::vector<Json>* out) {
    if (!schema.is_object()) return false;
    if (const auto it = schema.find("const"); it != schema.end()) {
      out->push_back(*it);
      return true;
    }
    const auto it = schema.find("enum");
    if (it == schema.end() || !it->is_array()) return false;
    out->assign(it->begin(), it->end());
    return true;
  };
  const auto gather = [&](const Json* schema) {
    Facts facts;
    bool never = false, said = false;
    std::vector<const Json*> path;
    Conjunction flat;
    expand({schema}, &flat, &never, &path, 1);
    facts.types = never ? 0 : types(flat, &said);
    if (!said) facts.types &= implied_types(flat);
    for (const SchemaItem& item : flat) {
      if (item.kind != SchemaItem::Kind::kPlain) continue;
      std::vector<Json> values;
      if (values_of(*item.json, &values)) {
        facts.finite = true;
        facts.values = values;
      }
      if (const auto it = item.json->find("required"); it != item.json->end() && it->is_array()) {
        for (const Json& name : *it) {
          if (name.is_string()) facts.required.insert(name.get<std::string>());
        }
      }
      const auto properties = item.json->find("properties");
      if (properties == item.json->end() || !properties->is_object()) continue;
      for (const auto& [name, sub] : properties->items()) {
        std::vector<Json> of_member;
        if (values_of(sub, &of_member)) facts.members[name] = of_member;
      }
    }
    return facts;
  };
  const auto apart = [](const std::vector<Json>& x, const std::vector<Json>& y) {
    return std::none_of(x.begin(), x.end(),
                        [&](const Json& v) { return std::find(y.begin(), y.end(), v) != y.end(); });
  };
  const Facts x = gather(a), y = gather(b);
  if (!ok()) return false;
  if ((x.types & y.types) == 0) return true;
  if (x.finite && y.finite) return apart(x.values, y.values);
  // Both can only be objects, and a member that both must have tells them apart.
  if ((x.types & y.types) != kObjectType) return false;
  return std::any_of(x.members.begin(), x.members.end(), [&](const auto& member) {
    const auto other = y.members.find(member.first);
    return other != y.members.end() && x.required.contains(member.first) &&
           y.required.contains(member.first) && apart(member.second, other->second);
  });
}

}  // namespace firesteel::grammar
