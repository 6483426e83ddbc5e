#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <mutex>

#include <nlohmann/json.hpp>

#include "app/model_text.h"
#include "app/ranks.h"
#include "base/json.h"
#include "engine/model_engine.h"
#include "text/messages.h"
#include "text/prompt.h"

namespace firesteel {
namespace {

Error bad(const std::string& message) { return {ErrorCode::kInvalidArgument, message}; }

/// The messages of a file: an array, or an object with "messages" and perhaps "tools" as in a chat request.
Result<Conversation> read_conversation(const GenerateOptions& options, nlohmann::ordered_json* body) {
  nlohmann::ordered_json messages;
  Conversation conversation;
  if (!options.prompt.empty()) {
    messages = nlohmann::ordered_json::array({{{"role", "user"}, {"content", options.prompt}}});
  } else {
    std::ifstream in(options.messages_file, std::ios::binary);
    if (!in) return Error{ErrorCode::kNotFound, options.messages_file + ": cannot be read"};
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    auto json = parse_json(text);
    if (!json.ok()) return bad(options.messages_file + ": " + json.error().message);
    if (json->is_object()) {
      *body = *json;
      messages = body->contains("messages") ? (*body)["messages"] : nlohmann::ordered_json();
      if (body->contains("tools")) conversation.tools = (*body)["tools"];
    } else {
      messages = std::move(*json);
    }
  }
  const auto tools = std::move(conversation.tools);
  if (const auto refusal = normalize_messages(messages, {}, &conversation); refusal.has_value())
    return bad(refusal->param + ": " + refusal->message);
  conversation.tools = tools;
  return conversation;
}

Result<std::vector<int32_t>> prompt_ids(const GenerateOptions& options, const DirectoryText& text) {
  if (!options.prompt_ids.empty()) return parse_int_list(options.prompt_ids, "--prompt-ids", 0, INT32_MAX);
  if (!text.tokenizer || !text.chat_template)
    return bad(options.model.dir + " has no tokenizer or no chat template: give --prompt-ids");
  nlohmann::ordered_json body = nlohmann::ordered_json::object();
  ASSIGN_OR_RETURN(const Conversation conversation, read_conversation(options, &body));
  PromptOptions prompt_options;
  if (const auto refusal = read_thinking(body, &prompt_options.thinking); refusal.has_value())
    return bad(refusal->param + ": " + refusal->message);
  ASSIGN_OR_RETURN(const Prompt prompt, build_prompt(*text.chat_template, conversation, prompt_options));
  return text.tokenizer->encode(prompt.text);
}

Result<SamplingParams> sampling_of(const GenerateOptions& options, const ModelConfig& config) {
  SamplingParams out;
  out.temperature = options.temperature >= 0          ? options.temperature
                    : config.default_temperature >= 0 ? config.default_temperature
                                                      : 1.0;
  out.top_p = options.top_p >= 0 ? options.top_p : config.default_top_p > 0 ? config.default_top_p : 0.95;
  out.top_k = options.top_k >= 0 ? options.top_k : config.default_top_k > 0 ? config.default_top_k : 0;
  out.min_p = options.min_p;
  if (!options.seed.empty()) {
    uint64_t seed = 0;
    const char* end = options.seed.data() + options.seed.size();
    const auto [at, ec] = std::from_chars(options.seed.data(), end, seed);
    if (ec != std::errc() || at != end) return bad("--seed: expected a whole number below 2^64");
    out.seed = seed;
  }
  return out;
}

const char* reason_text(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    default:
      return "error";
  }
}

/// Text of a reply without the end token that stopped it.
std::string reply_text(const DirectoryText& text, std::span<const int32_t> ids, FinishReason reason) {
  if (!text.tokenizer) return "";
  const size_t n = ids.size() - (reason == FinishReason::kStop && !ids.empty() ? 1 : 0);
  return text.tokenizer->decode({ids.begin(), ids.begin() + static_cast<ptrdiff_t>(n)});
}

Status generate(const GenerateOptions& options) {
  ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(options.model.dir));
  ASSIGN_OR_RETURN(const DirectoryText text, load_text(options.model.dir));
  GenerationRequest request;
  ASSIGN_OR_RETURN(request.prompt, prompt_ids(options, text));
  ASSIGN_OR_RETURN(request.sampling, sampling_of(options, config));
  request.max_tokens = options.max_tokens;
  request.end_ids = config.eos_ids;

  OpenRequest open_request;
  const int64_t window = static_cast<int64_t>(request.prompt.size()) + options.max_tokens;
  if (window > config.max_positions)
    return Error{ErrorCode::kContextLength,
                 "prompt of " + std::to_string(request.prompt.size()) + " tokens and reply of " +
                     std::to_string(options.max_tokens) + " exceed the model's " +
                     std::to_string(config.max_positions) + " positions: lower --max-tokens"};
  open_request.window = static_cast<int32_t>(window);
  EngineConfig engine_config;
  engine_config.max_streams = 1;
  RankOptions ranks = options.ranks;
  ranks.quiet = true;
  ASSIGN_OR_RETURN(const LedModel led, open_led_model(options.model, ranks, open_request, &engine_config));
  ASSIGN_OR_RETURN(const auto engine,
                   ModelEngine::create(*led.open.model, engine_config, nullptr, led.group.get()));

  std::mutex mutex;
  std::condition_variable changed;
  bool news = false;
  const auto start = std::chrono::steady_clock::now();
  const size_t prompt_tokens = request.prompt.size();
  ASSIGN_OR_RETURN(const auto reply, engine->submit(std::move(request), [&] {
    std::lock_guard lock(mutex);
    news = true;
    changed.notify_one();
  }));
  // Text appears as it is made; ids without a tokenizer likewise.
  size_t shown = 0;
  Utf8Stream utf8;
  for (;;) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return news; });
      news = false;
    }
    const bool over = reply->finished();
    const auto tokens = reply->tokens();
    size_t end = tokens.size();
    if (over && reply->finish_reason() == FinishReason::kStop && end > 0) --end;
    if (!options.json) {
      for (; shown < end; ++shown) {
        const int32_t id = tokens[shown];
        const bool ends = std::find(config.eos_ids.begin(), config.eos_ids.end(), id) != config.eos_ids.end();
        if (ends) continue;
        const std::string piece =
            text.tokenizer ? utf8.push(text.tokenizer->token_bytes(id)) : std::to_string(id) + " ";
        std::fwrite(piece.data(), 1, piece.size(), stdout);
      }
      std::fflush(stdout);
    }
    if (over) break;
  }
  engine->stop();
  if (reply->finish_reason() == FinishReason::kError) return reply->error();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!options.json) {
    std::printf("%s\n", text.tokenizer ? utf8.finish().c_str() : "");
    return {};
  }
  nlohmann::ordered_json out;
  out["ids"] = std::vector<int32_t>(reply->tokens().begin(), reply->tokens().end());
  out["text"] = reply_text(text, reply->tokens(), reply->finish_reason());
  out["finish_reason"] = reason_text(reply->finish_reason());
  out["prompt_tokens"] = prompt_tokens;
  out["drafted"] = 0;
  out["accepted"] = 0;
  out["seconds"] = seconds;
  std::printf("%s\n", dump_json(out).c_str());
  return {};
}

}  // namespace

int run_generate(const GenerateOptions& options) {
  const Status done = generate(options);
  return done.ok() ? 0 : report(done.error());
}

}  // namespace firesteel
