// POST /v1/messages: Anthropic's request as the internal chat request. Pure functions, any thread.
#pragma once

#include <variant>

#include "api/chat_request.h"

namespace firesteel::api {

/// `counting`: for /count_tokens, where max_tokens may be missing.
std::variant<ChatRequest, ApiError> parse_messages_request(const Json& body, const ChatDefaults& defaults,
                                                           bool counting);

}  // namespace firesteel::api
