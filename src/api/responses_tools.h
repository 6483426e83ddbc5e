// The tools of a Responses request as those of a chat request. Pure, any thread.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "api/field_reader.h"

namespace firesteel::api {

struct ResponsesTools {
  Json offered = Json::array();     // the chat request's `tools`
  Json choice;                      // its `tool_choice`; null: not given
  std::vector<size_t> sources;      // of each offered tool: its index in the request's own list
  std::set<std::string> functions;  // their names, by kind
  std::set<std::string> custom;     // these calls go out as custom_tool_call
};

/// Reads tools and tool_choice. A function is taken out of its flat form, a custom tool becomes a function
/// with one text argument, and tools that a provider would run itself are left out, unless tool_choice names
/// one (400).
void read_responses_tools(FieldReader& in, ResponsesTools* out);

}  // namespace firesteel::api
