#include "grammar/schema_rules.h"

#include <algorithm>

#include "base/json.h"
#include "grammar/formats.h"
#include "grammar/regex.h"

namespace firesteel::grammar {

namespace {

constexpr uint32_t kMaxBlanks = 32;
constexpr size_t kMaxProductStates = 1000;  // of a pattern and a length together: each needs a mask

std::string json_quoted(std::string_view text) {
  std::string out;
  append_json_string(text, false, &out);
  return out;
}

}  // namespace

uint32_t SchemaRules::shared(const std::string& name, bool* fresh) {
  const auto [it, inserted] = shared_.try_emplace(name, 0);
  if (inserted) it->second = builder_->add_rule();
  *fresh = inserted;
  return it->second;
}

uint32_t SchemaRules::blanks() {
  const auto it = shared_.find("blanks");
  if (it != shared_.end()) return it->second;
  CharSet set;
  for (uint32_t c : {' ', '\t', '\n'}) set.add(c, c);
  const Automaton item = regular(*pool_, pool_->chars(set), Encoding::kUtf8, builder_->budget());
  return shared_["blanks"] = builder_->counted("blanks", item, 0, kMaxBlanks);
}

uint32_t SchemaRules::json_string() {
  bool fresh = false;
  const uint32_t rule = shared("string", &fresh);
  if (fresh)
    quoted(pool_->repeat(pool_->json_char(), 0, kUnbounded), builder_->start(rule), builder_->end(rule));
  return rule;
}

uint32_t SchemaRules::number() {
  bool fresh = false;
  const uint32_t rule = shared("number", &fresh);
  if (fresh) embed(number_automaton(builder_->budget()), nfa_, builder_->start(rule), builder_->end(rule));
  return rule;
}

uint32_t SchemaRules::integer() {
  bool fresh = false;
  const uint32_t rule = shared("integer", &fresh);
  if (fresh) embed(integer_automaton(builder_->budget()), nfa_, builder_->start(rule), builder_->end(rule));
  return rule;
}

/// One of the words, separated by bars.
uint32_t SchemaRules::word_rule(const char* words) {
  bool fresh = false;
  const uint32_t rule = shared(words, &fresh);
  if (!fresh) return rule;
  const std::string all = std::string(words) + "|";
  for (size_t from = 0, to; from < all.size(); from = to + 1) {
    to = all.find('|', from);
    nfa_->bytes(builder_->start(rule), std::string_view(all).substr(from, to - from), builder_->end(rule));
  }
  return rule;
}

uint32_t SchemaRules::colon_and(uint32_t value) {
  bool fresh = false;
  const uint32_t rule = shared(": " + std::to_string(value), &fresh);
  if (!fresh) return rule;
  const uint32_t after = nfa_->new_state();
  punctuation(builder_->start(rule), ':', after);
  nfa_->call(after, value, builder_->end(rule));
  return rule;
}

uint32_t SchemaRules::simple_rule(const Json& schema) {
  if (!schema.is_object()) return GrammarBuilder::kNoRule;
  const auto type = schema.find("type");
  if (type == schema.end() || !type->is_string()) return GrammarBuilder::kNoRule;
  for (const auto& [keyword, value] : schema.items()) {
    static constexpr std::string_view kSilent[] = {"type", "title", "description", "default", "examples"};
    if (std::find(std::begin(kSilent), std::end(kSilent), keyword) == std::end(kSilent))
      return GrammarBuilder::kNoRule;
  }
  const auto& name = type->get_ref<const std::string&>();
  if (name == "string") return json_string();
  if (name == "integer") return integer();
  if (name == "number") return number();
  if (name == "boolean") return word_rule("true|false");
  if (name == "null") return word_rule("null");
  if (name == "object") return any_object();
  return GrammarBuilder::kNoRule;
}

void SchemaRules::quoted(ExprId inside, uint32_t from, uint32_t to) {
  const uint32_t open = nfa_->new_state(), close = nfa_->new_state();
  nfa_->byte(from, '"', '"', open);
  Lowering(*pool_, Encoding::kJson, builder_, true).lower(inside, open, close);
  nfa_->byte(close, '"', '"', to);
}

void SchemaRules::punctuation(uint32_t from, char byte, uint32_t to) {
  const uint32_t before = nfa_->new_state(), after = nfa_->new_state();
  nfa_->call(from, blanks(), before);
  nfa_->byte(before, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), after);
  nfa_->call(after, blanks(), to);
}

const Json* SchemaRules::sub(const Json* schema, const char* keyword, const std::string& detail) {
  const auto it = schema->find(keyword);
  if (it == schema->end()) return nullptr;
  return items_.place(*it, items_.path(schema) + "." + keyword + detail);
}

uint32_t SchemaRules::any_object() {
  bool fresh = false;
  const uint32_t rule = shared("object", &fresh);
  if (!fresh) return rule;
  const uint32_t open = nfa_->new_state(), member = nfa_->new_state(), key = nfa_->new_state();
  const uint32_t value = nfa_->new_state(), done = nfa_->new_state(), close = nfa_->new_state();
  nfa_->byte(builder_->start(rule), '{', '{', open);
  nfa_->call(open, blanks(), member);
  nfa_->byte(member, '}', '}', builder_->end(rule));
  nfa_->call(member, json_string(), key);
  punctuation(key, ':', value);
  nfa_->call(value, any_value(), done);
  const uint32_t again = nfa_->new_state();
  punctuation(done, ',', again);
  nfa_->call(again, json_string(), key);
  nfa_->call(done, blanks(), close);
  nfa_->byte(close, '}', '}', builder_->end(rule));
  return rule;
}

uint32_t SchemaRules::any_value() {
  bool fresh = false;
  const uint32_t rule = shared("value", &fresh);
  if (!fresh) return rule;
  const uint32_t from = builder_->start(rule), to = builder_->end(rule);
  for (const char* word : {"null", "true", "false"}) nfa_->bytes(from, word, to);
  nfa_->call(from, json_string(), to);
  nfa_->call(from, number(), to);
  nfa_->call(from, any_object(), to);
  const uint32_t open = nfa_->new_state(), item = nfa_->new_state(), done = nfa_->new_state();
  const uint32_t again = nfa_->new_state(), close = nfa_->new_state();
  nfa_->byte(from, '[', '[', open);
  nfa_->call(open, blanks(), item);
  nfa_->byte(item, ']', ']', to);
  nfa_->call(item, rule, done);
  punctuation(done, ',', again);
  nfa_->call(again, rule, done);
  nfa_->call(done, blanks(), close);
  nfa_->byte(close, ']', ']', to);
  return rule;
}

uint32_t SchemaRules::rule_for(const Conjunction& items, Form form) {
  if (form == Form::kJson && items.size() == 1 && items[0].kind == SchemaItem::Kind::kSchema) {
    if (const uint32_t simple = simple_rule(*items[0].json); simple != GrammarBuilder::kNoRule) return simple;
  }
  const auto [it, fresh] = known_.try_emplace({items, form}, 0);
  if (!fresh) return it->second;
  const uint32_t rule = builder_->add_rule();
  it->second = rule;
  queue_.push_back({rule, items, form});
  return rule;
}

void SchemaRules::run() {
  while (!queue_.empty() && items_.ok()) {
    const Pending pending = std::move(queue_.front());
    queue_.pop_front();
    write(pending);
  }
}

void SchemaRules::write(const Pending& pending) {
  bool never = false, said = false;
  const uint32_t from = builder_->start(pending.rule), to = builder_->end(pending.rule);
  const Conjunction flat = items_.flatten(pending.items, &never);
  if (never || !items_.ok()) return;
  for (size_t i = 0; i < flat.size(); ++i) {
    if (flat[i].kind == SchemaItem::Kind::kOneBranch) return write_branches(flat, i, pending.form, from, to);
  }
  if (pending.form == Form::kArguments) return write_arguments(flat, from, to);
  if (write_values(flat, pending.form, from, to)) return;
  uint8_t types = items_.types(flat, &said);
  if (!said) types &= SchemaItems::implied_types(flat);
  const bool bare_string = pending.form == Form::kBare && (types & kStringType) != 0;
  if (types & kStringType) write_string(flat, pending.form, from, to);
  if (types & kNullType) nfa_->bytes(from, "null", to);
  if (bare_string) return;  // any other text would be read as the string it is
  if (types & kBooleanType) {
    nfa_->bytes(from, "true", to);
    nfa_->bytes(from, "false", to);
  }
  if (types & (kIntegerType | kFractionType)) write_numbers(flat, (types & kFractionType) == 0, from, to);
  if (types & kArrayType) write_array(flat, from, to);
  if (types & kObjectType) write_object(flat, from, to);
}

/// anyOf, oneOf: each branch together with everything else.
void SchemaRules::write_branches(const Conjunction& flat, size_t choice, Form form, uint32_t from,
                                 uint32_t to) {
  const Json* branches = flat[choice].json;
  if (branches->empty())
    return items_.fail(ErrorCode::kInvalidArgument, branches, "must name at least one schema");
  Conjunction rest = flat;
  rest.erase(rest.begin() + static_cast<ptrdiff_t>(choice));
  for (const Json& branch : *branches) {
    Conjunction both = rest;
    both.push_back({&branch});
    nfa_->call(from, rule_for(both, form), to);
  }
}

/// True when the values are a finite list (enum, const), which is then written.
bool SchemaRules::write_values(const Conjunction& plain, Form form, uint32_t from, uint32_t to) {
  const Json* list = nullptr;
  const Json* single = nullptr;
  for (const SchemaItem& item : plain) {
    if (const Json* values = items_.array_of(item.json, "enum"); values != nullptr) list = values;
    if (const auto it = item.json->find("const"); it != item.json->end()) single = &*it;
  }
  if (list == nullptr && single == nullptr) return false;
  const auto put = [&](const Json& value) {
    if (!items_.satisfies(value, plain)) return;
    if (form == Form::kBare && value.is_string()) {
      nfa_->bytes(from, value.get_ref<const std::string&>(), to);
    } else {
      write_value(value, from, to);
    }
  };
  if (single != nullptr) {
    put(*single);
    return true;
  }
  for (const Json& value : *list) {
    if (!items_.ok()) break;
    put(value);
  }
  return true;
}

/// One value, with blanks where JSON has them. Depth is that of the parsed document.
void SchemaRules::write_value(const Json& value, uint32_t from, uint32_t to) {
  if (!builder_->budget()->spend()) return;
  if (!value.is_array() && !value.is_object())
    return nfa_->bytes(from, is_number(value) ? number_text(value) : dump_json(value), to);
  const bool object = value.is_object();
  const uint32_t open = nfa_->new_state(), close = nfa_->new_state();
  uint32_t at = nfa_->new_state();
  nfa_->bytes(from, object ? "{" : "[", open);
  nfa_->call(open, blanks(), at);
  bool first = true;
  for (const auto& [key, member] : value.items()) {
    if (!first) {
      const uint32_t next = nfa_->new_state();
      punctuation(at, ',', next);
      at = next;
    }
    first = false;
    if (object) {
      const uint32_t named = nfa_->new_state(), next = nfa_->new_state();
      nfa_->bytes(at, json_quoted(key), named);
      punctuation(named, ':', next);
      at = next;
    }
    const uint32_t next = nfa_->new_state();
    write_value(member, at, next);
    at = next;
  }
  if (first) {
    nfa_->empty(at, close);
  } else {
    nfa_->call(at, blanks(), close);
  }
  nfa_->bytes(close, object ? "}" : "]", to);
}

void SchemaRules::write_numbers(const Conjunction& plain, bool integer_only, uint32_t from, uint32_t to) {
  NumberBounds bounds;
  uint64_t divisor = 0;
  bool whole = integer_only;
  for (const SchemaItem& item : plain) {
    const auto bound = [&](const char* keyword, bool low, bool exclusive) {
      const auto it = item.json->find(keyword);
      if (it == item.json->end()) return;
      if (!is_number(*it))
        return items_.fail(ErrorCode::kInvalidArgument, item.json,
                           std::string("'") + keyword + "' must be a number");
      const auto value = parse_decimal(number_text(*it));
      if (!value.ok() || value->fraction.size() > 20) return items_.not_enforced(keyword, item.json);
      if (low) {
        bounds.at_least(*value, exclusive);
      } else {
        bounds.at_most(*value, exclusive);
      }
    };
    // Draft 4 wrote exclusive bounds as true beside the bound.
    const auto exclusive = [&](const char* keyword) {
      const auto it = item.json->find(keyword);
      return it != item.json->end() && it->is_boolean() ? it->get<bool>() ? 1 : -1 : 0;
    };
    bound("minimum", true, exclusive("exclusiveMinimum") == 1);
    bound("maximum", false, exclusive("exclusiveMaximum") == 1);
    if (exclusive("exclusiveMinimum") == 0) bound("exclusiveMinimum", true, true);
    if (exclusive("exclusiveMaximum") == 0) bound("exclusiveMaximum", false, true);
    const auto it = item.json->find("multipleOf");
    if (it == item.json->end()) continue;
    const auto value = is_number(*it) ? parse_decimal(number_text(*it)) : Result<Decimal>(Error{});
    if (!value.ok() || value->negative || value->is_zero()) {
      items_.fail(ErrorCode::kInvalidArgument, item.json, "'multipleOf' must be a number above 0");
    } else if (!value->fraction.empty() || value->whole.size() > 4 ||
               std::stoul(value->whole) > kMaxDivisor) {
      items_.not_enforced("multipleOf", item.json);
    } else {
      // A multiple of a whole number is whole.
      whole = true;
      const uint64_t own = std::stoul(value->whole);
      uint64_t a = divisor == 0 ? own : divisor, b = own;
      while (b != 0) a = std::exchange(b, a % b);
      divisor = divisor == 0 ? own : divisor / a * own;
      if (divisor > kMaxDivisor) {
        divisor = own;
        items_.not_enforced("multipleOf", item.json);
      }
    }
  }
  if (!bounds.any() && divisor == 0) return nfa_->call(from, whole ? integer() : number(), to);
  embed(bounded_automaton(bounds, whole, static_cast<uint32_t>(divisor), builder_->budget()), nfa_, from, to);
}

void SchemaRules::string_constraints(const Conjunction& plain, std::vector<ExprId>* patterns, uint32_t* min,
                                     uint32_t* max) {
  for (const SchemaItem& item : plain) {
    const auto add = [&](const std::string& pattern, RegexMatch match) {
      const auto expr = parse_regex(pattern, match, pool_);
      if (expr.ok()) {
        patterns->push_back(*expr);
      } else if (expr.error().code == ErrorCode::kUnsupported) {
        items_.not_enforced("pattern", item.json);
      } else {
        items_.fail(expr.error().code, item.json, expr.error().message);
      }
    };
    if (const auto it = item.json->find("pattern"); it != item.json->end()) {
      if (it->is_string()) {
        add(it->get<std::string>(), RegexMatch::kSearch);
      } else {
        items_.fail(ErrorCode::kInvalidArgument, item.json, "'pattern' must be a string");
      }
    }
    if (const auto it = item.json->find("format"); it != item.json->end() && it->is_string()) {
      const std::string pattern = format_pattern(it->get<std::string>());
      if (!pattern.empty()) add(pattern, RegexMatch::kFull);
    }
    uint32_t bound = 0;
    if (items_.count_of(item.json, "minLength", &bound)) *min = std::max(*min, bound);
    if (items_.count_of(item.json, "maxLength", &bound)) *max = std::min(*max, bound);
  }
}

void SchemaRules::write_string(const Conjunction& plain, Form form, uint32_t from, uint32_t to) {
  std::vector<ExprId> patterns;
  uint32_t min = 0, max = kUnbounded;
  string_constraints(plain, &patterns, &min, &max);
  if (!items_.ok() || min > max) return;
  const bool bare = form == Form::kBare;
  const Encoding encoding = bare ? Encoding::kUtf8 : Encoding::kJson;
  const bool lengths = min > 0 || max != kUnbounded;
  if (patterns.empty() && !lengths) return bare ? bare_text(from, to) : nfa_->call(from, json_string(), to);
  const auto write = [&](ExprId inside) {
    if (!bare) return quoted(inside, from, to);
    Lowering(*pool_, encoding, builder_, true).lower(inside, from, to);
  };
  if (patterns.empty())
    return write(pool_->repeat(bare ? pool_->chars(CharSet::all()) : pool_->json_char(), min, max));
  // A pattern that only repeats one set of characters takes the lengths into its own bounds.
  const ExprPool::Node node = pool_->node(patterns[0]);
  if (patterns.size() == 1 && lengths && node.kind == ExprKind::kRepeat &&
      pool_->node(node.children[0]).kind == ExprKind::kChars) {
    min = std::max(min, node.min);
    max = std::min(max, node.max);
    return min > max ? void() : write(pool_->repeat(node.children[0], min, max));
  }
  if (!bare && patterns.size() == 1 && !lengths) return write(patterns[0]);
  Automaton all = regular(*pool_, patterns[0], encoding, builder_->budget());
  for (size_t i = 1; i < patterns.size(); ++i)
    all = intersect(all, regular(*pool_, patterns[i], encoding, builder_->budget()), builder_->budget());
  const uint64_t longest = max == kUnbounded ? min : max;
  if (lengths && all.states.size() * (longest + 1) > kMaxProductStates) {
    items_.not_enforced(max == kUnbounded ? "minLength" : "maxLength", plain.front().json);
  } else if (lengths) {
    const ExprId counted = pool_->repeat(pool_->chars(CharSet::all()), min, max);
    all = intersect(all, regular(*pool_, counted, encoding, builder_->budget()), builder_->budget());
  }
  if (bare) return embed(subtract(all, spelled_close(), builder_->budget()), nfa_, from, to);
  const uint32_t open = nfa_->new_state(), close = nfa_->new_state();
  nfa_->byte(from, '"', '"', open);
  embed(all, nfa_, open, close);
  nfa_->byte(close, '"', '"', to);
}

/// Texts in which the end of an argument is spelled out; a reader would end the value there.
Automaton SchemaRules::spelled_close() {
  const ExprId any = pool_->repeat(pool_->chars(CharSet::all()), 0, kUnbounded);
  return regular(*pool_, pool_->seq({any, pool_->text("</arg_value>"), any}), Encoding::kUtf8,
                 builder_->budget());
}

void SchemaRules::bare_text(uint32_t from, uint32_t to) {
  bool fresh = false;
  const uint32_t rule = shared("text", &fresh);
  if (fresh) {
    const ExprId any = pool_->repeat(pool_->chars(CharSet::all()), 0, kUnbounded);
    const Automaton all = regular(*pool_, any, Encoding::kUtf8, builder_->budget());
    embed(subtract(all, spelled_close(), builder_->budget()), nfa_, builder_->start(rule),
          builder_->end(rule));
  }
  nfa_->call(from, rule, to);
}

JsonSchemaCompiler::JsonSchemaCompiler(GrammarBuilder* builder, ExprPool* pool, SchemaOptions options)
    : rules_(std::make_unique<SchemaRules>(builder, pool, options)) {}
JsonSchemaCompiler::~JsonSchemaCompiler() = default;

Result<uint32_t> JsonSchemaCompiler::json_rule(const Json& schema) {
  rules_->items().set_root(&schema);
  rules_->items().place(schema, "$");
  const uint32_t rule = rules_->rule_for({{&schema}});
  rules_->run();
  if (!rules_->items().ok()) return rules_->items().error();
  return rule;
}

uint32_t JsonSchemaCompiler::any_object() { return rules_->any_object(); }
uint32_t JsonSchemaCompiler::any_value() { return rules_->any_value(); }
const std::vector<std::string>& JsonSchemaCompiler::unsupported() const {
  return rules_->items().unsupported();
}

}  // namespace firesteel::grammar
