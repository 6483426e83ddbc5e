#include "api/messages_request.h"

#include <string>

#include "base/json.h"
#include "base/log.h"

namespace firesteel::api {
namespace {

std::string word(const Json& object, std::string_view name) {
  const Json* v = find_field(object, name);
  return v != nullptr && v->is_string() ? v->get<std::string>() : std::string();
}

Json text_part(std::string text) { return {{"type", "text"}, {"text", std::move(text)}}; }

// Builds the chat form of one conversation; the first fault sticks.
class Translator {
 public:
  std::optional<ApiError> error;
  Json messages = Json::array();

  void system(const Json& value) {
    if (value.is_string()) {
      messages.push_back({{"role", "system"}, {"content", value}});
      return;
    }
    Json parts = Json::array();
    if (!value.is_array()) return fail("system", "system must be a string or a list of text blocks");
    for (const Json& block : value) {
      if (word(block, "type") != "text") return fail("system", "system may hold text blocks only");
      parts.push_back(text_part(word(block, "text")));
    }
    if (!parts.empty()) messages.push_back({{"role", "system"}, {"content", std::move(parts)}});
  }

  void message(const Json& value, size_t index) {
    const std::string where = "messages[" + std::to_string(index) + "]";
    const std::string role = word(value, "role");
    if (role != "user" && role != "assistant" && role != "system") {
      return fail(where + ".role", "a message's role must be user or assistant");
    }
    const Json* content = find_field(value, "content");
    if (content == nullptr || content->is_string()) {
      messages.push_back({{"role", role}, {"content", content == nullptr ? Json("") : *content}});
      return;
    }
    if (!content->is_array()) return fail(where + ".content", "content must be a string or a list of blocks");
    role == "assistant" ? assistant(*content, where) : user(*content, role, where);
  }

 private:
  void fail(std::string param, std::string message) {
    if (!error) error = invalid_value(std::move(param), std::move(message));
  }

  static std::string at(const std::string& where, size_t i) {
    return where + ".content[" + std::to_string(i) + "]";
  }

  void user(const Json& blocks, const std::string& role, const std::string& where) {
    Json parts = Json::array();
    const auto close = [&] {
      if (!parts.empty())
        messages.push_back({{"role", role}, {"content", std::exchange(parts, Json::array())}});
    };
    for (size_t i = 0; i < blocks.size(); ++i) {
      const Json& block = blocks[i];
      if (word(block, "type") == "tool_result") {
        close();
        tool_result(block, at(where, i));
      } else {
        append_part(block, at(where, i), &parts);
      }
    }
    close();
  }

  void tool_result(const Json& block, const std::string& where) {
    Json result{{"role", "tool"}, {"tool_call_id", word(block, "tool_use_id")}};
    const Json* content = find_field(block, "content");
    if (content == nullptr) {
      result["content"] = "";
    } else if (content->is_string()) {
      result["content"] = *content;
    } else if (content->is_array()) {
      Json parts = Json::array();
      for (size_t i = 0; i < content->size(); ++i) append_part((*content)[i], at(where, i), &parts);
      result["content"] = std::move(parts);
    } else {
      return fail(where + ".content", "a tool result's content must be a string or a list of blocks");
    }
    messages.push_back(std::move(result));
  }

  void append_part(const Json& block, const std::string& where, Json* parts) {
    const std::string type = word(block, "type");
    if (type == "text") {
      parts->push_back(text_part(word(block, "text")));
    } else if (type == "image") {
      const Json* source = find_field(block, "source");
      const std::string kind = source == nullptr ? "" : word(*source, "type");
      std::string url;
      if (kind == "base64") url = "data:" + word(*source, "media_type") + ";base64," + word(*source, "data");
      if (kind == "url") url = word(*source, "url");
      if (url.empty()) return fail(where, "an image needs a source of type base64 or url");
      parts->push_back({{"type", "image_url"}, {"image_url", {{"url", std::move(url)}}}});
    } else if (type == "document") {
      const Json* source = find_field(block, "source");
      if (source == nullptr || word(*source, "type") != "text") {
        error = error ? error
                      : ApiError{400, "invalid_request_error", "unsupported_media", where,
                                 "only plain text documents are read"};
        return;
      }
      parts->push_back(text_part(word(*source, "data")));
    } else if (type == "search_result") {
      std::string text = word(block, "title") + "\n" + word(block, "source") + "\n";
      if (const Json* content = find_field(block, "content"); content != nullptr && content->is_array()) {
        for (const Json& c : *content) text += word(c, "text");
      }
      parts->push_back(text_part(std::move(text)));
    } else if (type == "thinking" || type == "redacted_thinking") {
      // Replayed out of place; not the user's words.
    } else {
      fail(where, "a block of type " + type.substr(0, 64) + " is not understood here");
    }
  }

  void assistant(const Json& blocks, const std::string& where) {
    Json turn{{"role", "assistant"}};
    std::string text, reasoning;
    bool reasoned = false;
    Json calls = Json::array();
    for (size_t i = 0; i < blocks.size(); ++i) {
      const Json& block = blocks[i];
      const std::string type = word(block, "type");
      if (type == "text") {
        text += word(block, "text");
      } else if (type == "thinking") {
        reasoning += word(block, "thinking");
        reasoned = true;
      } else if (type == "redacted_thinking") {
        continue;
      } else if (type == "tool_use") {
        const Json* input = find_field(block, "input");
        calls.push_back(
            {{"id", word(block, "id")},
             {"type", "function"},
             {"function",
              {{"name", word(block, "name")}, {"arguments", input == nullptr ? Json::object() : *input}}}});
      } else if (type == "server_tool_use" || type.ends_with("_tool_result")) {
        LOG_INFO("messages: a block of type {} in {} was left out", type, where);
      } else {
        fail(at(where, i),
             "a block of type " + type.substr(0, 64) + " is not understood in an assistant turn");
      }
    }
    turn["content"] = std::move(text);
    if (reasoned) turn["reasoning_content"] = std::move(reasoning);
    if (!calls.empty()) turn["tool_calls"] = std::move(calls);
    messages.push_back(std::move(turn));
  }
};

// Client tools in OpenAI's form; the provider's own tools cannot run here and are left out.
void translate_tools(const Json& body, FieldReader& in, Json* chat) {
  Json list = Json::array();
  const Json* tools = in.find("tools");
  if (tools != nullptr && !tools->is_array()) return in.fail_value("tools", "tools must be a list");
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string type = word(tool, "type");
    if (!type.empty() && type != "custom") {
      LOG_INFO("messages: the tool of type {} was left out", type);
      continue;
    }
    Json function{{"name", word(tool, "name")}};
    if (const Json* d = find_field(tool, "description")) function["description"] = *d;
    if (const Json* s = find_field(tool, "input_schema")) function["parameters"] = *s;
    if (const Json* s = find_field(tool, "strict")) function["strict"] = *s;
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  if (!list.empty()) (*chat)["tools"] = std::move(list);
  const Json* choice = find_field(body, "tool_choice");
  if (choice == nullptr) return;
  const std::string type = word(*choice, "type");
  if (type == "auto" || type == "none") {
    (*chat)["tool_choice"] = type;
  } else if (type == "any") {
    (*chat)["tool_choice"] = "required";
  } else if (type == "tool") {
    (*chat)["tool_choice"] = {{"type", "function"}, {"function", {{"name", word(*choice, "name")}}}};
  } else {
    return in.fail_value("tool_choice", "tool_choice.type must be auto, none, any or tool");
  }
  FieldReader inner(*choice);
  bool serial = false;
  inner.boolean("disable_parallel_tool_use", &serial);
  if (!inner.ok()) in.fail_value("tool_choice", "disable_parallel_tool_use must be true or false");
  if (serial) (*chat)["parallel_tool_calls"] = false;
}

void translate_thinking(FieldReader& in, int64_t max_tokens, Json* chat) {
  (*chat)["chat_template_kwargs"] = {{"enable_thinking", false}};
  const Json* thinking = in.find("thinking");
  if (thinking != nullptr) {
    const std::string type = word(*thinking, "type");
    if (type == "enabled") {
      int64_t budget = 0;
      FieldReader inner(*thinking);
      inner.integer("budget_tokens", 1, INT64_MAX, &budget);
      if (!inner.ok() || (budget != 0 && max_tokens != 0 && budget >= max_tokens)) {
        return in.fail_value("thinking", "thinking.budget_tokens must be positive and below max_tokens");
      }
      if (budget != 0) (*chat)["thinking_budget"] = budget;
    } else if (type != "adaptive" && type != "disabled") {
      return in.fail_value("thinking", "thinking.type must be enabled, adaptive or disabled");
    }
    (*chat)["chat_template_kwargs"] = {{"enable_thinking", type != "disabled"}};
  }
  const Json* output = in.find("output_config");
  if (output == nullptr) return;
  if (const Json* effort = find_field(*output, "effort")) (*chat)["reasoning_effort"] = *effort;
  if (const Json* format = find_field(*output, "format")) {
    if (word(*format, "type") != "json_schema") {
      return in.fail_value("output_config", "output_config.format.type must be json_schema");
    }
    const Json* schema = find_field(*format, "schema");
    (*chat)["response_format"] = {
        {"type", "json_schema"},
        {"json_schema",
         {{"name", "output"}, {"strict", true}, {"schema", schema ? *schema : Json::object()}}}};
  }
}

}  // namespace

std::variant<ChatRequest, ApiError> parse_messages_request(const Json& body, const ChatDefaults& defaults,
                                                           bool counting) {
  FieldReader in(body);
  Json chat = Json::object();
  const auto missing = [&](const char* name, const char* what) {
    in.fail(
        {400, "invalid_request_error", "missing_required_parameter", name, std::string(name) + ": " + what});
  };
  if (!in.has("model")) missing("model", "field required");
  const Json* messages = in.find("messages");
  if (messages == nullptr) {
    missing("messages", "field required");
  } else if (!messages->is_array() || messages->empty()) {
    in.fail_value("messages", "messages must be a list of at least one message");
  } else if (messages->size() > kMaxTurns) {  // before any is translated
    in.fail_value("messages", "messages may hold at most " + std::to_string(kMaxTurns) + " messages");
  }
  int64_t max_tokens = 0;
  in.integer("max_tokens", 1, INT64_MAX, &max_tokens);
  if (max_tokens == 0 && !counting) missing("max_tokens", "field required");
  for (const char* name : {"container", "mcp_servers"}) {
    const Json* v = in.find(name);
    if (v != nullptr && !(v->is_array() && v->empty())) {
      in.fail(unsupported_parameter(name, std::string(name) + " is not supported by this server"));
    }
  }
  if (!in.ok()) return *in.error();

  for (const char* name :
       {"model", "max_tokens", "temperature", "top_p", "top_k", "stream", "draft", "seed", "priority"}) {
    if (const Json* v = in.find(name)) chat[name] = *v;
  }
  if (const Json* stops = in.find("stop_sequences")) chat["stop"] = *stops;
  translate_tools(body, in, &chat);
  translate_thinking(in, max_tokens, &chat);
  Translator translator;
  if (const Json* system = in.find("system")) translator.system(*system);
  for (size_t i = 0; i < messages->size(); ++i) translator.message((*messages)[i], i);
  if (translator.error) in.fail(*translator.error);
  if (!in.ok()) return *in.error();
  chat["messages"] = std::move(translator.messages);
  return parse_chat_request(chat, defaults);
}

}  // namespace firesteel::api
