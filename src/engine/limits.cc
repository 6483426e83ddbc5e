#include "engine/limits.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace firesteel {
namespace {

constexpr size_t kMaxEndIds = 256;

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

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
  return {};
}

}  // namespace firesteel
