#include "api/responses_tools.h"

#include <utility>

#include "api/responses_items.h"
#include "base/log.h"

namespace firesteel::api {
namespace {

constexpr size_t kMaxTools = 1024;

// A custom tool's grammar cannot be a schema: the model is told in the description.
std::string custom_description(const Json& tool) {
  std::string out = find_string(tool, "description");
  const Json* format = find_field(tool, "format");
  if (format == nullptr || find_string(*format, "type") != "grammar") return out;
  if (!out.empty()) out += "\n\n";
  return out + "The input must follow this " + find_string(*format, "syntax") + " grammar:\n" +
         find_string(*format, "definition");
}

Json custom_function(const Json& tool) {
  Json text = {{"type", "string"}, {"description", "The whole input of the tool, as plain text."}};
  Json parameters;
  parameters["type"] = "object";
  parameters["properties"][kCustomInput] = std::move(text);
  parameters["required"] = Json::array({kCustomInput});
  parameters["additionalProperties"] = false;
  Json function;
  function["name"] = find_string(tool, "name");
  function["description"] = custom_description(tool);
  function["parameters"] = std::move(parameters);
  return function;
}

// What a chat request knows of a flat function tool, in the client's order, which the prompt shows.
Json plain_function(const Json& tool) {
  Json function = Json::object();
  for (auto it = tool.begin(); it != tool.end(); ++it) {
    for (const char* name : {"name", "description", "parameters", "strict"}) {
      if (it.key() == name && !it->is_null()) function[name] = *it;
    }
  }
  return function;
}

Json chat_tool(Json function) {
  Json out;
  out["type"] = "function";
  out["function"] = std::move(function);
  return out;
}

Json chat_choice(const std::string& name) {
  Json function;
  function["name"] = name;
  return chat_tool(std::move(function));
}

void read_list(FieldReader& in, ResponsesTools* out) {
  const Json* list = in.find("tools");
  if (list == nullptr) return;
  if (!list->is_array() || list->size() > kMaxTools) {
    return in.fail_value("tools",
                         "tools must be a list of at most " + std::to_string(kMaxTools) + " tools, or null");
  }
  size_t hosted = 0;
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& tool = (*list)[i];
    const std::string where = "tools[" + std::to_string(i) + "]";
    if (!tool.is_object()) return in.fail_value(where, where + " must be an object");
    const Json* type = find_field(tool, "type");
    if (type != nullptr && !type->is_string()) {
      return in.fail_value(where + ".type", where + ".type must be a string");
    }
    const bool function = type == nullptr || *type == "function", custom = !function && *type == "custom";
    if (!function && !custom) {
      ++hosted;
      continue;
    }
    const Json* nested = function ? find_field(tool, "function") : nullptr;
    const Json& definition = nested != nullptr ? *nested : tool;
    const std::string name = find_string(definition, "name");
    if (name.empty()) return in.fail_value(where + ".name", where + " has no name");
    (custom ? out->custom : out->functions).insert(name);
    out->offered.push_back(chat_tool(custom ? custom_function(tool) : plain_function(definition)));
    out->sources.push_back(i);
  }
  if (hosted > 0) LOG_INFO("responses: {} hosted tools were left out", hosted);
}

// The name in {"type":"function","name":…}, {"type":"custom","name":…} or chat's nested form.
std::string chosen_name(const Json& choice) {
  const Json* nested = find_field(choice, "function");
  return find_string(nested != nullptr ? *nested : choice, "name");
}

bool is_offered(const ResponsesTools& tools, const std::string& type, const std::string& name) {
  return (type == "custom" ? tools.custom : tools.functions).count(name) > 0;
}

void read_allowed(FieldReader& in, const Json& choice, ResponsesTools* out) {
  const std::string mode = find_string(choice, "mode");
  const Json* list = find_field(choice, "tools");
  if (list == nullptr || !list->is_array() || list->size() > kMaxTools ||
      (mode != "auto" && mode != "required")) {
    return in.fail_value("tool_choice", "allowed_tools needs a mode (auto or required) and a list of tools");
  }
  std::set<std::string> names;
  Json kept = Json::array();
  for (const Json& entry : *list) {
    const std::string type = find_string(entry, "type");
    if (type != "function" && type != "custom") continue;  // a hosted one, not offered either
    const std::string name = chosen_name(entry);
    if (!is_offered(*out, type, name)) {
      return in.fail_value("tool_choice", "allowed_tools names a tool that is not in tools");
    }
    if (names.insert(name).second) kept.push_back(chat_choice(name));
  }
  if (mode == "required" && kept.empty()) {
    return in.fail(unsupported_parameter(
        "tool_choice", "allowed_tools requires a call to a hosted tool, which this server does not have"));
  }
  out->choice["type"] = "allowed_tools";
  out->choice["allowed_tools"] = {{"mode", mode}, {"tools", std::move(kept)}};
}

void read_choice(FieldReader& in, ResponsesTools* out) {
  const Json* choice = in.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_string()) {
    const std::string& word = choice->get_ref<const std::string&>();
    if (word != "auto" && word != "none" && word != "required") {
      return in.fail_value("tool_choice",
                           "tool_choice must be none, auto, required, or an object that names a tool");
    }
    if (word == "required" && out->offered.empty()) {
      return in.fail_value("tool_choice", "tool_choice required needs a function or custom tool in tools");
    }
    out->choice = word;
    return;
  }
  const std::string type = find_string(*choice, "type");
  if (type.empty()) {
    return in.fail_value("tool_choice", "tool_choice must be a word or an object with a type");
  }
  if (type == "allowed_tools") return read_allowed(in, *choice, out);
  if (type != "function" && type != "custom") {
    return in.fail(unsupported_parameter("tool_choice",
                                         "tool_choice names a hosted tool, which this server does not have"));
  }
  const std::string name = chosen_name(*choice);
  if (!is_offered(*out, type, name)) {
    return in.fail_value("tool_choice", "tool_choice names a " + type + " tool that is not in tools");
  }
  out->choice = chat_choice(name);
}

}  // namespace

void read_responses_tools(FieldReader& in, ResponsesTools* out) {
  read_list(in, out);
  if (in.ok()) read_choice(in, out);
}

}  // namespace firesteel::api
