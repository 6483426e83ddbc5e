// How a server is asked to stop: SIGINT and SIGTERM. One object a process, made before any other thread,
// never destroyed (its thread outlives everything).
#pragma once

#include <signal.h>

#include <atomic>

namespace firesteel {

/// Blocks the stop signals in every thread that starts after it and takes them on a thread of its own: the
/// first ends wait(), or the process while there is nothing to finish yet; the second ends the process.
class StopSignals {
 public:
  StopSignals();
  /// From now on the first signal ends wait() instead of the process. Gives the signal's number.
  int wait();

 private:
  void run();
  sigset_t set_{};
  std::atomic<bool> waiting_{false};
  std::atomic<int> received_{0};
};

}  // namespace firesteel
