#include "engine/limits.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace firesteel {
namespace {

constexpr size_t kMaxEndIds = 2048;
constexpr size_t kMaxBiases = 1024, kMaxCloseTokens = 64;

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

Status check_rules(const ReplyRules& rules, const EngineInfo& info) {
  const auto bad_id = [&](int32_t id) { return id < 0 || id >= info.vocab; };
  if (rules.bias.size() > kMaxBiases)
    return invalid("more than " + std::to_string(kMaxBiases) + " token biases");
  for (const TokenBias& bias : rules.bias) {
    if (bad_id(bias.id))
      return invalid("logit_bias names token " + std::to_string(bias.id) + ", which is outside the vocabulary of " +
                     std::to_string(info.vocab));
    if (std::isnan(bias.value) || bias.value > 1e6f) return invalid("a token bias must be a number");
  }
  const auto within = [](double v, double low, double high) { return v >= low && v <= high; };
  if (!within(rules.presence, -100, 100) || !within(rules.frequency, -100, 100) ||
      !within(rules.repetition, 1e-3, 1e3))
    return invalid("a penalty is out of range");
  const ThinkRules& think = rules.think;
  if (think.budget < 0) return invalid("the thinking budget must not be negative");
  if (think.close.size() > kMaxCloseTokens || std::any_of(think.close.begin(), think.close.end(), bad_id) ||
      ((think.budget > 0 || think.loop_guard) && think.close.empty()))
    return invalid("the tokens that close a think block are not known");
  return {};
}

}  // namespace

Status check_request(const GenerationRequest& request, const EngineInfo& info) {
  if (request.prompt.empty()) return invalid("the prompt is empty");
  if (request.max_tokens < 1) return invalid("max_tokens must be at least 1");
  const int64_t total = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
  if (total > info.window)
    return Error{ErrorCode::kContextLength,
                 "the prompt has " + std::to_string(request.prompt.size()) + " tokens and max_tokens is " +
                     std::to_string(request.max_tokens) + ": together they exceed the window of " +
                     std::to_string(info.window)};
  const auto bad_id = [&](int32_t id) { return id < 0 || id >= info.vocab; };
  const auto outside = [&](const char* what, int32_t id) {
    return invalid(std::string(what) + " id " + std::to_string(id) + " is outside the vocabulary of " +
                   std::to_string(info.vocab));
  };
  const auto prompt_id = std::find_if(request.prompt.begin(), request.prompt.end(), bad_id);
  if (prompt_id != request.prompt.end()) return outside("prompt", *prompt_id);
  if (request.end_ids.size() > kMaxEndIds)
    return invalid("more than " + std::to_string(kMaxEndIds) + " end ids");
  const auto end_id = std::find_if(request.end_ids.begin(), request.end_ids.end(), bad_id);
  if (end_id != request.end_ids.end()) return outside("end", *end_id);
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens)
    return invalid("min_tokens must be 0 to max_tokens");
  const SamplingParams& p = request.sampling;
  if (!std::isfinite(p.temperature) || !std::isfinite(p.top_p) || !std::isfinite(p.min_p))
    return invalid("temperature, top_p and min_p must be finite numbers");
  if (request.logprobs < -1 || request.logprobs > kMaxLogprobs)
    return invalid("log-probabilities of at most " + std::to_string(kMaxLogprobs) + " tokens are given");
  if (request.prompt_logprobs && (request.logprobs < 0 || !info.prompt_logprobs))
    return invalid("the log-probabilities of the prompt cannot be given");
  return check_rules(request.rules, info);
}

}  // namespace firesteel
