#include "grammar/tool_calls.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "grammar/schema_rules.h"
#include "grammar/vocabulary.h"

namespace firesteel::grammar {

namespace {

/// Pairs with any text: what a tool without a schema may be called with.
void free_pairs(const ToolTags& tags, ExprPool* pool, GrammarBuilder* builder, uint32_t from, uint32_t to) {
  Nfa& nfa = builder->nfa();
  const uint32_t loop = nfa.new_state(), key = nfa.new_state(), named = nfa.new_state();
  const uint32_t value = nfa.new_state(), done = nfa.new_state();
  nfa.empty(from, loop);
  nfa.empty(loop, to);
  nfa.bytes(loop, tags.key_open, key);
  const ExprId any = pool->repeat(pool->chars(CharSet::all()), 0, kUnbounded);
  Lowering lowering(*pool, Encoding::kUtf8, builder, true);
  lowering.lower(pool->repeat(pool->chars(CharSet::all()), 1, kUnbounded), key, named);
  nfa.bytes(named, tags.key_close + tags.value_open, value);
  lowering.lower(any, value, done);
  nfa.bytes(done, tags.value_close, loop);
}

}  // namespace

Result<uint32_t> tool_call_rule(const Json& tools, const ToolMarkup& markup, const ToolCallOptions& options,
                                GrammarBuilder* builder, ExprPool* pool,
                                std::vector<std::string>* unsupported) {
  if (!markup.complete())
    return Error{ErrorCode::kUnsupported,
                 "the model's tokenizer has no tool-call tokens; use tool_choice auto"};
  if (!tools.is_array() || tools.empty())
    return Error{ErrorCode::kInvalidArgument, "tools must be a list with at least one tool"};
  const ToolTags tags{Vocabulary::marker(markup.key_open), Vocabulary::marker(markup.key_close),
                      Vocabulary::marker(markup.value_open), Vocabulary::marker(markup.value_close)};
  Nfa& nfa = builder->nfa();
  const uint32_t call = builder->add_rule(), root = builder->add_rule();
  for (const Json& entry : tools) {
    const Json* tool = &entry;
    if (entry.is_object() && entry.contains("function")) tool = &entry["function"];
    const auto name = tool->is_object() ? tool->find("name") : tool->end();
    if (!tool->is_object() || name == tool->end() || !name->is_string() ||
        name->get_ref<const std::string&>().empty())
      return Error{ErrorCode::kInvalidArgument, "every tool needs a name"};
    const auto strict = tool->find("strict");
    const bool says_strict = strict != tool->end() && *strict == Json(true);
    const uint32_t head = nfa.new_state(), done = nfa.new_state();
    nfa.bytes(builder->start(call), Vocabulary::marker(markup.call_open) + name->get<std::string>(), head);
    nfa.bytes(done, Vocabulary::marker(markup.call_close), builder->end(call));
    const auto parameters = tool->find("parameters");
    if (parameters == tool->end() || parameters->is_null() || !(says_strict || options.all_strict)) {
      free_pairs(tags, pool, builder, head, done);
      continue;
    }
    // Each tool's schema is its own document.
    SchemaRules rules(builder, pool, {says_strict});
    rules.set_tags(tags);
    rules.items().set_root(&*parameters);
    rules.items().place(*parameters, "$");
    nfa.call(head, rules.rule_for({{&*parameters}}, SchemaRules::Form::kArguments), done);
    rules.run();
    if (!rules.items().ok()) {
      Error error = rules.items().error();
      error.message = "tool '" + name->get<std::string>() + "': " + error.message;
      return error;
    }
    for (const std::string& what : rules.items().unsupported())
      unsupported->push_back(what + " of tool '" + name->get<std::string>() + "'");
  }
  const uint32_t from = builder->start(root), to = builder->end(root), again = nfa.new_state();
  if (options.required) {
    nfa.call(from, call, again);
  } else {
    nfa.empty(from, again);
    const ExprId any = pool->repeat(pool->chars(CharSet::all()), 1, kUnbounded);
    Lowering(*pool, Encoding::kUtf8, builder, true).lower(any, again, again);
  }
  nfa.empty(again, to);
  if (options.parallel) {
    nfa.call(again, call, again);
  } else if (!options.required) {
    nfa.call(again, call, to);
  }
  return root;
}

}  // namespace firesteel::grammar
