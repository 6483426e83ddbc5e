#include <signal.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "api/server.h"
#include "app/model_text.h"
#include "app/ranks.h"
#include "base/log.h"
#include "engine/model_engine.h"

namespace firesteel {
namespace {

/// Blocks the stop signals in every thread that starts after it and takes them on a thread of its own: the
/// first ends wait(), or the process while there is nothing to finish yet; the second ends the process.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    std::thread([this] { run(); }).detach();
  }
  /// From now on the first signal ends wait() instead of the process.
  int wait() {
    waiting_.store(true);
    received_.wait(0);
    return received_.load();
  }

 private:
  void run() {
    for (;;) {
      int signal = 0;
      sigwait(&set_, &signal);
      if (!waiting_.load() || received_.load() != 0) std::_Exit(waiting_.load() ? 1 : 0);
      received_.store(signal);
      received_.notify_all();
    }
  }
  sigset_t set_{};
  std::atomic<bool> waiting_{false};
  std::atomic<int> received_{0};
};

api::ApiOptions api_options(const ServeOptions& options, const ModelConfig& config) {
  api::ApiOptions api;
  api.http.host = options.host;
  api.http.port = static_cast<uint16_t>(options.port);
  api.model_id = model_name(options.model.dir);
  if (!options.model_names.empty()) {
    api.model_id = options.model_names.front();
    api.aliases.assign(options.model_names.begin() + 1, options.model_names.end());
  }
  api.strict_model = options.strict_model;
  api.access = {options.api_keys, options.api_key_file, options.cors_origins, options.open_metrics};
  if (config.default_temperature >= 0) api.temperature = config.default_temperature;
  if (config.default_top_p > 0) api.top_p = config.default_top_p;
  if (config.default_top_k > 0) api.top_k = config.default_top_k;
  api.max_tokens = options.max_tokens;
  api.end_ids = config.eos_ids;
  return api;
}

Status serve(const ServeOptions& options) {
  RETURN_IF_ERROR(check_rank_options(options.ranks));
  ASSIGN_OR_RETURN(const int32_t window, parse_context(options.context));
  OpenRequest request;
  request.streams = options.streams;
  request.window = window;
  EngineConfig engine_config;
  engine_config.max_streams = options.streams;
  if (options.ranks.rank > 0) return follow_rank(options.model, options.ranks, request, engine_config);

  static StopSignals signals;  // its thread outlives this function
  ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(options.model.dir));
  ASSIGN_OR_RETURN(DirectoryText text, load_text(options.model.dir));
  // Listening first: /ready answers "loading" while the weights are read.
  ASSIGN_OR_RETURN(const auto server,
                   api::ApiServer::start(api_options(options, config), {text.tokenizer, text.chat_template}));
  auto opened = open_led_model(options.model, options.ranks, request, &engine_config);
  if (!opened.ok()) {
    server->stop(std::chrono::seconds(0));
    return opened.error();
  }
  ASSIGN_OR_RETURN(const auto engine,
                   ModelEngine::create(*opened->open.model, engine_config, nullptr, opened->group.get()));
  server->attach_engine(*engine);
  LOG_INFO("serving {}: window {} tokens, {} streams, pool {} tokens, {} of memory",
           model_name(options.model.dir), engine->info().window, engine->info().max_streams,
           engine->info().pool_tokens, gib_text(opened->open.plan.total));
  LOG_INFO("ready: {}/v1/chat/completions", server->url());
  const int signal = signals.wait();
  LOG_INFO("{}: finishing running replies (again to stop at once)",
           signal == SIGINT ? "interrupted" : "terminated");
  server->stop();
  engine->stop();
  return {};
}

}  // namespace

int run_serve(const ServeOptions& options) {
  const Status served = serve(options);
  return served.ok() ? 0 : report(served.error());
}

}  // namespace firesteel
