// GET /metrics: what the requests were (api/metrics.h) and what the engine says of itself, as Prometheus
// text. Nothing here waits: the engine's figures are atomics that it publishes after every round.
#include "api/metrics.h"
#include "api/service.h"

namespace firesteel::api {
namespace {

double share_used(int32_t total, int32_t free) {
  return total > 0 ? static_cast<double>(total - free) / total : 0;
}

void write_engine(const std::string& model, const EngineInfo& info, const EngineStats& stats,
                  MetricsWriter& out) {
  const auto family = [&](const char* name, const char* vllm_name, const char* help) {
    return metric_family(model, name, vllm_name, help);
  };
  out.gauge(family("requests_running", "num_requests_running", "Requests in the batch."), stats.running);
  out.gauge(family("requests_waiting", "num_requests_waiting", "Requests that wait for a place."),
            stats.queued);
  out.gauge(family("requests_running_max", "", "Requests that the batch can hold."), info.max_streams);
  out.counter(family("prompt_tokens_total", "prompt_tokens_total",
                     "Prompt tokens computed; one that is computed again after a preemption counts again."),
              static_cast<double>(stats.prompt_tokens));
  out.counter(family("generation_tokens_total", "generation_tokens_total", "Tokens generated."),
              static_cast<double>(stats.generated_tokens));
  out.counter(
      family("rounds_total", "", "Rounds of the engine: one forward each, prompts and replies together."),
      static_cast<double>(stats.rounds));
  // The engine knows the sum and the number of its rounds, not how they are spread: one bucket.
  MetricFamily iterations;
  iterations.help = "Tokens, of prompts and replies, of a round.";
  iterations.names = {{"vllm:iteration_tokens_total", {{"model_name", model}}}};
  out.histogram(iterations, {},
                {{stats.rounds}, static_cast<double>(stats.prompt_tokens + stats.generated_tokens)});
  if (stats.pages_total == 0) return;
  const double pages = share_used(stats.pages_total, stats.pages_free);
  std::vector<MetricsWriter::Sample> pools = {{{{"pool", "pages"}}, pages}};
  if (stats.slots_total > 0) {
    pools.push_back({{{"pool", "slots"}}, share_used(stats.slots_total, stats.slots_free)});
  }
  out.gauges(
      family("kv_cache_usage_ratio", "", "Share in use: pages of the cache, slots of recurrent state."),
      pools);
  MetricFamily usage;
  usage.help = "Share of the cache's pages in use; 1 is full.";
  usage.names = {{"vllm:kv_cache_usage_perc", {{"model_name", model}}}};
  out.gauge(usage, pages);
}

}  // namespace

void handle_metrics(const Service& service, http::Exchange& exchange, const http::ServerCounters& http) {
  MetricsWriter out;
  if (const Engine* engine = service.engine.load(); engine != nullptr) {
    write_engine(service.metrics->model(), engine->info(), engine->stats(), out);
  }
  service.metrics->write(out);
  out.counter(metric_family(service.metrics->model(), "client_disconnections_total", "",
                            "Clients that left before their reply was complete."),
              static_cast<double>(http.client_gone_total));
  http::Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = out.take();
  exchange.respond(std::move(response));
}

}  // namespace firesteel::api
