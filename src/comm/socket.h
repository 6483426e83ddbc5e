// Small blocking helpers over TCP sockets for forming a group: everything has a deadline, nothing trusts a
// length from the wire. Any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"

namespace firesteel {

/// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Socket() { reset(); }
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

using Deadline = std::chrono::steady_clock::time_point;

/// Listens on host:port (0: any free port).
Result<Socket> listen_on(const std::string& host, uint16_t port);
Result<uint16_t> local_port(const Socket& socket);
/// The numeric address of the other side.
Result<std::string> peer_address(const Socket& socket);
/// kUnavailable when nobody came before the deadline.
Result<Socket> accept_until(const Socket& listener, Deadline deadline);
/// Tries again until the deadline: the other side may start later.
Result<Socket> connect_until(const std::string& host, uint16_t port, Deadline deadline);

/// One length-prefixed message of at most kMaxMessage bytes.
inline constexpr size_t kMaxMessage = 1u << 20;
Status send_message(const Socket& socket, const std::string& text, Deadline deadline);
Result<std::string> receive_message(const Socket& socket, Deadline deadline);

/// "host:port"; IPv6 hosts in brackets.
Result<std::pair<std::string, uint16_t>> parse_address(const std::string& text, uint16_t default_port);

}  // namespace firesteel
