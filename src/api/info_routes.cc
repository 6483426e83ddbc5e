#include <cstdio>

#include "api/service.h"
#include "base/json.h"

namespace firesteel::api {
namespace {

void respond_json(http::Exchange& exchange, const Json& body, int status = 200) {
  http::Response response;
  response.status = status;
  response.body = dump_json(body);
  exchange.respond(std::move(response));
}

Json model_entry(const Service& service, const std::string& id) {
  Json entry;
  entry["id"] = id;
  entry["object"] = "model";
  entry["created"] = service.created;
  entry["owned_by"] = "firesteel";
  if (service.engine.load() != nullptr) {
    const Window window = service.window();
    const int64_t most = window.pool > 0 ? std::min(window.tokens, window.pool) : window.tokens;
    entry["max_model_len"] = most;
    entry["context_length"] = most;
    entry["max_output_tokens"] = most - 1;
  }
  entry["capabilities"] = {{"vision", false},
                           {"video", false},
                           {"tools", true},
                           {"reasoning_efforts", {"none", "low", "high", "max"}},
                           {"structured_outputs", service.formats != nullptr},
                           {"logprobs", true}};
  return entry;
}

}  // namespace

void respond_error(http::Exchange& exchange, const ApiError& error) {
  exchange.respond(error_response(error, error_format_of(exchange.head().path), exchange.head().request_id));
}

ApiError not_loaded_yet() {
  return {503, "server_error", "loading", "", "the model is still loading; try again in 5 s"};
}

void handle_ready(const Service& service, http::Exchange& exchange) {
  if (service.stopping.load()) {
    return respond_error(exchange, {503, "server_error", "unavailable", "", "the server is shutting down"});
  }
  if (service.engine.load() == nullptr) return respond_error(exchange, not_loaded_yet());
  if (!service.engine.load()->stats().whole) {
    return respond_error(exchange, {503, "server_error", "recovering", "",
                                    "a machine of the group is lost; the service comes back by itself"});
  }
  respond_json(exchange, {{"status", "ready"}});
}

void handle_health(const Service& service, http::Exchange& exchange, const http::ServerCounters& http) {
  Engine* engine = service.engine.load();
  const bool stopping = service.stopping.load();
  Json body;
  const EngineStats stats = engine != nullptr ? engine->stats() : EngineStats{};
  const bool whole = engine != nullptr && stats.whole;
  body["ok"] = whole && !stopping;
  body["status"] = stopping ? "stopping" : engine == nullptr ? "loading" : whole ? "ok" : "recovering";
  body["backend"] = "firesteel";
  body["model"] = service.options.model_id;
  if (engine != nullptr) {
    const EngineInfo info = engine->info();
    body["busy"] = stats.running > 0;
    body["requests_running"] = stats.running;
    body["requests_waiting"] = stats.queued;
    body["requests_total"] = stats.finished + stats.cancelled + stats.failed +
                             static_cast<uint64_t>(stats.running) + static_cast<uint64_t>(stats.queued);
    body["requests_finished_total"] = stats.finished;
    body["requests_cancelled_total"] = stats.cancelled;
    body["requests_failed_total"] = stats.failed;
    body["prompt_tokens_total"] = stats.prompt_tokens;
    body["completion_tokens_total"] = stats.generated_tokens;
    body["rounds_total"] = stats.rounds;
    body["streams"] = {{"running", stats.running}, {"max", info.max_streams}};
    body["context_length"] = info.window;
    if (!info.device.empty()) body["device"] = info.device;
    if (!info.formats.empty()) body["formats"] = info.formats;
    body["pool_tokens"] = info.pool_tokens;
    body["pool_free_tokens"] =
        stats.pages_total > 0 ? info.pool_tokens / stats.pages_total * stats.pages_free : info.pool_tokens;
    body["pages"] = {{"total", stats.pages_total}, {"free", stats.pages_free}};
    body["slots"] = {{"total", stats.slots_total}, {"free", stats.slots_free}};
  }
  body["connections"] = http.connections;
  body["http_requests_total"] = http.requests_total;
  body["http_refused_total"] = http.refused_total;
  body["client_disconnections_total"] = http.client_gone_total;
  respond_json(exchange, body, body["ok"].get<bool>() ? 200 : 503);
}

void handle_models(const Service& service, http::Exchange& exchange) {
  Json list = Json::array();
  list.push_back(model_entry(service, service.options.model_id));
  for (const std::string& alias : service.options.aliases) list.push_back(model_entry(service, alias));
  respond_json(exchange, {{"object", "list"}, {"data", std::move(list)}});
}

void handle_model(const Service& service, http::Exchange& exchange) {
  const std::string& id = exchange.head().path_argument;
  if (!service.serves(id)) {
    return respond_error(exchange, {404, "not_found_error", "model_not_found", "model",
                                    "the model " + id.substr(0, 200) + " is not served here"});
  }
  respond_json(exchange, model_entry(service, id));
}

}  // namespace firesteel::api
