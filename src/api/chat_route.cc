// POST /v1/chat/completions: body → request → prompt ids → a run.
#include <utility>

#include "api/chat_writer.h"
#include "api/prepare.h"

namespace firesteel::api {

void handle_chat(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange) {
  auto body = parse_body(exchange->body());
  if (auto* error = std::get_if<ApiError>(&body)) return respond_error(*exchange, *error);
  auto parsed = parse_chat_request(std::get<Json>(body), service->chat_defaults);
  body = Json();
  exchange->drop_body();
  if (auto* error = std::get_if<ApiError>(&parsed)) return respond_error(*exchange, *error);
  ChatRequest& request = std::get<ChatRequest>(parsed);
  if (auto error = check_model(*service, request.model)) return respond_error(*exchange, *error);
  if (exchange->gone()) return;
  auto prepared = prepare_prompt(*service, request);
  if (auto* error = std::get_if<ApiError>(&prepared)) return respond_error(*exchange, *error);
  auto plan = make_plan(*service, request.settings, std::move(std::get<PreparedPrompt>(prepared)), "messages",
                        *exchange);
  if (auto* error = std::get_if<ApiError>(&plan)) return respond_error(*exchange, *error);
  if (exchange->gone()) return;
  add_chat_options(request, &std::get<ReplyPlan>(plan));
  std::get<ReplyPlan>(plan).text.follow_calls =
      request.settings.stream && request.settings.incremental_calls && !request.tools.legacy;

  const ReplySettings& settings = request.settings;
  ChatReplyOptions reply;
  reply.model = reply_model(*service, request.model);
  reply.choices = static_cast<int>(settings.choices);
  reply.stream = settings.stream;
  reply.stream_usage = settings.stream_usage;
  reply.continuous_usage = settings.continuous_usage;
  reply.exclude_reasoning = request.exclude_reasoning;
  reply.legacy_function = request.tools.legacy;
  reply.return_token_ids = settings.return_token_ids;
  if (request.echo) reply.echo = find_string(request.conversation.messages.back(), "content");
  if (settings.logprobs >= 0) reply.tokenizer = service->text.tokenizer.get();
  if (settings.return_token_ids) reply.prompt_tokens = std::get<ReplyPlan>(plan).requests.front().prompt;
  auto writer = make_chat_writer(exchange, std::move(reply));
  ReplyRun::start(service, std::move(exchange), std::move(writer), std::move(std::get<ReplyPlan>(plan)));
}

}  // namespace firesteel::api
