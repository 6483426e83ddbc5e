// POST /v1/completions: a text or token ids, continued as they are; no template, no think block, no tools.
#include <algorithm>

#include "api/completion_writer.h"
#include "api/prepare.h"

namespace firesteel::api {
namespace {

constexpr size_t kMaxPrompts = 64;
constexpr int64_t kMaxBestOf = 20;

bool is_id_list(const Json& value, int32_t id_count, std::vector<int32_t>* out) {
  if (!value.is_array() || value.empty()) return false;
  for (const Json& id : value) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= id_count) return false;
    out->push_back(static_cast<int32_t>(id.get<int64_t>()));
  }
  return true;
}

// One prompt: a string or a list of ids.
std::variant<std::vector<int32_t>, ApiError> one_prompt(const Service& service, const Json& value) {
  std::vector<int32_t> ids;
  if (value.is_string()) {
    Result<std::vector<int32_t>> encoded =
        service.text.tokenizer->encode(value.get_ref<const std::string&>());
    if (!encoded.ok()) return from_error(encoded.error(), "prompt");
    ids = std::move(encoded).value();
    if (ids.empty()) return invalid_value("prompt", "prompt must not be empty");
  } else if (!is_id_list(value, service.text.tokenizer->id_count(), &ids)) {
    return invalid_value("prompt", "prompt must be a string, a list of token ids, or a list of such prompts");
  }
  return ids;
}

std::variant<std::vector<std::vector<int32_t>>, ApiError> prompts_of(const Service& service,
                                                                     const Json& value) {
  std::vector<std::vector<int32_t>> out;
  const bool many = value.is_array() && !value.empty() && (value[0].is_string() || value[0].is_array());
  if (many && value.size() > kMaxPrompts) {
    return invalid_value("prompt", "prompt may list at most " + std::to_string(kMaxPrompts) + " prompts");
  }
  for (size_t i = 0; i < (many ? value.size() : 1); ++i) {
    auto ids = one_prompt(service, many ? value[i] : value);
    if (auto* e = std::get_if<ApiError>(&ids)) return *e;
    out.push_back(std::move(std::get<std::vector<int32_t>>(ids)));
  }
  return out;
}

struct CompletionRequest {
  ReplySettings settings;
  std::string model;
  bool echo = false;
  bool score_only = false;  // max_tokens 0
  int64_t best_of = 1;      // choices made for each prompt; settings.choices of them are shown
};

std::variant<CompletionRequest, ApiError> parse(const Json& body, const ChatDefaults& defaults) {
  CompletionRequest out;
  FieldReader in(body);
  in.string("model", &out.model);
  in.boolean("echo", &out.echo);
  const Json* limit = in.find("max_tokens");
  out.score_only = out.echo && limit != nullptr && limit->is_number_integer() && *limit == 0;
  read_settings(in, defaults.settings, {out.score_only ? "" : "max_tokens"}, &out.settings);
  if (out.score_only) out.settings.max_tokens = 1;
  read_completion_logprobs(in, &out.settings);
  refuse_unbuilt(in);
  bool special = false;  // this tokenizer adds none by itself
  in.boolean("add_special_tokens", &special);
  std::string suffix;
  in.string("suffix", &suffix);
  if (!suffix.empty())
    in.fail(unsupported_parameter("suffix", "suffix is not supported: the model only continues"));
  out.best_of = out.settings.choices;
  in.integer("best_of", out.settings.choices, kMaxBestOf, &out.best_of);
  if (out.best_of != out.settings.choices && (out.settings.stream || out.score_only)) {
    in.fail_value("best_of", "best_of above n needs whole replies: without stream, with max_tokens above 0");
  }
  if (!in.ok()) return *in.error();
  return out;
}

}  // namespace

void handle_completions(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange) {
  auto parsed_body = parse_body(exchange->body());
  if (auto* error = std::get_if<ApiError>(&parsed_body)) return respond_error(*exchange, *error);
  const Json& body = std::get<Json>(parsed_body);
  auto parsed = parse(body, service->chat_defaults);
  if (auto* error = std::get_if<ApiError>(&parsed)) return respond_error(*exchange, *error);
  const CompletionRequest& request = std::get<CompletionRequest>(parsed);
  if (auto error = check_model(*service, request.model)) return respond_error(*exchange, *error);
  const Json* prompt = find_field(body, "prompt");
  if (prompt == nullptr) {
    return respond_error(*exchange,
                         {400, "invalid_request_error", "missing_required_parameter", "prompt",
                          "prompt is required: a string, a list of token ids, or a list of such prompts"});
  }
  auto prompts = prompts_of(*service, *prompt);
  if (auto* error = std::get_if<ApiError>(&prompts)) return respond_error(*exchange, *error);
  exchange->drop_body();

  ReplyPlan plan;
  CompletionReplyOptions reply;
  ReplySettings each = request.settings;  // of one prompt
  each.choices = request.best_of;
  if (request.best_of != request.settings.choices) each.logprobs = std::max(each.logprobs, 0);  // to rank by
  for (std::vector<int32_t>& ids : std::get<std::vector<std::vector<int32_t>>>(prompts)) {
    const std::string text = request.echo ? service->text.tokenizer->decode(ids) : "";
    auto one = make_plan(*service, each, {std::move(ids), false, ""}, "prompt", *exchange);
    if (auto* error = std::get_if<ApiError>(&one)) return respond_error(*exchange, *error);
    ReplyPlan& part = std::get<ReplyPlan>(one);
    for (GenerationRequest& r : part.requests) {
      plan.requests.push_back(std::move(r));
      if (each.return_token_ids) reply.prompts.push_back(plan.requests.back().prompt);
      if (!request.echo) continue;
      reply.echo.push_back(text);
      reply.first_ids.push_back(plan.requests.back().prompt.front());
      plan.requests.back().prompt_logprobs = request.settings.logprobs >= 0;
    }
    part.requests = std::move(plan.requests);
    part.prompt_tokens += plan.prompt_tokens;
    plan = std::move(part);
  }
  plan.text.raw = true;
  plan.score_only = request.score_only;
  if (request.settings.logprobs >= 0) reply.tokenizer = service->text.tokenizer.get();
  reply.model = reply_model(*service, request.model);
  reply.choices = static_cast<int>(plan.requests.size());
  reply.return_token_ids = each.return_token_ids;
  reply.best_of = static_cast<int>(request.best_of);
  reply.keep = static_cast<int>(request.settings.choices);
  reply.stream = request.settings.stream;
  reply.stream_usage = request.settings.stream_usage;
  reply.continuous_usage = request.settings.continuous_usage;
  auto writer = make_completion_writer(exchange, std::move(reply));
  ReplyRun::start(service, std::move(exchange), std::move(writer), std::move(plan));
}

}  // namespace firesteel::api
