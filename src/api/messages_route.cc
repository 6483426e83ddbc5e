// POST /v1/messages and /v1/messages/count_tokens.
#include <algorithm>
#include <utility>

#include "api/messages_request.h"
#include "api/messages_writer.h"
#include "api/prepare.h"

namespace firesteel::api {
namespace {

struct Prepared {
  ChatRequest request;
  PreparedPrompt prompt;
};

std::variant<Prepared, ApiError> prepare(const Service& service, http::Exchange& exchange, bool counting) {
  auto body = parse_body(exchange.body());
  if (auto* error = std::get_if<ApiError>(&body)) return *error;
  auto parsed = parse_messages_request(std::get<Json>(body), service.chat_defaults, counting);
  exchange.drop_body();
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  ChatRequest& request = std::get<ChatRequest>(parsed);
  if (auto error = check_model(service, request.model)) return *error;
  auto prompt = prepare_prompt(service, request);
  if (auto* error = std::get_if<ApiError>(&prompt)) return *error;
  return Prepared{std::move(request), std::move(std::get<PreparedPrompt>(prompt))};
}

// Clients of this route look for these words.
ApiError too_long(const Service& service, int64_t prompt, int64_t reply) {
  const Window window = service.window();
  const int64_t most = window.pool > 0 ? std::min(window.tokens, window.pool) : window.tokens;
  std::string message = "prompt is too long: " + std::to_string(prompt) + " tokens > ";
  if (prompt >= most) {
    message += std::to_string(most) + " maximum";
  } else {
    message += std::to_string(std::max<int64_t>(most - reply, 0)) + " maximum (" + std::to_string(most) +
               " less max_tokens " + std::to_string(reply) + ")";
  }
  return {400, "invalid_request_error", "context_length_exceeded", "messages", std::move(message)};
}

}  // namespace

void handle_messages(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange) {
  auto prepared = prepare(*service, *exchange, false);
  if (auto* error = std::get_if<ApiError>(&prepared)) return respond_error(*exchange, *error);
  auto& [request, prompt] = std::get<Prepared>(prepared);
  const auto prompt_tokens = static_cast<int64_t>(prompt.ids.size());
  auto plan = make_plan(*service, request.settings, std::move(prompt), "messages", *exchange);
  if (auto* error = std::get_if<ApiError>(&plan)) {
    if (error->code != "context_length_exceeded") return respond_error(*exchange, *error);
    return respond_error(*exchange, too_long(*service, prompt_tokens, request.settings.max_tokens));
  }
  if (exchange->gone()) return;
  add_chat_options(request, &std::get<ReplyPlan>(plan));
  auto writer = make_messages_writer(
      exchange, {reply_model(*service, request.model), request.settings.stream, prompt_tokens});
  ReplyRun::start(service, std::move(exchange), std::move(writer), std::move(std::get<ReplyPlan>(plan)));
}

void handle_count_tokens(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange) {
  auto prepared = prepare(*service, *exchange, true);
  if (auto* error = std::get_if<ApiError>(&prepared)) return respond_error(*exchange, *error);
  http::Response response;
  response.body = "{\"input_tokens\":" + std::to_string(std::get<Prepared>(prepared).prompt.ids.size()) + "}";
  exchange->respond(std::move(response));
}

}  // namespace firesteel::api
