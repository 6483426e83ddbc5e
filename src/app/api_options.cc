#include "app/api_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <thread>

#include "app/model_options.h"

namespace firesteel {

void add_api_options(CLI::App* app, ApiFlags* flags) {
  app->add_option("--host", flags->host, "address to listen on")->capture_default_str();
  app->add_option("--port", flags->port, "port, 0 = any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app->add_option("--max-tokens", flags->max_tokens, "reply budget of a request that names none")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option(
         "--thinking-budget", flags->thinking_budget,
         "reply tokens after which a think block is closed, where a request names no limit; 0 = none")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app->add_flag("--answer-reserve", flags->answer_reserve,
                "close a think block while a quarter of the reply's limit (at most 1024 tokens) is left");
  app->add_flag("--loop-guard", flags->loop_guard, "close a think block that repeats itself");
  app->add_flag("--no-thinking", flags->no_thinking, "do not think where a request does not say");
  app->add_option("--effort", flags->effort, "effort of thinking where a request names none")
      ->check(CLI::IsMember({"low", "high", "max"}))
      ->capture_default_str();
  app->add_flag("--clear-thinking", flags->clear_thinking,
                "leave reasoning before the last user message out of prompts where a request does not say");
  app->add_option("--smoothing", flags->smoothing,
                  "milliseconds over which a stream may spread tokens that came together; 0 = none")
      ->check(CLI::Range(0, 10'000))
      ->capture_default_str();
  app->add_flag("--random-seed", flags->random_seed,
                "draw a fresh seed for requests without one; the same request then gets another reply");
  app->add_flag("--trust-caller-markup", flags->trust_caller_markup,
                "read <|user|>, <think> and the like in callers' texts as control tokens");
  app->add_flag("--forget-replies", flags->forget_replies,
                "do not put reasoning and call markup that clients lost back into histories");
  app->add_option("--api-key", flags->api_keys, "key that requests must carry; may be repeated")
      ->type_name("[LABEL: ]KEY");
  app->add_option("--api-key-file", flags->api_key_file,
                  "file of keys, one a line, read again when it changes")
      ->type_name("FILE");
  app->add_option("--cors-origins", flags->cors_origins, "web origins that may ask, or *")
      ->type_name("ORIGIN");
  app->add_flag("--open-metrics", flags->open_metrics, "/metrics needs no key");
  app->add_option("--model-name", flags->model_names,
                  "name(s) of the model for clients; default: its directory's")
      ->type_name("NAME");
  app->add_flag("--strict-model", flags->strict_model, "404 for requests that name another model");
}

api::ApiOptions api_options(const ApiFlags& flags, const std::string& model_dir, const ModelConfig& config) {
  api::ApiOptions api;
  api.http.host = flags.host;
  api.http.port = static_cast<uint16_t>(flags.port);
  // Rendering and tokenizing a long prompt takes a second of one of these; the others go on.
  api.http.worker_threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency() / 4), 2, 8);
  api.model_id = model_name(model_dir);
  if (!flags.model_names.empty()) {
    api.model_id = flags.model_names.front();
    api.aliases.assign(flags.model_names.begin() + 1, flags.model_names.end());
  }
  api.strict_model = flags.strict_model;
  api.access = {flags.api_keys, flags.api_key_file, flags.cors_origins, flags.open_metrics};
  if (config.default_temperature >= 0) api.temperature = config.default_temperature;
  if (config.default_top_p > 0) api.top_p = config.default_top_p;
  if (config.default_top_k > 0) api.top_k = config.default_top_k;
  api.max_tokens = flags.max_tokens;
  api.thinking_budget = flags.thinking_budget;
  api.answer_reserve = flags.answer_reserve;
  api.loop_guard = flags.loop_guard;
  api.thinking = !flags.no_thinking;
  api.effort = flags.effort;
  api.clear_thinking = flags.clear_thinking;
  api.smoothing_ms = flags.smoothing;
  api.random_seed = flags.random_seed;
  api.trust_caller_markup = flags.trust_caller_markup;
  api.remember_replies = !flags.forget_replies;
  api.end_ids = config.eos_ids;
  return api;
}

}  // namespace firesteel
