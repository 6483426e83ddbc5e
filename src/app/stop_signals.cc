#include "app/stop_signals.h"

#include <csignal>
#include <cstdlib>
#include <thread>

namespace firesteel {

StopSignals::StopSignals() {
  sigemptyset(&set_);
  sigaddset(&set_, SIGINT);
  sigaddset(&set_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::thread([this] { run(); }).detach();
}

int StopSignals::wait() {
  waiting_.store(true);
  received_.wait(0);
  return received_.load();
}

void StopSignals::run() {
  for (;;) {
    int signal = 0;
    sigwait(&set_, &signal);
    if (!waiting_.load() || received_.load() != 0) std::_Exit(waiting_.load() ? 1 : 0);
    received_.store(signal);
    received_.notify_all();
  }
}

}  // namespace firesteel
