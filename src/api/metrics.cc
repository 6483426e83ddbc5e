#include "api/metrics.h"

#include <chrono>

#include "base/clock.h"

namespace firesteel::api {
namespace {

constexpr size_t kMaxKeyStatusPairs = 256, kMaxCodes = 64;

const std::vector<double> kSeconds = {0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
const std::vector<double> kFillSeconds = {1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 2e-4,
                                          3e-4, 5e-4, 1e-3, 3e-3, 1e-2, 0.1};
const std::vector<double> kGapSeconds = {0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05,
                                         0.075, 0.1,    0.15,  0.25, 0.5,   1,    2.5,  5};
const std::vector<double> kTokens = {1,      2,       5,       10,      20,       50,     100,
                                     200,    500,     1'000,   2'000,   5'000,    10'000, 20'000,
                                     50'000, 100'000, 200'000, 500'000, 1'000'000};

void observe_span(Histogram& histogram, int64_t from, int64_t to) {
  if (from != 0 && to >= from) histogram.observe(static_cast<double>(to - from) * 1e-9);
}

// Polls of load balancers and of Prometheus itself say nothing about the service.
bool is_poll(std::string_view path) {
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  return path == "/health" || path == "/ready" || path == "/metrics";
}

}  // namespace

MetricFamily metric_family(const std::string& model, const std::string& name, const std::string& vllm_name,
                           const std::string& help) {
  MetricFamily family{{{"firesteel_" + name, {}}}, help};
  if (!vllm_name.empty()) family.names.push_back({"vllm:" + vllm_name, {{"model_name", model}}});
  return family;
}

ApiMetrics::ApiMetrics(std::string model)
    : model_(std::move(model)),
      requests(registry_.counter_set(
          metric_family(model_, "requests_total", "",
                        "Requests answered, by API key label and HTTP status; polls of health, readiness and "
                        "metrics are not counted."),
          {"key", "status"}, kMaxKeyStatusPairs)),
      refused(registry_.counter_set(
          metric_family(model_, "refused_total", "", "Requests answered with an error, by its code."),
          {"code"}, kMaxCodes)),
      finished_reasons(registry_.counter_set(
          metric_family(model_, "request_success_total", "request_success_total",
                        "Replies that ended, by reason; abort: the client left or the server stopped."),
          {"finished_reason"}, 4)),
      generation_tokens_running(registry_.gauge(
          metric_family(model_, "generation_tokens_running", "", "Tokens of the replies now running."))),
      queue(registry_.histogram(metric_family(model_, "request_queue_time_seconds",
                                              "request_queue_time_seconds", "From submission to admission."),
                                kSeconds)),
      prefill(
          registry_.histogram(metric_family(model_, "request_prefill_seconds", "request_prefill_time_seconds",
                                            "From admission to the first token."),
                              kSeconds)),
      first_token(registry_.histogram(
          metric_family(model_, "time_to_first_token_seconds", "time_to_first_token_seconds",
                        "From the request's arrival to the first token."),
          kSeconds)),
      inter_token(registry_.histogram(
          metric_family(model_, "inter_token_latency_seconds", "inter_token_latency_seconds",
                        "Time a token after the first took; tokens that come together share their gap."),
          kGapSeconds)),
      decode(
          registry_.histogram(metric_family(model_, "request_decode_seconds", "request_decode_time_seconds",
                                            "From the first token to the last."),
                              kSeconds)),
      latency(
          registry_.histogram(metric_family(model_, "request_latency_seconds", "e2e_request_latency_seconds",
                                            "From the request's arrival to the end of its reply."),
                              kSeconds)),
      prompt_tokens(registry_.histogram(metric_family(model_, "request_prompt_tokens",
                                                      "request_prompt_tokens", "Prompt tokens of a reply."),
                                        kTokens)),
      generation_tokens(
          registry_.histogram(metric_family(model_, "request_generation_tokens", "request_generation_tokens",
                                            "Generated tokens of a reply."),
                              kTokens)),
      tool_calls(registry_.counter_set(
          metric_family(model_, "tool_calls_total", "", "Tool calls in replies, by what became of them."),
          {"result"}, 4)),
      grammar_compile(registry_.histogram(
          metric_family(model_, "grammar_compile_seconds", "", "From a constraint's text to its grammar."),
          kSeconds)),
      grammar_fill(registry_.histogram(metric_family(model_, "grammar_fill_seconds", "",
                                                     "To find the tokens that a constraint allows next."),
                                       kFillSeconds)) {
  for (const char* reason : {"stop", "length", "abort", "error"}) finished_reasons.at({reason});
  tool_calls.at({"parsed"});
}

void ApiMetrics::answered(const http::RequestHead& head, const http::Response& response,
                          const std::string& key) {
  if (is_poll(head.path)) return;
  requests.at({key, std::to_string(response.status)}).add();
  if (!response.error_code.empty()) refused.at({response.error_code}).add();
}

// ---------------------------------------------------------------------------------------- ReplyMeter

ReplyMeter::ReplyMeter(ApiMetrics& metrics, int64_t received_ns, int64_t prompt_tokens)
    : metrics_(metrics), received_ns_(received_ns), prompt_tokens_(prompt_tokens) {}

void ReplyMeter::advance(size_t read, const GenerationTimes& times) {
  if (read <= read_ || ended_) return;
  const int64_t now = now_ns();
  if (read_ == 0) {
    observe_span(metrics_.queue, times.submitted, times.admitted);
    observe_span(metrics_.prefill, times.admitted, times.first_token);
    observe_span(metrics_.first_token, received_ns_ != 0 ? received_ns_ : times.submitted, times.first_token);
    last_read_ns_ = times.first_token;
  }
  const size_t gaps = read - read_ - (read_ == 0 ? 1 : 0);
  if (gaps > 0 && last_read_ns_ != 0) {
    const double gap = static_cast<double>(now - last_read_ns_) * 1e-9 / static_cast<double>(gaps);
    metrics_.inter_token.observe(gap, gaps);
  }
  metrics_.generation_tokens_running.add(static_cast<int64_t>(read - read_));
  read_ = read;
  last_read_ns_ = now;
}

void ReplyMeter::finished(FinishReason reason, const GenerationTimes& times) {
  if (ended_) return;
  if (reason == FinishReason::kError) return end("error");
  if (reason == FinishReason::kCancelled) return end("abort");
  const int64_t now = now_ns();
  // A reply that a stop string ended has no end in the engine yet.
  observe_span(metrics_.decode, times.first_token, times.finished != 0 ? times.finished : now);
  observe_span(metrics_.latency, received_ns_ != 0 ? received_ns_ : times.submitted, now);
  metrics_.prompt_tokens.observe(static_cast<double>(prompt_tokens_));
  metrics_.generation_tokens.observe(static_cast<double>(read_));
  end(reason == FinishReason::kLength ? "length" : "stop");
}

void ReplyMeter::end(const char* reason) {
  if (ended_) return;
  ended_ = true;
  metrics_.generation_tokens_running.add(-static_cast<int64_t>(read_));
  metrics_.finished_reasons.at({reason}).add();
}

}  // namespace firesteel::api
