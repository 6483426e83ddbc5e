// Watch: notices within seconds that a peer process is dead, stopped or cut off.
//
// A thread of its own beats over connections of its own, so that a long forward pass is never mistaken for a
// death and a stopped process never for a slow one. When a peer is lost the callback runs once, on the
// watch's thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/socket.h"

namespace firesteel {

struct WatchLimits {
  std::chrono::milliseconds beat{250};
  std::chrono::milliseconds dead{3500};  // what runs must end with an error within 5 s
};

class Watch {
 public:
  /// `names[i]` is the peer behind sockets[i] ("rank 1"). `on_lost` gets one line: who and why.
  Watch(std::vector<Socket> sockets, std::vector<std::string> names, WatchLimits limits,
        std::function<void(const std::string&)> on_lost);
  /// Says goodbye: a peer that reads it does not count us as lost.
  ~Watch();
  Watch(const Watch&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace firesteel
