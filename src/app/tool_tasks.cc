#include "app/tool_tasks.h"

#include <algorithm>
#include <utility>

#include "base/json.h"

namespace firesteel {
namespace {

using Json = nlohmann::ordered_json;
using Judge = std::function<std::string(const ToolReply&)>;

Json tool(const char* name, const char* description, Json properties, Json required) {
  return {
      {"type", "function"},
      {"function",
       {{"name", name},
        {"description", description},
        {"parameters",
         {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}}}}}};
}

Json weather() {
  return tool("get_weather", "Get the weather", {{"city", {{"type", "string"}}}}, Json::array({"city"}));
}
Json time_now() { return tool("get_time", "The time now", Json::object(), Json::array()); }
Json booking() {
  return tool("book_table", "Books a table in a restaurant",
              {{"guests", {{"type", "integer"}}},
               {"outside", {{"type", "boolean"}}},
               {"names", {{"type", "array"}, {"items", {{"type", "string"}}}}},
               {"customer_number", {{"type", "string"}}}},
              Json::array({"guests", "outside", "names", "customer_number"}));
}

Json user(const char* text) { return {{"role", "user"}, {"content", text}}; }
Json request(Json messages, Json tools, Json more = Json::object()) {
  Json body = {{"messages", std::move(messages)},
               {"tools", std::move(tools)},
               {"temperature", 0},
               {"max_tokens", 2000},
               {"reasoning_effort", "low"}};
  body.update(more);
  return body;
}

/// "" or what was there instead of the wanted number of calls.
std::string count(const ToolReply& reply, size_t wanted) {
  if (reply.calls.size() == wanted) return "";
  std::string out = std::to_string(reply.calls.size()) + (reply.calls.size() == 1 ? " call" : " calls") +
                    " instead of " + std::to_string(wanted) + ", finish_reason " + reply.finish_reason;
  if (!reply.content.empty()) out += ", content " + dump_json(Json(reply.content.substr(0, 100)));
  return out;
}
Json arguments(const ToolReply::Call& call) {
  auto parsed = parse_json(call.arguments);
  return parsed.ok() ? std::move(parsed).value() : Json();
}
std::string named(const ToolReply::Call& call, const std::string& wanted) {
  return call.name == wanted ? "" : "the call is to " + call.name + " instead of " + wanted;
}
/// `key` of the arguments is exactly `wanted`, type included.
std::string is(const Json& given, const char* key, const Json& wanted) {
  const Json* value = member(&given, key);
  if (value != nullptr && value->type() == wanted.type() && *value == wanted) return "";
  const bool number =
      value != nullptr && value->is_number_integer() && wanted.is_number_integer() && *value == wanted;
  if (number) return "";
  return std::string(key) + " is " + (value == nullptr ? "not there" : dump_json(*value)) + " instead of " +
         dump_json(wanted);
}
std::string city(const ToolReply::Call& call, const char* wanted) {
  if (std::string fault = named(call, "get_weather"); !fault.empty()) return fault;
  const Json given = arguments(call);
  const Json* value = member(&given, "city");
  const bool good = value != nullptr && value->is_string() &&
                    value->get_ref<const std::string&>().find(wanted) != std::string::npos;
  return good ? "" : "the arguments are " + call.arguments + ", without a city that says " + wanted;
}

std::string one_call(const ToolReply& reply) {
  std::string fault = count(reply, 1);
  return fault.empty() ? city(reply.calls[0], "Oslo") : fault;
}

std::string typed(const ToolReply& reply) {
  std::string fault = count(reply, 1);
  if (fault.empty()) fault = named(reply.calls[0], "book_table");
  if (!fault.empty()) return fault;
  const Json given = arguments(reply.calls[0]);
  const std::pair<const char*, Json> wanted[] = {{"guests", 4},
                                                 {"outside", true},
                                                 {"names", Json::array({"Ada", "Bob"})},
                                                 {"customer_number", "0012345"}};
  for (const auto& [key, value] : wanted) {
    if (fault.empty()) fault = is(given, key, value);
  }
  return fault;
}

std::string no_arguments(const ToolReply& reply) {
  std::string fault = count(reply, 1);
  if (fault.empty()) fault = named(reply.calls[0], "get_time");
  if (fault.empty() && arguments(reply.calls[0]) != Json::object()) {
    fault = "the arguments are " + reply.calls[0].arguments + " instead of {}";
  }
  return fault;
}

std::string two_calls(const ToolReply& reply) {
  std::string fault = count(reply, 2);
  if (!fault.empty()) return fault;
  if (city(reply.calls[0], "Rome").empty()) return city(reply.calls[1], "Oslo");
  fault = city(reply.calls[0], "Oslo");
  return fault.empty() ? city(reply.calls[1], "Rome") : fault;
}

std::string says_twelve(const ToolReply& reply) {
  std::string fault = count(reply, 0);
  if (fault.empty() && reply.finish_reason != "stop") fault = "finish_reason is " + reply.finish_reason;
  if (fault.empty() && reply.content.find("12") == std::string::npos) {
    fault = "the result's 12 is not in the content " + dump_json(Json(reply.content.substr(0, 100)));
  }
  return fault;
}

std::string no_call(const ToolReply& reply) {
  std::string fault = count(reply, 0);
  return fault.empty() && reply.content.empty() ? "the content is empty" : fault;
}

/// At least one call, each to an offered tool with its required arguments.
Judge forced(std::vector<std::pair<std::string, const char*>> offered) {
  return [offered = std::move(offered)](const ToolReply& reply) -> std::string {
    if (reply.calls.empty()) return count(reply, 1);
    for (const ToolReply::Call& call : reply.calls) {
      const auto at =
          std::find_if(offered.begin(), offered.end(), [&](const auto& o) { return o.first == call.name; });
      if (at == offered.end()) return "the call is to " + call.name + ", which was not asked for";
      const Json given = arguments(call);
      const Json* value = member(&given, at->second);
      if (value == nullptr || !value->is_string()) {
        return "the arguments are " + call.arguments + ", without the required string " + at->second;
      }
    }
    return "";
  };
}

Json after_result() {
  const Json call = {{"id", "call_1"},
                     {"type", "function"},
                     {"function", {{"name", "get_weather"}, {"arguments", "{\"city\":\"Oslo\"}"}}}};
  return Json::array({user("How warm is it in Oslo?"),
                      {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}},
                      {{"role", "tool"}, {"tool_call_id", "call_1"}, {"content", "Oslo: 12 degrees, rain"}}});
}

}  // namespace

std::vector<ToolTask> tool_tasks() {
  const Json greet =
      tool("greet", "Says hello to somebody", {{"name", {{"type", "string"}}}}, Json::array({"name"}));
  const Json two_cities =
      Json::array({{{"role", "system"}, {"content", "Make calls that do not need each other in one turn."}},
                   user("What is the weather in Oslo and in Rome?")});
  const Json oslo = Json::array({user("What is the weather in Oslo?")});
  return {
      {"one call", request(oslo, Json::array({weather()})), one_call},
      {"typed arguments",
       request(Json::array({user("Book a table outside for 4 guests. The names are Ada and Bob, the customer "
                                 "number is 0012345. Use the tool.")}),
               Json::array({booking()})),
       typed},
      {"no arguments",
       request(Json::array({user("What time is it now? Use the tool.")}), Json::array({time_now()})),
       no_arguments},
      {"two calls", request(two_cities, Json::array({weather()})), two_calls},
      {"answer to a result", request(after_result(), Json::array({weather()})), says_twelve},
      {"tool_choice none",
       request(Json::array({user("Which tools would tell you the weather in Oslo? Answer in words.")}),
               Json::array({weather()}), {{"tool_choice", "none"}}),
       no_call},
      {"tool_choice required",
       request(Json::array({user("Say hello to Bob.")}), Json::array({weather(), greet}),
               {{"tool_choice", "required"}}),
       forced({{"get_weather", "city"}, {"greet", "name"}}), true},
      {"tool_choice named",
       request(Json::array({user("Say hello to Bob, who lives in Oslo.")}), Json::array({weather(), greet}),
               {{"tool_choice", {{"type", "function"}, {"function", {{"name", "get_weather"}}}}}}),
       forced({{"get_weather", "city"}}), true},
      {"parallel_tool_calls false",
       request(two_cities, Json::array({weather()}), {{"parallel_tool_calls", false}}),
       [](const ToolReply& reply) { return count(reply, 1); }, true},
  };
}

}  // namespace firesteel
