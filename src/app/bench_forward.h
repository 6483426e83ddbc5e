// Forward passes of a model with random weights, timed one by one: steps of some streams at a given context,
// and prompt chunks. One rank's part may be timed alone, without the sums over ranks. Used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/bench_models.h"
#include "app/open_model.h"

namespace firesteel {

class ForwardBench {
 public:
  /// `streams` sequences of up to `tokens` tokens. Progress on standard error.
  static Result<std::unique_ptr<ForwardBench>> open(const ModelOptions& model,
                                                    const SyntheticOptions& synthetic, int32_t streams,
                                                    int32_t tokens);

  /// What is timed, for people and for the JSON file.
  std::string title() const;
  nlohmann::ordered_json facts() const;

  /// Starts a stream anew with a prompt of made-up ids; returns the milliseconds of each chunk.
  Result<std::vector<double>> fill(int32_t stream, int32_t tokens);
  /// One token of each of the first `count` streams, logits of each; milliseconds.
  Result<double> step(int32_t count);
  /// The same step once more, watched: distinct routed experts of a layer, on average.
  Result<double> distinct_experts(int32_t count);

  static constexpr int32_t kChunk = 2048;  // rows of a prompt chunk

 private:
  ForwardBench() = default;
  Status forward(const std::vector<Segment>& segments, int32_t rows, int32_t logit_rows, ForwardHooks* hooks);

  OpenModel open_;
  SyntheticOptions synthetic_;
  std::string formats_;
  int32_t pages_each_ = 0;
  std::vector<int32_t> lengths_;  // of the streams
  std::vector<int32_t> page_table_, tokens_, logit_rows_;
  uint64_t seed_ = 1;
};

}  // namespace firesteel
