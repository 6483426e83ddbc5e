// From a checked request to what the engine takes; shared by the generating routes. Worker threads.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "api/chat_request.h"
#include "api/reply_run.h"
#include "api/service.h"

namespace firesteel::api {

struct PreparedPrompt {
  std::vector<int32_t> ids;
  bool in_think = false;  // the reply continues an open think block
  std::string conversation;  // its key in the reply memory, "" without one
};

/// Puts back into the conversation what the server remembers of its replies, renders and tokenizes it.
std::variant<PreparedPrompt, ApiError> prepare_prompt(const Service& service, ChatRequest& request);

/// The plan of a reply to `prompt`, with its token budget checked against the window and the constraint of its
/// answer compiled. `noun` as in fit_reply(). Adds headers to the answer where the request asked for more than
/// is enforced.
std::variant<ReplyPlan, ApiError> make_plan(const Service& service, const ReplySettings& settings,
                                            PreparedPrompt prompt, const std::string& noun,
                                            http::Exchange& exchange);
/// What a chat request adds to its plan: tools, an open last message.
void add_chat_options(const ChatRequest& request, ReplyPlan* plan);

/// 404 for a model that is not served here, when the server is strict about it.
std::optional<ApiError> check_model(const Service& service, const std::string& name);
/// The name that a reply is signed with.
std::string reply_model(const Service& service, const std::string& asked);

}  // namespace firesteel::api
