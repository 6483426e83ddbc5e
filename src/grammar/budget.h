// The bound on compiling one grammar: CPU time of the compiling thread, and sizes of what is built.
//
// One per compilation, one thread. Every loop whose length a user decides spends steps; when spend() says no,
// the loop stops at once and the compiler reports error().
#pragma once

#include <cstdint>

#include "base/result.h"

namespace firesteel::grammar {

struct CompileLimits {
  double cpu_seconds = 1.0;
  uint32_t states = 100'000;       // deterministic states of a whole grammar
  uint32_t nfa_edges = 2'000'000;  // before determinizing
  uint32_t rules = 20'000;
  uint32_t source_bytes = 4u << 20;
  uint32_t table_bytes = 48u << 20;  // of masks computed ahead
};

class CompileBudget {
 public:
  explicit CompileBudget(const CompileLimits& limits = {});
  const CompileLimits& limits() const { return limits_; }

  /// False once the time is over. The clock is read every few thousand steps.
  bool spend(uint32_t steps = 1) {
    if ((left_ -= static_cast<int64_t>(steps)) > 0) return true;
    return refill();
  }
  /// Ends compilation for a size limit; `what` is a literal.
  void exhaust(const char* what) {
    if (exhausted_ == nullptr) exhausted_ = what;
    left_ = 0;
  }
  bool ok() const { return exhausted_ == nullptr; }
  double cpu_used() const;
  Error error() const;

 private:
  bool refill();
  CompileLimits limits_;
  int64_t left_;
  int64_t start_ns_;
  const char* exhausted_ = nullptr;
};

}  // namespace firesteel::grammar
