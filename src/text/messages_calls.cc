#include "text/messages_calls.h"

#include <map>

#include "base/json.h"
#include "text/messages.h"

namespace firesteel {

using Json = nlohmann::ordered_json;

std::optional<Json> read_call_arguments(const Json& arguments) {
  if (arguments.is_null()) return Json::object();
  if (arguments.is_object()) return arguments;
  if (!arguments.is_string()) return std::nullopt;
  const std::string& text = arguments.get_ref<const std::string&>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
  // Some room is left for the message around it, which has a depth limit of its own.
  auto parsed = parse_json(text, kMaxJsonDepth);
  if (!parsed.ok()) return std::nullopt;
  if (parsed->is_null()) return Json::object();
  if (!parsed->is_object()) return std::nullopt;
  return std::move(*parsed);
}

CallState read_call(const Json& call) {
  CallState state;
  const auto unusable = [&](const char* why) {
    state.why = why;
    return state;
  };
  if (!call.is_object()) return unusable("it is not an object");
  if (const auto id = call.find("id"); id != call.end() && id->is_string()) state.id = id->get<std::string>();
  const auto function = call.find("function");
  // The flat form of a call, {"name", "arguments"}, is read too.
  const Json& body = function != call.end() && function->is_object() ? *function : call;
  const auto name = body.find("name");
  if (name == body.end() || !name->is_string() || name->get_ref<const std::string&>().empty())
    return unusable("it names no function");
  const auto given = body.find("arguments");
  std::optional<Json> arguments = given == body.end() ? Json::object() : read_call_arguments(*given);
  if (!arguments) return unusable("its arguments are not a JSON object");
  if (!state.id.empty()) state.call["id"] = state.id;
  state.call["type"] = "function";
  state.call["function"] = Json::object();
  state.call["function"]["name"] = *name;
  state.call["function"]["arguments"] = std::move(*arguments);
  state.usable = true;
  return state;
}

std::vector<size_t> results_of_bad_calls(const std::vector<CallState>& calls,
                                         const std::vector<ResultRef>& results) {
  std::map<std::string, std::vector<const CallState*>> by_id;
  for (const CallState& call : calls) by_id[call.id].push_back(&call);
  std::map<std::string, size_t> seen;
  std::vector<size_t> dropped;
  for (const ResultRef& result : results) {
    const auto it = by_id.find(result.id);
    if (it == by_id.end()) continue;
    const size_t n = seen[result.id]++;
    if (n < it->second.size() && !it->second[n]->usable) dropped.push_back(result.turn);
  }
  return dropped;
}

}  // namespace firesteel
