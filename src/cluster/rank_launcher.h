// RankLauncher: runs the ranks above 0 as child processes of this program and restarts those that end.
//
// A thread of its own starts and watches them; they are told to end with it (and the kernel ends them if this
// process is killed).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace firesteel {

class RankLauncher {
 public:
  /// `arguments[i]`: the arguments (without the program's name) of one process.
  explicit RankLauncher(std::vector<std::vector<std::string>> arguments);
  /// Ends the processes and waits for them.
  ~RankLauncher();
  RankLauncher(const RankLauncher&) = delete;

 private:
  void run();
  struct Child {
    std::vector<std::string> arguments;
    pid_t pid = -1;
    int failures = 0;
  };
  std::vector<Child> children_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace firesteel
