// The steady clock as a number: what times of requests and rounds are given in. Any thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace firesteel {

/// Nanoseconds since some fixed moment; never goes back.
inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace firesteel
