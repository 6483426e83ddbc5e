// POST /tokenize and /detokenize: the ids that a prompt or a conversation becomes, and back.
#include "api/prepare.h"
#include "api/service.h"
#include "base/json.h"

namespace firesteel::api {
namespace {

constexpr size_t kMaxIds = 8u << 20;

void respond_json(http::Exchange& exchange, const Json& body) {
  http::Response response;
  response.body = dump_json(body);
  exchange.respond(std::move(response));
}

std::variant<std::vector<int32_t>, ApiError> ids_of(const Service& service, const Json& body) {
  FieldReader in(body);
  if (in.has("messages")) {
    auto parsed = parse_chat_request(body, service.chat_defaults);
    if (auto* e = std::get_if<ApiError>(&parsed)) return *e;
    auto prepared = prepare_prompt(service, std::get<ChatRequest>(parsed));
    if (auto* e = std::get_if<ApiError>(&prepared)) return *e;
    return std::move(std::get<PreparedPrompt>(prepared).ids);
  }
  if (!in.has("prompt")) {
    return ApiError{400, "invalid_request_error", "missing_required_parameter", "prompt",
                    "either prompt or messages is required"};
  }
  std::string prompt;
  bool special = true;  // this tokenizer adds none by itself; the switch is checked and changes nothing
  in.string("prompt", &prompt);
  in.boolean("add_special_tokens", &special);
  if (!in.ok()) return *in.error();
  Result<std::vector<int32_t>> ids = service.text.tokenizer->encode(prompt);
  if (!ids.ok()) return from_error(ids.error(), "prompt");
  return std::move(ids).value();
}

}  // namespace

void handle_tokenize(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange) {
  auto body = parse_body(exchange->body());
  if (auto* e = std::get_if<ApiError>(&body)) return respond_error(*exchange, *e);
  bool with_text = false;
  FieldReader in(std::get<Json>(body));
  in.boolean("return_token_strs", &with_text);
  if (!in.ok()) return respond_error(*exchange, *in.error());
  auto ids = ids_of(*service, std::get<Json>(body));
  if (auto* e = std::get_if<ApiError>(&ids)) return respond_error(*exchange, *e);
  const auto& list = std::get<std::vector<int32_t>>(ids);
  Json out;
  out["count"] = list.size();
  out["max_model_len"] = service->engine.load() != nullptr ? Json(service->window().tokens) : Json(nullptr);
  out["tokens"] = list;
  if (with_text) {
    Json strings = Json::array();
    for (const int32_t id : list) strings.push_back(std::string(service->text.tokenizer->token_bytes(id)));
    out["token_strs"] = std::move(strings);
  }
  respond_json(*exchange, out);
}

void handle_detokenize(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange) {
  auto body = parse_body(exchange->body());
  if (auto* e = std::get_if<ApiError>(&body)) return respond_error(*exchange, *e);
  const Json* tokens = find_field(std::get<Json>(body), "tokens");
  if (tokens == nullptr || !tokens->is_array() || tokens->size() > kMaxIds) {
    return respond_error(*exchange, invalid_value("tokens", "tokens must be a list of token ids"));
  }
  std::vector<int32_t> ids;
  const int32_t count = service->text.tokenizer->id_count();
  for (const Json& token : *tokens) {
    const bool good = token.is_number_integer() && token.get<int64_t>() >= 0 && token.get<int64_t>() < count;
    if (!good) {
      return respond_error(*exchange, invalid_value("tokens", "token ids must be integers from 0 to " +
                                                                  std::to_string(count - 1)));
    }
    ids.push_back(static_cast<int32_t>(token.get<int64_t>()));
  }
  Json out;
  out["prompt"] = service->text.tokenizer->decode(ids);
  respond_json(*exchange, out);
}

}  // namespace firesteel::api
