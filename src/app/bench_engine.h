// A model with its engine in this process, for benches: runs requests together and times every token. Used by
// one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "app/bench_stats.h"
#include "app/open_model.h"
#include "engine/model_engine.h"

namespace firesteel {

struct EngineRun {
  std::vector<StreamTimes> replies;  // in the order of the requests
  double cpu_seconds = 0;            // of this process, all threads
};

class BenchEngine {
 public:
  /// `window`: tokens that the longest request spans. Progress on standard error.
  static Result<std::unique_ptr<BenchEngine>> open(const ModelOptions& options, int32_t streams,
                                                   int32_t window);

  /// A greedy request with a prompt of made-up ids that nothing ends before `tokens`; `seed` fixes the ids.
  GenerationRequest request(int32_t prompt, int32_t tokens, uint64_t seed) const;
  /// Submits all and waits for their ends; the first failure is returned.
  Result<EngineRun> run(std::vector<GenerationRequest> requests);

 private:
  BenchEngine() = default;
  OpenModel open_;
  std::unique_ptr<ModelEngine> engine_;  // goes before its model
};

}  // namespace firesteel
