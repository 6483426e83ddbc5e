// Writes the rules of schemas: one rule for every conjunction that comes up, made from a queue so that
// neither nesting nor recursion of schemas becomes recursion here. One compilation, one thread.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "grammar/expr.h"
#include "grammar/json_schema.h"
#include "grammar/number_range.h"
#include "grammar/schema_items.h"

namespace firesteel::grammar {

/// Bytes that stand for the tags of a tool call's arguments (Vocabulary::marker).
struct ToolTags {
  std::string key_open, key_close, value_open, value_close;
};

class SchemaRules {
 public:
  SchemaRules(GrammarBuilder* builder, ExprPool* pool, SchemaOptions options)
      : builder_(builder), nfa_(&builder->nfa()), pool_(pool), items_(options.strict, builder->budget()) {}

  SchemaItems& items() { return items_; }
  /// What a value is written as: JSON; JSON but for strings, which are bare (the text of a tool's argument);
  /// the members of an object as the pairs of a tool call.
  enum class Form { kJson, kBare, kArguments };
  void set_tags(const ToolTags& tags) { tags_ = tags; }
  uint32_t rule_for(const Conjunction& items, Form form = Form::kJson);
  /// Writes all rules that were asked for. Afterwards items().ok() tells.
  void run();

  uint32_t any_value();
  uint32_t any_object();

 private:
  struct Pending {
    uint32_t rule;
    Conjunction items;
    Form form;
  };
  struct Key {  // of an object's member that is not named
    Automaton names;
    Conjunction value;
    bool any_name = false;
  };

  // schema_rules.cc: what every type shares
  void write(const Pending& pending);
  void write_branches(const Conjunction& flat, size_t choice, Form form, uint32_t from, uint32_t to);
  bool write_values(const Conjunction& plain, Form form, uint32_t from, uint32_t to);
  void write_value(const Json& value, uint32_t from, uint32_t to);
  void write_numbers(const Conjunction& plain, bool integer, uint32_t from, uint32_t to);
  void write_string(const Conjunction& plain, Form form, uint32_t from, uint32_t to);
  void string_constraints(const Conjunction& plain, std::vector<ExprId>* patterns, uint32_t* min,
                          uint32_t* max);
  void bare_text(uint32_t from, uint32_t to);
  Automaton spelled_close();

  // schema_containers.cc: objects and arrays
  void write_object(const Conjunction& plain, uint32_t from, uint32_t to);
  void write_array(const Conjunction& plain, uint32_t from, uint32_t to);
  void write_arguments(const Conjunction& plain, uint32_t from, uint32_t to);
  std::vector<std::string> member_names(const Conjunction& plain, std::vector<bool>* required);
  bool member_value(const Conjunction& plain, const std::string& name, Conjunction* value);
  std::vector<Key> other_members(const Conjunction& plain, const std::vector<std::string>& names);
  void write_members(const std::vector<std::string>& names, const std::vector<bool>& required,
                     const std::vector<uint32_t>& values, const std::vector<Key>& others, uint32_t min,
                     uint32_t max, uint32_t from, uint32_t to);

  // Small shared rules, made when first needed.
  uint32_t blanks();
  uint32_t json_string();
  uint32_t number();
  uint32_t integer();
  uint32_t word_rule(const char* words);
  /// A colon and a value: what follows every member's name.
  uint32_t colon_and(uint32_t value);
  uint32_t shared(const std::string& name, bool* fresh);
  /// The shared rule of a schema that only names a simple type; kNoRule for others.
  uint32_t simple_rule(const Json& schema);
  void quoted(ExprId inside, uint32_t from, uint32_t to);
  /// from, blanks, the byte, blanks, to.
  void punctuation(uint32_t from, char byte, uint32_t to);
  const Json* sub(const Json* schema, const char* keyword, const std::string& detail = "");

  GrammarBuilder* builder_;
  Nfa* nfa_;
  ExprPool* pool_;
  SchemaItems items_;
  ToolTags tags_;
  std::map<std::pair<Conjunction, Form>, uint32_t> known_;
  std::map<std::string, uint32_t> shared_;
  std::deque<Pending> queue_;
};

}  // namespace firesteel::grammar
