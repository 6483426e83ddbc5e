#include "api/prepare.h"

#include <algorithm>

namespace firesteel::api {

std::variant<PreparedPrompt, ApiError> prepare_prompt(const Service& service, const ChatRequest& request) {
  if (!service.text.chat_template) {
    return ApiError{400, "invalid_request_error", "unsupported_value", "", "this model has no chat template"};
  }
  const Result<Prompt> prompt =
      build_prompt(*service.text.chat_template, request.conversation, request.prompt);
  if (!prompt.ok()) return from_error(prompt.error(), "messages");
  Result<std::vector<int32_t>> ids = service.text.tokenizer->encode(prompt->text);
  if (!ids.ok()) return from_error(ids.error(), "messages");
  if (ids->empty()) return invalid_value("messages", "the conversation renders to an empty prompt");
  return PreparedPrompt{std::move(ids).value(), prompt->in_think};
}

std::variant<ReplyPlan, ApiError> make_plan(const Service& service, const ReplySettings& settings,
                                            PreparedPrompt prompt, const std::string& noun) {
  const auto budget = fit_reply(static_cast<int64_t>(prompt.ids.size()), settings.max_tokens,
                                service.options.max_tokens, service.window(), noun);
  if (auto* error = std::get_if<ApiError>(&budget)) return *error;
  ReplyPlan plan;
  plan.prompt_tokens = static_cast<int64_t>(prompt.ids.size());
  plan.text.in_think = prompt.in_think;
  plan.text.stop = settings.stop;
  plan.text.stop_in_reasoning = settings.stop_in_reasoning;
  plan.text.include_stop = settings.include_stop;
  plan.stop_token_ids = settings.stop_token_ids;
  GenerationRequest request;
  request.prompt = std::move(prompt.ids);
  request.sampling = settings.sampling;
  request.max_tokens = static_cast<int32_t>(std::get<int64_t>(budget));
  if (!settings.ignore_eos) request.end_ids = service.end_ids;
  request.end_ids.insert(request.end_ids.end(), settings.stop_token_ids.begin(),
                         settings.stop_token_ids.end());
  plan.text.end_ids = request.end_ids;
  request.min_tokens = static_cast<int32_t>(std::min<int64_t>(settings.min_tokens, request.max_tokens));
  request.background = settings.background;
  if (settings.choices > 1) {
    // Choice i draws with seed + i, also when the seed is the prompt's own.
    const uint64_t seed = request.sampling.seed.value_or(prompt_seed(request.prompt));
    for (int64_t i = 0; i < settings.choices; ++i) {
      plan.requests.push_back(request);
      plan.requests.back().sampling.seed = seed + static_cast<uint64_t>(i);
    }
  } else {
    plan.requests.push_back(std::move(request));
  }
  return plan;
}

void add_chat_options(const ChatRequest& request, ReplyPlan* plan) {
  plan->text.tools = request.tools.tools;
  plan->text.parallel_tool_calls = request.tools.parallel;
  plan->text.continues_text = request.prompt.continue_final_message;
}

std::optional<ApiError> check_model(const Service& service, const std::string& name) {
  if (!service.options.strict_model || name.empty() || service.serves(name)) return std::nullopt;
  return ApiError{404, "not_found_error", "model_not_found", "model",
                  "the model " + name.substr(0, 200) + " is not served here"};
}

std::string reply_model(const Service& service, const std::string& asked) {
  return service.serves(asked) ? asked : service.options.model_id;
}

}  // namespace firesteel::api
