// The tool fields of a chat request: what is offered, and whether calls are read out of the reply. Pure, any
// thread.
#pragma once

#include <memory>

#include "api/constraint.h"
#include "api/field_reader.h"
#include "text/tool_schema.h"

namespace firesteel::api {

struct ToolChoice {
  Json offered;  // for the template: a list of {"type":"function","function":…}; null: none
  std::shared_ptr<const ToolSet> tools;  // for the reply; null: call markup is text
  bool parallel = true;
  std::optional<AnswerFormat> calls;  // the reply is held to: a forced call, strict arguments
  bool legacy = false;  // asked with `functions`: the reply uses message.function_call
};

/// Reads tools, tool_choice, parallel_tool_calls and their older forms functions and function_call.
void read_tools(FieldReader& in, ToolChoice* out);

}  // namespace firesteel::api
