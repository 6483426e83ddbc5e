// POST /v1/chat/completions: the body as the internal request, or why it is refused. Pure functions, any
// thread.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "api/chat_tools.h"
#include "api/errors.h"
#include "api/settings.h"
#include "text/messages.h"
#include "text/prompt.h"

namespace firesteel::api {

/// What a conversation asks of the model, whatever route it came by.
struct ChatRequest {
  ReplySettings settings;
  Conversation conversation;
  PromptOptions prompt;
  ToolChoice tools;   // `offered` has moved into the conversation
  std::string model;  // as the client named it, "" if it did not
  bool exclude_reasoning = false;
  bool echo = false;  // the message that the reply continues is shown before it
};

struct ChatDefaults {
  SettingDefaults settings;
  Thinking thinking;
  PromptTraits traits;
  bool trust_caller_markup = false;
};

/// Text of a request body to a JSON object: `invalid_json` with a byte offset otherwise. Members of a literal
/// `extra_body` object are lifted to the top; fields that are there already win.
std::variant<Json, ApiError> parse_body(std::string_view text);

std::variant<ChatRequest, ApiError> parse_chat_request(const Json& body, const ChatDefaults& defaults);

/// The reply's token budget, or 400 `context_length_exceeded`. `asked`: the request's own limit, 0 if it gave
/// none. `noun` says what the prompt was ("messages", "prompt", "input"), and is the field that is blamed.
struct Window {
  int64_t tokens = 0;  // a request may span
  int64_t pool = 0;    // tokens that the shared cache holds
};
std::variant<int64_t, ApiError> fit_reply(int64_t prompt, int64_t asked, int64_t by_default,
                                          const Window& window, const std::string& noun);

}  // namespace firesteel::api
