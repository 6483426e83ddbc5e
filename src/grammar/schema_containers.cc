// Objects and arrays of SchemaRules.
#include <algorithm>
#include <set>

#include "base/json.h"
#include "grammar/regex.h"
#include "grammar/schema_rules.h"

namespace firesteel::grammar {

namespace {

constexpr uint64_t kMaxPlaces = 50'000;  // members or items times counts that need a state each

/// The schema of members that an item does not name: additionalProperties, or where that is absent
/// unevaluatedProperties. Null: nothing is said.
const Json* others_of(const Json* schema) {
  for (const char* keyword : {"additionalProperties", "unevaluatedProperties"}) {
    if (const auto it = schema->find(keyword); it != schema->end()) return &*it;
  }
  return nullptr;
}

bool is_false(const Json& schema) { return schema.is_boolean() && !schema.get<bool>(); }

}  // namespace

/// Declared names in their order, then names that are only required.
std::vector<std::string> SchemaRules::member_names(const Conjunction& plain, std::vector<bool>* required) {
  std::vector<std::string> names;
  std::map<std::string, size_t> index;
  const auto add = [&](const std::string& name) {
    const auto [it, fresh] = index.try_emplace(name, names.size());
    if (fresh) names.push_back(name);
    return it->second;
  };
  for (const SchemaItem& item : plain) {
    if (const Json* properties = items_.object_of(item.json, "properties"); properties != nullptr) {
      for (const auto& [name, schema] : properties->items()) add(name);
    }
  }
  std::set<size_t> needed;
  for (const SchemaItem& item : plain) {
    const auto it = item.json->find("required");
    if (it == item.json->end() || it->is_boolean()) continue;  // draft 3 wrote a boolean
    const Json* list = items_.array_of(item.json, "required");
    if (list == nullptr) continue;
    for (const Json& name : *list) {
      if (name.is_string()) {
        needed.insert(add(name.get<std::string>()));
      } else {
        items_.fail(ErrorCode::kInvalidArgument, item.json, "'required' must list names");
      }
    }
  }
  required->assign(names.size(), false);
  for (size_t i : needed) (*required)[i] = true;
  return names;
}

/// Everything that the items say about one member; false: it may not be there.
bool SchemaRules::member_value(const Conjunction& plain, const std::string& name, Conjunction* value) {
  for (const SchemaItem& item : plain) {
    const std::string path = items_.path(item.json);
    bool named = false;
    const auto add = [&](const Json& schema, const std::string& where) {
      named = true;
      value->push_back({items_.place(schema, path + where)});
      return !is_false(schema);
    };
    if (const auto it = item.json->find("properties"); it != item.json->end()) {
      const auto own = it->find(name);
      if (own != it->end() && !add(*own, ".properties." + name)) return false;
    }
    if (const Json* patterns = items_.object_of(item.json, "patternProperties"); patterns != nullptr) {
      for (const auto& [pattern, schema] : patterns->items()) {
        if (items_.matches_pattern(pattern, name, item.json) && !add(schema, ".patternProperties." + pattern))
          return false;
      }
    }
    if (const Json* others = others_of(item.json); !named && others != nullptr) {
      if (!add(*others, ".additionalProperties")) return false;
    }
    if (const Json* rule = sub(item.json, "propertyNames");
        rule != nullptr && !items_.satisfies(name, {{rule}}))
      return false;
  }
  return true;
}

std::vector<SchemaRules::Key> SchemaRules::other_members(const Conjunction& plain,
                                                         const std::vector<std::string>& names) {
  constexpr size_t kMaxPatterns = 4;
  struct Pattern {
    const Json* owner;
    const Json* schema;
    Automaton names;
  };
  CompileBudget* budget = builder_->budget();
  std::vector<Pattern> patterns;
  bool open = false;
  std::vector<const Json*> name_rules;
  for (const SchemaItem& item : plain) {
    if (const Json* others = others_of(item.json); others != nullptr) open |= !is_false(*others);
    if (const Json* rule = sub(item.json, "propertyNames"); rule != nullptr) name_rules.push_back(rule);
    const Json* own = items_.object_of(item.json, "patternProperties");
    if (own == nullptr) continue;
    for (const auto& [pattern, schema] : own->items()) {
      const auto expr = parse_regex(pattern, RegexMatch::kSearch, pool_);
      if (!expr.ok() && expr.error().code == ErrorCode::kUnsupported) {
        items_.not_enforced("patternProperties", item.json);
      } else if (!expr.ok()) {
        items_.fail(expr.error().code, item.json, expr.error().message);
      } else {
        items_.place(schema, items_.path(item.json) + ".patternProperties." + pattern);
        patterns.push_back({item.json, &schema, regular(*pool_, *expr, Encoding::kJson, budget)});
      }
    }
  }
  if (!items_.ok() || (patterns.empty() && !open)) return {};
  if (patterns.size() > kMaxPatterns) {
    items_.not_enforced("patternProperties", plain.front().json);
    return {};
  }
  const bool any_name = patterns.empty() && names.empty() && name_rules.empty();
  Automaton base;
  if (!any_name) {
    const ExprId any = pool_->repeat(pool_->chars(CharSet::all()), 0, kUnbounded);
    base = regular(*pool_, any, Encoding::kJson, budget);
    for (const Json* rule : name_rules) {
      // Names are strings: what the schema says about strings decides.
      bool never = false;
      const Conjunction flat = items_.flatten({{rule}}, &never);
      Automaton allowed;
      std::vector<ExprId> exprs;
      uint32_t min = 0, max = kUnbounded;
      bool finite = false, branches = false;
      std::vector<ExprId> values;
      for (const SchemaItem& item : flat) {
        branches |= item.kind == SchemaItem::Kind::kOneBranch;
        if (item.kind != SchemaItem::Kind::kPlain) continue;
        for (const char* keyword : {"enum", "const"}) {
          const auto it = item.json->find(keyword);
          if (it == item.json->end()) continue;
          finite = true;
          const auto list = it->is_array() && keyword[0] == 'e' ? *it : Json::array({*it});
          for (const Json& v : list) {
            if (v.is_string() && items_.satisfies(v, flat))
              values.push_back(pool_->text(v.get<std::string>()));
          }
        }
      }
      if (branches) {
        items_.not_enforced("propertyNames", plain.front().json);
        continue;
      }
      if (never) return {};
      string_constraints(flat, &exprs, &min, &max);
      if (finite) exprs.push_back(values.empty() ? pool_->never() : pool_->alt(values));
      if ((min > 0 || max != kUnbounded) && std::max(min, max == kUnbounded ? 0 : max) <= 2000) {
        exprs.push_back(pool_->repeat(pool_->chars(CharSet::all()), min, max));
      } else if (min > 0 || max != kUnbounded) {
        items_.not_enforced("propertyNames", plain.front().json);
      }
      for (ExprId expr : exprs)
        base = intersect(base, regular(*pool_, expr, Encoding::kJson, budget), budget);
    }
    if (!names.empty()) {
      std::vector<ExprId> texts;
      for (const std::string& name : names) texts.push_back(pool_->text(name));
      base = subtract(base, regular(*pool_, pool_->alt(texts), Encoding::kJson, budget), budget);
    }
  }
  // Every combination of patterns that a name can match has its own value.
  std::vector<Key> keys;
  for (uint32_t chosen = 0; chosen < 1u << patterns.size() && items_.ok(); ++chosen) {
    if (chosen == 0 && !open) continue;
    Key key{base, {}, any_name};
    for (size_t p = 0; p < patterns.size(); ++p) {
      key.names = chosen >> p & 1 ? intersect(key.names, patterns[p].names, budget)
                                  : subtract(key.names, patterns[p].names, budget);
    }
    bool allowed = any_name || !key.names.empty();
    for (const SchemaItem& item : plain) {
      bool matched = false;
      for (size_t p = 0; p < patterns.size(); ++p) {
        if (!(chosen >> p & 1) || patterns[p].owner != item.json) continue;
        matched = true;
        allowed &= !is_false(*patterns[p].schema);
        key.value.push_back({patterns[p].schema});
      }
      const Json* others = others_of(item.json);
      if (matched || others == nullptr) continue;
      allowed &= !is_false(*others);
      key.value.push_back({items_.place(*others, items_.path(item.json) + ".additionalProperties")});
    }
    if (allowed) keys.push_back(std::move(key));
  }
  return keys;
}

void SchemaRules::write_object(const Conjunction& plain, uint32_t from, uint32_t to) {
  std::vector<bool> required, kept_required;
  uint32_t min = 0, max = kUnbounded, bound = 0;
  for (const SchemaItem& item : plain) {
    if (items_.count_of(item.json, "minProperties", &bound)) min = std::max(min, bound);
    if (items_.count_of(item.json, "maxProperties", &bound)) max = std::min(max, bound);
  }
  const auto says = [&](const char* keyword) {
    return std::any_of(plain.begin(), plain.end(), [&](const auto& i) { return i.json->contains(keyword); });
  };
  const std::vector<std::string> names = member_names(plain, &required);
  // An object that says nothing at all about its members may have any.
  if (names.empty() && min == 0 && max == kUnbounded && !says("properties") &&
      !says("additionalProperties") && !says("patternProperties") && !says("propertyNames") &&
      !says("unevaluatedProperties"))
    return nfa_->call(from, any_object(), to);
  std::vector<std::string> kept;
  std::vector<uint32_t> values;
  for (size_t i = 0; i < names.size() && items_.ok(); ++i) {
    Conjunction value;
    if (!member_value(plain, names[i], &value)) {
      if (required[i]) return;  // needed and forbidden: nothing fits
      continue;
    }
    kept.push_back(names[i]);
    kept_required.push_back(required[i]);
    values.push_back(value.empty() ? any_value() : rule_for(value));
  }
  std::vector<Key> others = other_members(plain, names);
  if (names.empty() && others.empty() && !says("properties") && !says("additionalProperties") &&
      !says("unevaluatedProperties") && !says("patternProperties")) {
    // Only counts or propertyNames: the members themselves are free.
    if (!says("propertyNames")) {
      others.push_back({{}, {}, true});
    } else {
      items_.not_enforced("propertyNames", plain.front().json);
    }
  }
  if (!items_.ok()) return;
  const uint64_t sure = kept.size() + (others.empty() ? 0 : 1);
  // Names of other members may be repeated, which makes one member: only the first is sure to count.
  if (min > sure && others.empty()) return;  // nothing fits
  if (min > sure) {
    items_.not_enforced("minProperties", plain.front().json);
    min = static_cast<uint32_t>(sure);
  }
  write_members(kept, kept_required, values, others, min, max, from, to);
}

/// The members in order. Places are numbered by (next member, members so far), as far as counts matter.
void SchemaRules::write_members(const std::vector<std::string>& names, const std::vector<bool>& required,
                                const std::vector<uint32_t>& values, const std::vector<Key>& others,
                                uint32_t min, uint32_t max, uint32_t from, uint32_t to) {
  const size_t n = names.size();
  const bool bounded = max != kUnbounded && (max < n || !others.empty());
  const auto counts =
      static_cast<size_t>(bounded ? max : std::max(min, 1u));  // the last one may mean "or more"
  if ((n + 2) * (counts + 1) > kMaxPlaces) return builder_->budget()->exhaust("counts too many members");
  const uint32_t open = nfa_->new_state(), close = nfa_->new_state(), last = nfa_->new_state();
  std::vector<uint32_t> row(counts + 1), next_row(counts + 1);
  for (uint32_t& place : row) place = nfa_->new_state();
  nfa_->byte(from, '{', '{', open);
  nfa_->call(open, blanks(), row[0]);
  const auto key_place = [&](uint32_t place, size_t count) {
    if (count == 0) return place;
    const uint32_t key = nfa_->new_state();
    punctuation(place, ',', key);
    return key;
  };
  for (size_t i = 0; i < n && items_.ok(); ++i) {
    std::string key;
    append_json_string(names[i], false, &key);
    for (uint32_t& place : next_row) place = nfa_->new_state();
    for (size_t c = 0; c <= counts; ++c) {
      if (!required[i]) nfa_->empty(row[c], next_row[c]);
      if (c == counts && bounded) continue;
      const uint32_t named = nfa_->new_state();
      nfa_->bytes(key_place(row[c], c), key, named);
      nfa_->call(named, colon_and(values[i]), next_row[std::min(c + 1, counts)]);
    }
    row = next_row;
  }
  // Other members: the names of a class, each with the value of the class.
  std::vector<std::pair<uint32_t, uint32_t>> classes;  // rules of key and value
  for (const Key& key : others) {
    uint32_t rule = json_string();
    if (!key.any_name) {
      rule = builder_->add_rule();
      const uint32_t inside = nfa_->new_state(), end = nfa_->new_state();
      nfa_->byte(builder_->start(rule), '"', '"', inside);
      embed(key.names, nfa_, inside, end);
      nfa_->byte(end, '"', '"', builder_->end(rule));
    }
    classes.emplace_back(rule, key.value.empty() ? any_value() : rule_for(key.value));
  }
  std::vector<uint32_t> extra(counts + 1);
  for (uint32_t& place : extra) place = nfa_->new_state();
  const auto finish = [&](uint32_t place, size_t count) {
    if (count == 0) return nfa_->empty(place, close);
    nfa_->empty(place, last);
  };
  for (size_t c = 0; c <= counts; ++c) {
    if (c >= min) finish(row[c], c);
    finish(extra[c], 1);
    if (c == counts && bounded) continue;
    const size_t next = std::min(c + 1, counts);
    for (const auto& [key_rule, value_rule] : classes) {
      const uint32_t named = nfa_->new_state();
      if (c + 1 >= min) nfa_->call(key_place(row[c], c), key_rule, named);
      if (c > 0) nfa_->call(key_place(extra[c], c), key_rule, named);
      nfa_->call(named, colon_and(value_rule), extra[next]);
    }
  }
  nfa_->call(last, blanks(), close);
  nfa_->byte(close, '}', '}', to);
}

/// A tool's arguments: named ones in their order, then others where the schema says that there may be some.
void SchemaRules::write_arguments(const Conjunction& plain, uint32_t from, uint32_t to) {
  std::vector<bool> required;
  const std::vector<std::string> names = member_names(plain, &required);
  const auto pair = [&](uint32_t start, const std::string& name, uint32_t rule, uint32_t end) {
    const uint32_t value = nfa_->new_state(), done = nfa_->new_state();
    nfa_->bytes(start, tags_.key_open + name + tags_.key_close + tags_.value_open, value);
    nfa_->call(value, rule, done);
    nfa_->bytes(done, tags_.value_close, end);
  };
  uint32_t at = from;
  for (size_t i = 0; i < names.size() && items_.ok(); ++i) {
    Conjunction value;
    const bool allowed = member_value(plain, names[i], &value);
    if (!allowed && required[i]) return;
    if (!allowed) continue;
    const uint32_t next = nfa_->new_state();
    if (!required[i]) nfa_->empty(at, next);
    pair(at, names[i], rule_for(value, Form::kBare), next);
    at = next;
  }
  nfa_->empty(at, to);
  for (const char* keyword : {"minProperties", "maxProperties", "patternProperties", "propertyNames"}) {
    for (const SchemaItem& item : plain) {
      if (item.json->contains(keyword)) items_.not_enforced(keyword, item.json);
    }
  }
  Conjunction other;
  for (const SchemaItem& item : plain) {
    const Json* others = others_of(item.json);
    if (others == nullptr) continue;
    if (is_false(*others)) return;
    other.push_back({items_.place(*others, items_.path(item.json) + ".additionalProperties")});
  }
  if (other.empty()) return;
  CompileBudget* budget = builder_->budget();
  std::vector<ExprId> texts{pool_->never()};
  for (const std::string& name : names) texts.push_back(pool_->text(name));
  CharSet plain_chars;
  plain_chars.add('!', kMaxCodePoint);
  const Automaton any =
      regular(*pool_, pool_->repeat(pool_->chars(plain_chars), 1, kUnbounded), Encoding::kUtf8, budget);
  const Automaton named = regular(*pool_, pool_->alt(texts), Encoding::kUtf8, budget);
  const uint32_t loop = nfa_->new_state(), key = nfa_->new_state(), end = nfa_->new_state();
  const uint32_t value = nfa_->new_state(), done = nfa_->new_state();
  nfa_->empty(at, loop);
  nfa_->empty(loop, to);
  nfa_->bytes(loop, tags_.key_open, key);
  embed(subtract(any, named, budget), nfa_, key, end);
  nfa_->bytes(end, tags_.key_close + tags_.value_open, value);
  nfa_->call(value, rule_for(other, Form::kBare), done);
  nfa_->bytes(done, tags_.value_close, loop);
}

void SchemaRules::write_array(const Conjunction& plain, uint32_t from, uint32_t to) {
  uint32_t min = 0, max = kUnbounded, bound = 0;
  size_t fixed = 0;
  struct Part {
    const Json* prefix = nullptr;
    const Json* rest = nullptr;
  };
  std::vector<Part> parts;
  for (const SchemaItem& item : plain) {
    if (items_.count_of(item.json, "minItems", &bound)) min = std::max(min, bound);
    if (items_.count_of(item.json, "maxItems", &bound)) max = std::min(max, bound);
    Part part;
    part.prefix = items_.array_of(item.json, "prefixItems");
    part.rest = sub(item.json, "items");
    if (part.rest != nullptr && part.rest->is_array()) {  // the older form
      part.prefix = part.rest;
      part.rest = sub(item.json, "additionalItems");
    }
    if (part.rest == nullptr) part.rest = sub(item.json, "unevaluatedItems");
    if (part.prefix != nullptr) fixed = std::max(fixed, part.prefix->size());
    parts.push_back(part);
  }
  const auto item_rule = [&](size_t i, bool* allowed) {
    Conjunction value;
    for (size_t p = 0; p < parts.size(); ++p) {
      const Part& part = parts[p];
      const bool own = part.prefix != nullptr && i < part.prefix->size();
      const Json* schema = own ? &(*part.prefix)[i] : part.rest;
      if (schema == nullptr) continue;
      if (own) items_.place(*schema, items_.path(plain[p].json) + ".prefixItems[" + std::to_string(i) + "]");
      *allowed &= !is_false(*schema);
      value.push_back({schema});
    }
    return value.empty() ? any_value() : rule_for(value);
  };
  bool rest_allowed = true;
  const uint32_t rest = item_rule(fixed, &rest_allowed);
  for (size_t i = fixed; i-- > 0;) {
    bool allowed = true;
    item_rule(i, &allowed);
    if (!allowed) {
      max = std::min(max, static_cast<uint32_t>(i));
      rest_allowed = false;
    }
  }
  if (!rest_allowed) max = std::min(max, static_cast<uint32_t>(fixed));
  if (min > max || !items_.ok()) return;
  const uint64_t places = max == kUnbounded ? std::max<uint64_t>(fixed, min) : max;
  if (places > kMaxPlaces) return builder_->budget()->exhaust("counts too many items");
  const uint32_t open = nfa_->new_state(), close = nfa_->new_state(), last = nfa_->new_state();
  uint32_t at = nfa_->new_state();
  nfa_->byte(from, '[', '[', open);
  nfa_->call(open, blanks(), at);
  if (min == 0) nfa_->empty(at, close);
  for (uint64_t i = 0; i < places && items_.ok(); ++i) {
    uint32_t item = at;
    if (i > 0) {
      item = nfa_->new_state();
      punctuation(at, ',', item);
    }
    at = nfa_->new_state();
    bool allowed = true;
    nfa_->call(item, i < fixed ? item_rule(static_cast<size_t>(i), &allowed) : rest, at);
    if (i + 1 >= min) nfa_->empty(at, last);
  }
  if (max == kUnbounded) {
    const uint32_t item = nfa_->new_state(), done = places == 0 ? nfa_->new_state() : at;
    if (places == 0) {
      nfa_->call(at, rest, done);
      nfa_->empty(done, last);
    }
    punctuation(done, ',', item);
    nfa_->call(item, rest, done);
  }
  nfa_->call(last, blanks(), close);
  nfa_->byte(close, ']', ']', to);
}

}  // namespace firesteel::grammar
