// Progress of long work on standard error, with the time left: a line that rewrites itself on a terminal and
// goes when all is done; elsewhere a line in the log every ten seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace firesteel {

class ProgressLine {
 public:
  /// `work` as in "loading weights"; `total` as people read it, as in "4.2 GiB".
  ProgressLine(std::string work, std::string total) : work_(std::move(work)), total_(std::move(total)) {}
  /// `done` of `all`, in any unit.
  void operator()(uint64_t done, uint64_t all);

 private:
  const std::string work_, total_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_ = start_;
};

}  // namespace firesteel
