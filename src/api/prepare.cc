#include "api/prepare.h"

#include <algorithm>

#include "base/clock.h"

namespace firesteel::api {

std::variant<PreparedPrompt, ApiError> prepare_prompt(const Service& service, ChatRequest& request) {
  if (!service.text.chat_template) {
    return ApiError{400, "invalid_request_error", "unsupported_value", "", "this model has no chat template"};
  }
  std::string key;
  if (service.memory != nullptr) key = service.memory->restore(&request.conversation);
  const Result<Prompt> prompt =
      build_prompt(*service.text.chat_template, request.conversation, request.prompt);
  if (!prompt.ok()) return from_error(prompt.error(), "messages");
  Result<std::vector<int32_t>> ids = service.text.tokenizer->encode(prompt->text);
  if (!ids.ok()) return from_error(ids.error(), "messages");
  if (ids->empty()) return invalid_value("messages", "the conversation renders to an empty prompt");
  return PreparedPrompt{std::move(ids).value(), prompt->in_think, std::move(key)};
}

namespace {

/// Where thinking ends, in tokens of the reply (spec/api.md 5).
ThinkRules think_rules(const Service& service, bool in_think, int64_t asked, int64_t max_tokens) {
  ThinkRules think;
  if (!in_think || service.markup.think_end < 0) return think;
  think.inside = true;
  think.end_id = service.markup.think_end;
  think.close = service.markup.think_close;
  const ApiOptions& options = service.options;
  int64_t budget = asked > 0 ? asked : options.thinking_budget;
  if (asked == 0 && options.answer_reserve) {
    const int64_t reserve =
        std::min<int64_t>(1024, max_tokens / 4) + static_cast<int64_t>(think.close.size());
    const int64_t most = std::max<int64_t>(1, max_tokens - reserve);
    budget = budget > 0 ? std::min(budget, most) : most;
  }
  if (think.close.empty()) return think;
  think.budget = static_cast<int32_t>(std::min<int64_t>(budget, max_tokens));
  think.loop_guard = options.loop_guard;
  return think;
}

/// The compiled constraint of the answer; what it does not enforce goes into a header.
std::variant<std::optional<grammar::Compiled>, ApiError> compile_format(const Service& service,
                                                                        std::optional<AnswerFormat> format,
                                                                        http::Exchange& exchange) {
  if (!format) return std::nullopt;
  if (service.formats == nullptr) {
    return unsupported_parameter(format->param,
                                 "this model's tokenizer has no tokens to constrain a reply with");
  }
  if (format->source.kind == grammar::GrammarSource::Kind::kToolCalls) {
    if (!service.markup.calls.complete()) {
      return unsupported_parameter(format->param, "this model's tokenizer has no markup of tool calls");
    }
    format->source.markup = service.markup.calls;
  }
  const int64_t started = now_ns();
  auto compiled = service.formats->compile(*format);
  service.metrics->grammar_compile.observe(static_cast<double>(now_ns() - started) * 1e-9);
  if (auto* error = std::get_if<ApiError>(&compiled)) return *error;
  grammar::Compiled& out = std::get<grammar::Compiled>(compiled);
  std::string unsupported;
  for (const std::string& keyword : out.unsupported)
    unsupported += (unsupported.empty() ? "" : ", ") + keyword;
  if (!unsupported.empty()) exchange.add_header("x-schema-unsupported", unsupported.substr(0, 1024));
  return std::optional(std::move(out));
}

}  // namespace

std::variant<ReplyPlan, ApiError> make_plan(const Service& service, const ReplySettings& settings,
                                            PreparedPrompt prompt, const std::string& noun,
                                            http::Exchange& exchange) {
  const auto budget = fit_reply(static_cast<int64_t>(prompt.ids.size()), settings.max_tokens,
                                service.options.max_tokens, service.window(), noun);
  if (auto* error = std::get_if<ApiError>(&budget)) return *error;
  auto compiled = compile_format(service, settings.format, exchange);
  if (auto* error = std::get_if<ApiError>(&compiled)) return *error;
  const auto& constraint = std::get<std::optional<grammar::Compiled>>(compiled);
  const int32_t vocab = service.engine.load()->info().vocab;
  for (const TokenBias& bias : settings.rules.bias) {
    if (bias.id >= vocab) {
      return invalid_value("logit_bias", "logit_bias names token " + std::to_string(bias.id) +
                                             ", but the vocabulary has " + std::to_string(vocab));
    }
  }
  ReplyPlan plan;
  plan.prompt_tokens = static_cast<int64_t>(prompt.ids.size());
  plan.text.in_think = prompt.in_think;
  plan.conversation = std::move(prompt.conversation);
  plan.text.stop = settings.stop;
  plan.text.stop_in_reasoning = settings.stop_in_reasoning;
  plan.text.include_stop = settings.include_stop;
  plan.stop_token_ids = settings.stop_token_ids;
  plan.predicted = settings.predicted;
  if (settings.stream) plan.smoothing = std::chrono::milliseconds(service.options.smoothing_ms);
  GenerationRequest request;
  request.prompt = std::move(prompt.ids);
  request.sampling = settings.sampling;
  request.max_tokens = static_cast<int32_t>(std::get<int64_t>(budget));
  // A constrained answer ends where its grammar does.
  if (!settings.ignore_eos || constraint) request.end_ids = service.end_ids;
  request.end_ids.insert(request.end_ids.end(), settings.stop_token_ids.begin(),
                         settings.stop_token_ids.end());
  plan.text.end_ids = request.end_ids;
  request.min_tokens = static_cast<int32_t>(std::min<int64_t>(settings.min_tokens, request.max_tokens));
  request.background = settings.background;
  request.rules = settings.rules;
  request.rules.think = think_rules(service, prompt.in_think, settings.think_budget, request.max_tokens);
  request.logprobs = settings.logprobs;
  const std::shared_ptr<Histogram> fill_time(service.metrics, &service.metrics->grammar_fill);
  if (settings.choices > 1) {
    // Choice i draws with seed + i, also when the seed is the prompt's own.
    const uint64_t seed = request.sampling.seed.value_or(prompt_seed(request.prompt));
    for (int64_t i = 0; i < settings.choices; ++i) {
      plan.requests.push_back(request);
      plan.requests.back().sampling.seed = seed + static_cast<uint64_t>(i);
      if (constraint) plan.requests.back().constraint = make_constraint(*constraint, fill_time);
    }
  } else {
    if (constraint) request.constraint = make_constraint(*constraint, fill_time);
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
