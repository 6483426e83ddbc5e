// The grammar of tool calls in the model's own markup, without white space between the parts and with
// arguments in the order in which the schema names them:
//   <tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>…</tool_call>
//
// The six tags are single special tokens and are matched as such: they cannot appear inside a value. A string
// value cannot spell the closing tag in text either, unless its schema bounds its length. One compilation,
// one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "grammar/expr.h"

namespace firesteel::grammar {

/// Ids of the special tokens.
struct ToolMarkup {
  int32_t call_open = -1, call_close = -1;
  int32_t key_open = -1, key_close = -1;
  int32_t value_open = -1, value_close = -1;
  bool complete() const {
    return call_open >= 0 && call_close >= 0 && key_open >= 0 && key_close >= 0 && value_open >= 0 &&
           value_close >= 0;
  }
};

struct ToolCallOptions {
  bool required = true;    // the reply is calls and nothing else; false: text and calls in any order
  bool parallel = true;    // several calls
  bool all_strict = true;  // hold every tool to its schema; false: only those that say "strict": true
};

/// `tools`: entries {"type":"function","function":{"name", "parameters", "strict"}} or the bare inner object.
/// What a strict tool's schema cannot enforce is refused (kUnsupported) when that tool says "strict": true,
/// else named in
/// `*unsupported`.
Result<uint32_t> tool_call_rule(const nlohmann::ordered_json& tools, const ToolMarkup& markup,
                                const ToolCallOptions& options, GrammarBuilder* builder, ExprPool* pool,
                                std::vector<std::string>* unsupported);

}  // namespace firesteel::grammar
