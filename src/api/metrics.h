// What an ApiServer counts of its requests: the part of /metrics that the engine does not know. Every family
// goes out under our own name and, where dashboards know one, under vLLM's, with the same readings.
//
// Owned by the Service; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/metrics.h"
#include "engine/engine.h"
#include "http/message.h"

namespace firesteel::api {

/// A family as firesteel_NAME and vllm:VLLM_NAME (empty: only ours). vLLM's series are told apart by the
/// label model_name.
MetricFamily metric_family(const std::string& model, const std::string& name, const std::string& vllm_name,
                           const std::string& help);

class ApiMetrics {
 public:
  explicit ApiMetrics(std::string model);

  const std::string& model() const { return model_; }
  void write(MetricsWriter& out) const { registry_.write(out); }

  /// A reply's status line was written; `key`: the label of the request's API key, "" without one.
  void answered(const http::RequestHead& head, const http::Response& response, const std::string& key);

 private:
  const std::string model_;
  MetricsRegistry registry_;

 public:
  // Registered in this order.
  CounterSet& requests;          // key, status
  CounterSet& refused;           // code
  CounterSet& finished_reasons;  // finished_reason: stop, length, abort, error
  Gauge& generation_tokens_running;
  Histogram &queue, &prefill, &first_token, &inter_token, &decode, &latency;  // seconds
  Histogram &prompt_tokens, &generation_tokens;                               // a reply
  CounterSet& tool_calls;                                                     // result
  Histogram& grammar_compile;                                                 // seconds, cached ones included
  Histogram& grammar_fill;                                                    // seconds, one mask of tokens
};

/// Follows one generation from its admission to its end and records its figures. Used on one sequence. One
/// that goes without finished() was cut off.
class ReplyMeter {
 public:
  /// `received_ns`: when the request had arrived, on the steady clock; 0: when it was submitted.
  ReplyMeter(ApiMetrics& metrics, int64_t received_ns, int64_t prompt_tokens);
  ~ReplyMeter() { end("abort"); }
  ReplyMeter(const ReplyMeter&) = delete;
  ReplyMeter& operator=(const ReplyMeter&) = delete;

  /// `read` tokens have been taken from the generation so far.
  void advance(size_t read, const GenerationTimes& times);
  /// Once; later calls do nothing.
  void finished(FinishReason reason, const GenerationTimes& times);

 private:
  void end(const char* reason);

  ApiMetrics& metrics_;
  const int64_t received_ns_;
  const int64_t prompt_tokens_;
  size_t read_ = 0;
  int64_t last_read_ns_ = 0;
  bool ended_ = false;
};

}  // namespace firesteel::api
