#include "grammar/budget.h"

#include <ctime>
#include <string>

namespace firesteel::grammar {

namespace {

constexpr int64_t kStepsBetweenLooks = 4096;

int64_t cpu_now_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

CompileBudget::CompileBudget(const CompileLimits& limits)
    : limits_(limits), left_(kStepsBetweenLooks), start_ns_(cpu_now_ns()) {}

double CompileBudget::cpu_used() const { return static_cast<double>(cpu_now_ns() - start_ns_) * 1e-9; }

bool CompileBudget::refill() {
  if (exhausted_ != nullptr) return false;
  if (cpu_used() > limits_.cpu_seconds) {
    exhaust("takes too long to compile");
    return false;
  }
  left_ = kStepsBetweenLooks;
  return true;
}

Error CompileBudget::error() const {
  return {ErrorCode::kLimit, std::string("the grammar ") +
                                 (exhausted_ ? exhausted_ : "is within its limits") + "; make it simpler"};
}

}  // namespace firesteel::grammar
