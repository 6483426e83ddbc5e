#include "cluster/rank_launcher.h"

#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/log.h"

namespace firesteel {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{50};
constexpr std::chrono::seconds kPoliteness{5};  // between asking a process to end and killing it

/// Starts this program with other arguments. Only async-signal-safe calls between fork and exec.
pid_t start(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  argv.push_back(const_cast<char*>("firesteel"));
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before we asked
  signal(SIGINT, SIG_IGN);            // a terminal's Ctrl-C is for rank 0, which ends us in order
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);  // clients' connections are not ours to hold open
  execv("/proc/self/exe", argv.data());
  _exit(127);
}

}  // namespace

RankLauncher::RankLauncher(std::vector<std::vector<std::string>> arguments) {
  for (auto& a : arguments) children_.push_back({std::move(a)});
  thread_ = std::thread([this] { run(); });
}

RankLauncher::~RankLauncher() {
  stopping_.store(true);
  thread_.join();
}

void RankLauncher::run() {
  std::vector<Clock::time_point> due(children_.size(), Clock::now());
  while (!stopping_.load()) {
    for (size_t i = 0; i < children_.size(); ++i) {
      Child& child = children_[i];
      if (child.pid < 0) {
        if (Clock::now() < due[i]) continue;
        child.pid = start(child.arguments);
        if (child.pid < 0) LOG_ERROR("cannot start rank {}: {}", i + 1, std::strerror(errno));
      } else {
        int status = 0;
        if (waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
        child.pid = -1;
        const std::string how = WIFSIGNALED(status)
                                    ? std::string("was ended by signal ") + strsignal(WTERMSIG(status))
                                    : "ended with code " + std::to_string(WEXITSTATUS(status));
        LOG_WARN("rank {} {}; starting it again", i + 1, how);
      }
      if (child.pid >= 0) continue;
      // At once the first time, then more and more slowly.
      due[i] = Clock::now() + std::chrono::milliseconds(std::min(10'000, 200 * child.failures));
      ++child.failures;
    }
    std::this_thread::sleep_for(kLook);
  }
  for (const Child& child : children_)
    if (child.pid > 0) kill(child.pid, SIGTERM);
  const Clock::time_point deadline = Clock::now() + kPoliteness;
  for (Child& child : children_) {
    while (child.pid > 0 && waitpid(child.pid, nullptr, WNOHANG) == 0) {
      if (Clock::now() > deadline) kill(child.pid, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

}  // namespace firesteel
