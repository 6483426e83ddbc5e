#include "api/chat_request.h"

#include <algorithm>

#include "base/json.h"
#include "base/log.h"

namespace firesteel::api {
namespace {

constexpr size_t kMaxLiftedFields = 256;  // each is looked for in the body

void read_template_switches(FieldReader& in, ChatRequest* out) {
  const Json* kwargs = in.find("chat_template_kwargs");
  if (kwargs != nullptr) {
    if (!kwargs->is_object()) {
      return in.fail_value("chat_template_kwargs", "chat_template_kwargs must be an object or null");
    }
    out->prompt.variables = *kwargs;
  }
  bool generate = true, go_on = false, echo = false;
  in.boolean("add_generation_prompt", &generate);
  in.boolean("continue_final_message", &go_on);
  if (go_on && in.has("add_generation_prompt") && generate) {
    return in.fail_value("continue_final_message",
                         "continue_final_message and add_generation_prompt cannot both be true");
  }
  out->prompt.add_generation_prompt = generate && !go_on;
  out->prompt.continue_final_message = go_on;
  in.boolean("echo", &echo);
  if (echo && !go_on) {
    in.fail(
        unsupported_parameter("echo", "echo needs continue_final_message: true: it repeats that message"));
  }
  out->echo = echo;
}

}  // namespace

std::variant<Json, ApiError> parse_body(std::string_view text) {
  Result<Json> parsed = parse_json(text);
  if (!parsed.ok()) {
    ApiError e = from_error(parsed.error());
    e.code = "invalid_json";
    return e;
  }
  Json body = std::move(parsed).value();
  if (!body.is_object()) {
    return ApiError{400, "invalid_request_error", "invalid_json", "",
                    "the request body must be a JSON object (it starts at byte 0)"};
  }
  if (const Json* extra = find_field(body, "extra_body"); extra != nullptr && extra->is_object()) {
    if (extra->size() > kMaxLiftedFields) {
      return invalid_value("extra_body",
                           "extra_body may hold at most " + std::to_string(kMaxLiftedFields) + " fields");
    }
    const Json lifted = *extra;
    for (auto it = lifted.begin(); it != lifted.end(); ++it) {
      if (!body.contains(it.key())) body[it.key()] = it.value();
    }
  }
  return body;
}

std::variant<ChatRequest, ApiError> parse_chat_request(const Json& body, const ChatDefaults& defaults) {
  ChatRequest out;
  FieldReader in(body);
  const Json* messages = in.find("messages");
  if (messages == nullptr) {
    return ApiError{400, "invalid_request_error", "missing_required_parameter", "messages",
                    "messages is required: a list of at least one message"};
  }
  if (!messages->is_array() || messages->empty()) {
    return invalid_value("messages", "messages must be a list of at least one message");
  }
  in.string("model", &out.model);
  read_settings(in, defaults.settings, {"max_tokens", "max_completion_tokens"}, &out.settings);
  read_chat_logprobs(in, &out.settings);
  refuse_unbuilt(in);
  read_tools(in, &out.tools);
  read_template_switches(in, &out);
  bool include_reasoning = true;
  in.boolean("include_reasoning", &include_reasoning);
  out.exclude_reasoning = !include_reasoning;
  if (const Json* reasoning = in.find("reasoning"); reasoning != nullptr && reasoning->is_object()) {
    FieldReader inner(*reasoning);
    inner.boolean("exclude", &out.exclude_reasoning);
    if (!inner.ok()) in.fail_value("reasoning", "reasoning.exclude must be true or false");
  }
  if (!in.ok()) return *in.error();

  std::vector<std::string> notes;
  out.prompt.thinking = defaults.thinking;
  out.prompt.trust_caller_markup = defaults.trust_caller_markup;
  if (auto refusal = read_thinking(body, &out.prompt.thinking, &notes)) return from_refusal(*refusal);
  out.settings.think_budget = out.prompt.thinking.budget;
  if (out.settings.format) {
    // The reply is the constrained text and no call can be made.
    if (out.tools.calls) {
      return invalid_value("tool_choice", "tool_choice and " + out.settings.format->param +
                                              " both constrain the reply: at most one may");
    }
    out.tools.tools = nullptr;
  } else {
    out.settings.format = std::move(out.tools.calls);
  }
  MessageOptions options;
  options.late_system_as_user = !defaults.traits.late_system;
  options.continue_final_message = out.prompt.continue_final_message;
  if (auto refusal = normalize_messages(*messages, options, &out.conversation)) return from_refusal(*refusal);
  out.conversation.tools = std::move(out.tools.offered);
  for (const std::string& note : out.conversation.notes) notes.push_back(note);
  for (const std::string& note : notes) LOG_INFO("chat: {}", note);
  return out;
}

std::variant<int64_t, ApiError> fit_reply(int64_t prompt, int64_t asked, int64_t by_default,
                                          const Window& window, const std::string& noun) {
  const bool pool_rules = window.pool > 0 && window.pool < window.tokens;
  const int64_t most = pool_rules ? window.pool : window.tokens;
  if (prompt < most && (asked == 0 || asked <= most - prompt)) {
    return asked != 0 ? asked : std::min(std::max<int64_t>(by_default, 1), most - prompt);
  }
  std::string message = "This server's maximum context length is " + std::to_string(most) + " tokens" +
                        (pool_rules ? " (its shared cache holds no more)" : "") + ". However, your " + noun +
                        " resulted in " + std::to_string(prompt) + " tokens";
  if (prompt >= most) {
    message += ", which exceeds the context window. Please reduce the length of the " + noun + ".";
  } else {
    message +=
        " and " + std::to_string(asked) +
        " reply tokens were requested, which together exceed the context window. Please reduce the length of "
        "the " +
        noun + " or of the reply.";
  }
  return ApiError{400, "invalid_request_error", "context_length_exceeded", noun, std::move(message)};
}

}  // namespace firesteel::api
