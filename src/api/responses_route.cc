// POST /v1/responses and what belongs to it: input_tokens, and stored responses by their id.
#include <algorithm>
#include <utility>

#include "api/prepare.h"
#include "api/responses_request.h"
#include "api/responses_truncate.h"
#include "api/responses_writer.h"
#include "base/json.h"

namespace firesteel::api {
namespace {

struct Prepared {
  ChatRequest request;
  PreparedPrompt prompt;
};

std::variant<Prepared, ApiError> prepare(const Service& service, const ResponsesRequest& translated,
                                         const Json& chat) {
  auto parsed = parse_chat_request(chat, service.chat_defaults);
  if (auto* error = std::get_if<ApiError>(&parsed)) return translated.translate(std::move(*error));
  ChatRequest& request = std::get<ChatRequest>(parsed);
  if (auto error = check_model(service, request.model)) return *error;
  auto prompt = prepare_prompt(service, request);
  if (auto* error = std::get_if<ApiError>(&prompt)) return translated.translate(std::move(*error));
  return Prepared{std::move(request), std::move(std::get<PreparedPrompt>(prompt))};
}

// The most prompt tokens that leave room for the reply.
int64_t room_for_prompt(const Service& service, const ChatRequest& request) {
  const Window window = service.window();
  const int64_t most = window.pool > 0 ? std::min(window.tokens, window.pool) : window.tokens;
  return most - std::clamp<int64_t>(request.settings.max_tokens, 1, most);
}

// With `truncation: auto`: the longest end of the conversation that leaves room for the reply.
std::variant<Prepared, ApiError> prepare_that_fits(const Service& service,
                                                   const ResponsesRequest& translated) {
  auto best = prepare(service, translated, translated.chat);
  if (!translated.truncate || service.engine.load() == nullptr || std::holds_alternative<ApiError>(best)) {
    return best;
  }
  const auto tokens = [&] { return static_cast<int64_t>(std::get<Prepared>(best).prompt.ids.size()); };
  const int64_t room = room_for_prompt(service, std::get<Prepared>(best).request);
  const Json& messages = translated.chat["messages"];
  if (tokens() <= room || droppable_units(messages) == 0) return best;
  Json chat = translated.chat;
  find_cut(messages, tokens(), room, [&](size_t units) -> std::optional<int64_t> {
    chat["messages"] = drop_oldest(messages, units);
    auto next = prepare(service, translated, chat);
    const bool failed = std::holds_alternative<ApiError>(next);
    const auto size = failed ? 0 : static_cast<int64_t>(std::get<Prepared>(next).prompt.ids.size());
    // The first measure leaves out most; of those that fit, each later one leaves out less.
    if (failed || size <= room || tokens() > room) best = std::move(next);
    return failed ? std::nullopt : std::optional(size);
  });
  return best;
}

std::variant<ResponsesRequest, ApiError> read_request(const Service& service, http::Exchange& exchange) {
  auto body = parse_body(exchange.body());
  exchange.drop_body();
  if (auto* error = std::get_if<ApiError>(&body)) return *error;
  return translate_responses_request(std::move(std::get<Json>(body)), *service.responses);
}

void respond_json(http::Exchange& exchange, std::string body) {
  http::Response response;
  response.body = std::move(body);
  exchange.respond(std::move(response));
}

ApiError not_stored() {
  return {404, "not_found_error", "response_not_found", "",
          "no response of this id is stored here; responses are kept in memory, the newest only"};
}

}  // namespace

void handle_responses(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange) {
  auto read = read_request(*service, *exchange);
  if (auto* error = std::get_if<ApiError>(&read)) return respond_error(*exchange, *error);
  ResponsesRequest& translated = std::get<ResponsesRequest>(read);
  if (exchange->gone()) return;
  auto prepared = prepare_that_fits(*service, translated);
  if (auto* error = std::get_if<ApiError>(&prepared)) return respond_error(*exchange, *error);
  auto& [request, prompt] = std::get<Prepared>(prepared);
  auto plan = make_plan(*service, request.settings, std::move(prompt), "input", *exchange);
  if (auto* error = std::get_if<ApiError>(&plan)) {
    return respond_error(*exchange, translated.translate(std::move(*error)));
  }
  if (exchange->gone()) return;
  add_chat_options(request, &std::get<ReplyPlan>(plan));

  translated.settings["temperature"] = request.settings.sampling.temperature;
  translated.settings["top_p"] = request.settings.sampling.top_p;
  ResponsesReplyOptions reply;
  reply.model = reply_model(*service, request.model);
  reply.stream = request.settings.stream;
  if (request.settings.logprobs >= 0) reply.tokenizer = service->text.tokenizer.get();
  reply.exclude_reasoning = request.exclude_reasoning;
  reply.settings = dump_json(translated.settings);
  reply.settings = reply.settings.substr(1, reply.settings.size() - 2);
  reply.custom = std::move(translated.tools.custom);
  if (translated.store) reply.store = service->responses;
  reply.turns = std::move(translated.turns);
  reply.input = std::move(translated.input);
  auto writer = make_responses_writer(exchange, std::move(reply));
  ReplyRun::start(service, std::move(exchange), std::move(writer), std::move(std::get<ReplyPlan>(plan)));
}

void handle_response_tokens(const std::shared_ptr<Service>& service,
                            std::shared_ptr<http::Exchange> exchange) {
  auto read = read_request(*service, *exchange);
  if (auto* error = std::get_if<ApiError>(&read)) return respond_error(*exchange, *error);
  auto prepared = prepare_that_fits(*service, std::get<ResponsesRequest>(read));
  if (auto* error = std::get_if<ApiError>(&prepared)) return respond_error(*exchange, *error);
  respond_json(*exchange, "{\"object\":\"response.input_tokens\",\"input_tokens\":" +
                              std::to_string(std::get<Prepared>(prepared).prompt.ids.size()) + "}");
}

void handle_response(const Service& service, http::Exchange& exchange) {
  const std::string& query = exchange.head().query;
  if (("&" + query).find("&stream=true") != std::string::npos) {
    return respond_error(exchange,
                         unsupported_parameter("stream", "stored responses are not replayed as a stream"));
  }
  const auto found = service.responses->find(exchange.head().path_argument);
  if (found == nullptr) return respond_error(exchange, not_stored());
  respond_json(exchange, found->body());
}

void handle_delete_response(const Service& service, http::Exchange& exchange) {
  const std::string& id = exchange.head().path_argument;
  if (!service.responses->erase(id)) return respond_error(exchange, not_stored());
  respond_json(exchange, dump_json({{"id", id}, {"object", "response"}, {"deleted", true}}));
}

void handle_cancel_response(const Service& service, http::Exchange& exchange) {
  if (service.responses->find(exchange.head().path_argument) == nullptr) {
    return respond_error(exchange, not_stored());
  }
  respond_error(exchange, {400, "invalid_request_error", "invalid_value", "",
                           "only a background response can be cancelled, and this one was not"});
}

}  // namespace firesteel::api
