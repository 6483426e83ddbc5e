#include "app/progress_line.h"

#include <unistd.h>

#include <cstdio>

#include "base/log.h"

namespace firesteel {

void ProgressLine::operator()(uint64_t done, uint64_t all) {
  const bool terminal = isatty(STDERR_FILENO) != 0, last = done >= all;
  const auto now = std::chrono::steady_clock::now();
  const auto pause = std::chrono::milliseconds(terminal ? 100 : 10000);
  if (all == 0 || done == 0 || (now - shown_ < pause && !(last && terminal))) return;
  shown_ = now;
  const double part = static_cast<double>(done) / static_cast<double>(all);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double left = seconds * (1.0 / part - 1.0);
  if (!terminal) {
    LOG_INFO("{}: {:.0f} % of {}, {:.0f} s left", work_, 100.0 * part, total_, left);
    return;
  }
  std::fprintf(stderr, "\r%s: %3.0f %% of %s, %.0f s left ", work_.c_str(), 100.0 * part, total_.c_str(),
               left);
  if (last) std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
}

}  // namespace firesteel
