#include "api/chat_tools.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/json.h"

namespace firesteel::api {
namespace {

constexpr size_t kMaxTools = 1024;

std::string text_of(const Json* v) {
  return v != nullptr && v->is_string() ? v->get<std::string>() : std::string();
}

// One entry as {"type":"function","function":{…}}; the bare form is wrapped. Fails the reader for what is no
// tool.
std::optional<Json> read_tool(FieldReader& in, const Json& entry, const std::string& where) {
  const auto bad = [&](std::string param, std::string message) {
    in.fail(invalid_value(std::move(param), std::move(message)));
    return std::nullopt;
  };
  if (!entry.is_object()) return bad(where, where + " must be an object");
  const Json* type = find_field(entry, "type");
  if (type != nullptr && text_of(type) != "function") {
    return bad(where + ".type", where + ".type must be \"function\"");
  }
  const Json* function = find_field(entry, "function");
  if (function != nullptr && !function->is_object()) {
    return bad(where + ".function", where + ".function must be an object");
  }
  const Json& definition = function != nullptr ? *function : entry;
  if (text_of(find_field(definition, "name")).empty()) {
    return bad(where + ".function.name", where + " has no name");
  }
  const Json* parameters = find_field(definition, "parameters");
  if (parameters != nullptr && !parameters->is_object()) {
    return bad(where + ".function.parameters", where + ".function.parameters must be a JSON schema object");
  }
  const Json* strict = find_field(definition, "strict");
  if (strict != nullptr && !strict->is_boolean()) {
    return bad(where + ".function.strict", where + ".function.strict must be true, false or null");
  }
  if (function != nullptr) return entry;
  Json bare = entry;
  bare.erase("type");
  return Json{{"type", "function"}, {"function", std::move(bare)}};
}

bool has_tool(const Json& tools, const std::string& name) {
  return std::any_of(tools.begin(), tools.end(),
                     [&](const Json& t) { return t["function"]["name"] == name; });
}

// {"type":"allowed_tools","allowed_tools":{"mode","tools":[…]}} or the same fields at the top.
void apply_allowed(FieldReader& in, const Json& choice, Json* tools, bool* forced) {
  const Json* nested = find_field(choice, "allowed_tools");
  const Json& allowed = nested != nullptr ? *nested : choice;
  const Json* list = find_field(allowed, "tools");
  const std::string mode = text_of(find_field(allowed, "mode"));
  if (list == nullptr || !list->is_array() || (mode != "auto" && mode != "required")) {
    return in.fail_value("tool_choice", "allowed_tools needs a mode (auto or required) and a list of tools");
  }
  *forced = mode == "required";
  Json kept = Json::array();
  std::set<std::string> taken;  // a name said twice does not offer its tools twice
  for (const Json& entry : *list) {
    const Json* function = find_field(entry, "function");
    const std::string name = text_of(find_field(function != nullptr ? *function : entry, "name"));
    if (taken.count(name) > 0) continue;
    if (!has_tool(*tools, name))
      return in.fail_value("tool_choice", "allowed_tools names a tool that is not in tools");
    for (const Json& t : *tools) {
      if (t["function"]["name"] == name) kept.push_back(t);
    }
    taken.insert(name);
  }
  *tools = std::move(kept);
  if (*forced && tools->empty()) in.fail_value("tool_choice", "a required call needs a tool to call");
}

bool is_strict(const Json& tool) {
  const Json* strict = find_field(tool["function"], "strict");
  return strict != nullptr && strict->get<bool>();
}

// Holds the reply to calls of `tools` when one is forced, the arguments of strict tools to their schemas
// else.
std::optional<AnswerFormat> calls_format(const Json& tools, bool forced, bool parallel,
                                         const char* choice_name, const char* list_name) {
  if (!forced && std::none_of(tools.begin(), tools.end(), is_strict)) return std::nullopt;
  AnswerFormat format;
  format.source.kind = grammar::GrammarSource::Kind::kToolCalls;
  format.source.text = dump_json(tools);
  format.source.tools = {forced, parallel, forced};
  format.param = forced ? choice_name : list_name;
  return format;
}

}  // namespace

void read_tools(FieldReader& in, ToolChoice* out) {
  in.boolean("parallel_tool_calls", &out->parallel);
  const char* list_name = "tools";
  const Json* list = in.find("tools");
  const Json* choice = in.find("tool_choice");
  if (list == nullptr && in.has("functions")) {
    list_name = "functions";
    list = in.find("functions");
    choice = in.find("function_call");
    out->legacy = true;
    out->parallel = false;
  }
  Json tools = Json::array();
  if (list != nullptr && (!list->is_array() || list->size() > kMaxTools)) {
    return in.fail_value(list_name, std::string(list_name) + " must be a list of at most " +
                                        std::to_string(kMaxTools) + " tools, or null");
  }
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    auto tool = read_tool(in, (*list)[i], std::string(list_name) + "[" + std::to_string(i) + "]");
    if (!tool) return;
    tools.push_back(std::move(*tool));
  }
  const std::string word = text_of(choice);
  const char* choice_name = out->legacy ? "function_call" : "tool_choice";
  bool forced = false;
  if (choice != nullptr && choice->is_object()) {
    const std::string type = text_of(find_field(*choice, "type"));
    if (type == "allowed_tools") {
      apply_allowed(in, *choice, &tools, &forced);
    } else if (type == "function" || out->legacy) {
      const Json* function = find_field(*choice, "function");
      const std::string name = text_of(find_field(function != nullptr ? *function : *choice, "name"));
      if (!has_tool(tools, name)) {
        return in.fail_value(choice_name,
                             std::string(choice_name) + " names a tool that is not in " + list_name);
      }
      tools.erase(std::remove_if(tools.begin(), tools.end(),
                                 [&](const Json& t) { return t["function"]["name"] != name; }),
                  tools.end());
      forced = true;
    } else {
      return in.fail_value(choice_name, "tool_choice.type must be function or allowed_tools");
    }
  } else if (word == "required") {
    if (tools.empty()) return in.fail_value(choice_name, "tool_choice required needs tools");
    forced = true;
  } else if (choice != nullptr && word != "auto" && word != "none") {
    return in.fail_value(
        choice_name,
        std::string(choice_name) + " must be none, auto, required, or an object that names a function");
  }
  if (!in.ok() || tools.empty() || word == "none") return;
  out->tools = ToolSet::create(tools);
  out->calls = calls_format(tools, forced, out->parallel, choice_name, list_name);
  out->offered = std::move(tools);
}

}  // namespace firesteel::api
