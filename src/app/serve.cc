#include "app/serve.h"

#include <csignal>

#include "api/server.h"
#include "app/model_text.h"
#include "app/ranks.h"
#include "app/stop_signals.h"
#include "base/log.h"
#include "engine/model_engine.h"

namespace firesteel {
namespace {

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
                   api::ApiServer::start(api_options(options.api, options.model.dir, config),
                                         {text.tokenizer, text.chat_template}));
  auto opened = open_led_model(options.model, options.ranks, request, &engine_config);
  if (!opened.ok()) {
    server->stop(std::chrono::seconds(0));
    return opened.error();
  }
  ASSIGN_OR_RETURN(const auto engine,
                   ModelEngine::create(*opened->open.model, engine_config, nullptr, opened->group.get()));
  server->attach_engine(*engine);
  LOG_INFO("computing on {}: {}", engine->info().device, engine->info().formats);
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
