#include "comm/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <thread>

namespace firesteel {
namespace {

using Clock = std::chrono::steady_clock;

Error socket_error(const std::string& what) { return {ErrorCode::kIo, what + ": " + std::strerror(errno)}; }
Error too_late(const std::string& what) { return {ErrorCode::kUnavailable, what + ": no answer in time"}; }

int left_ms(Deadline deadline) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

/// Waits for `events`; false when the deadline passed.
bool wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd p{fd, events, 0};
    const int n = poll(&p, 1, left_ms(deadline));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return true;  // the following call reports it
    if (Clock::now() >= deadline) return false;
  }
}

struct AddrInfoFree {
  void operator()(addrinfo* a) const { freeaddrinfo(a); }
};

Result<std::unique_ptr<addrinfo, AddrInfoFree>> resolve(const std::string& host, uint16_t port,
                                                        bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* list = nullptr;
  const int rc =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (rc == EAI_AGAIN) return Error{ErrorCode::kUnavailable, "no answer yet to what " + host + " is"};
  if (rc != 0) return Error{ErrorCode::kInvalidArgument, "cannot resolve " + host + ": " + gai_strerror(rc)};
  return std::unique_ptr<addrinfo, AddrInfoFree>(list);
}

/// No delay, and a peer whose machine vanished without a word breaks the link within some ten seconds.
void set_up(int fd) {
  const auto set = [fd](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 4);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

/// Sends or receives exactly `bytes` bytes.
template <typename Step>
Status transfer(int fd, short events, std::byte* at, size_t bytes, Deadline deadline, Step step) {
  while (bytes > 0) {
    if (!wait_for(fd, events, deadline)) return too_late("a peer");
    const ssize_t n = step(fd, at, bytes);
    if (n == 0) return Error{ErrorCode::kUnavailable, "the peer closed the link"};
    if (n < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      return Error{ErrorCode::kUnavailable, std::string("the link broke: ") + std::strerror(errno)};
    }
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return {};
}

}  // namespace

void Socket::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Result<Socket> listen_on(const std::string& host, uint16_t port) {
  ASSIGN_OR_RETURN(const auto list, resolve(host, port, true));
  Error last{ErrorCode::kIo, "no address to listen on"};
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    Socket s(socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (!s) continue;
    const int on = 1;
    setsockopt(s.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(s.fd(), a->ai_addr, a->ai_addrlen) == 0 && listen(s.fd(), 64) == 0) return s;
    last = socket_error("cannot listen on " + host + " port " + std::to_string(port));
  }
  return last;
}

Result<uint16_t> local_port(const Socket& socket) {
  sockaddr_storage a{};
  socklen_t n = sizeof a;
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&a), &n) != 0) return socket_error("getsockname");
  return ntohs(a.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&a)->sin6_port
                                       : reinterpret_cast<sockaddr_in*>(&a)->sin_port);
}

Result<std::string> peer_address(const Socket& socket) {
  sockaddr_storage a{};
  socklen_t n = sizeof a;
  char host[NI_MAXHOST];
  if (getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&a), &n) != 0) return socket_error("getpeername");
  if (getnameinfo(reinterpret_cast<sockaddr*>(&a), n, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0)
    return Error{ErrorCode::kIo, "getnameinfo failed"};
  return std::string(host);
}

Result<Socket> accept_until(const Socket& listener, Deadline deadline) {
  for (;;) {
    if (!wait_for(listener.fd(), POLLIN, deadline)) return too_late("waiting for a peer");
    Socket s(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (s) {
      set_up(s.fd());
      return s;
    }
    if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN) return socket_error("accept");
  }
}

Result<Socket> connect_until(const std::string& host, uint16_t port, Deadline deadline) {
  const std::string where = host + " port " + std::to_string(port);
  for (;;) {
    ASSIGN_OR_RETURN(const auto list, resolve(host, port, false));
    for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
      Socket s(socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol));
      if (!s) continue;
      if (connect(s.fd(), a->ai_addr, a->ai_addrlen) != 0) {
        if (errno != EINPROGRESS) continue;
        if (!wait_for(s.fd(), POLLOUT, std::min(deadline, Clock::now() + std::chrono::seconds(2)))) continue;
        int error = 0;
        socklen_t n = sizeof error;
        if (getsockopt(s.fd(), SOL_SOCKET, SO_ERROR, &error, &n) != 0 || error != 0) continue;
      }
      fcntl(s.fd(), F_SETFL, fcntl(s.fd(), F_GETFL) & ~O_NONBLOCK);
      set_up(s.fd());
      return s;
    }
    if (Clock::now() >= deadline) return too_late("connecting to " + where);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

Status send_message(const Socket& socket, const std::string& text, Deadline deadline) {
  if (text.size() > kMaxMessage) return Error{ErrorCode::kInternal, "message over the limit"};
  std::string framed(4, '\0');
  for (int i = 0; i < 4; ++i) framed[static_cast<size_t>(i)] = static_cast<char>(text.size() >> (8 * i));
  framed += text;
  return transfer(socket.fd(), POLLOUT, reinterpret_cast<std::byte*>(framed.data()), framed.size(), deadline,
                  [](int fd, std::byte* p, size_t n) { return send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT); });
}

Result<std::string> receive_message(const Socket& socket, Deadline deadline) {
  const auto step = [](int fd, std::byte* p, size_t n) { return recv(fd, p, n, MSG_DONTWAIT); };
  std::byte head[4];
  RETURN_IF_ERROR(transfer(socket.fd(), POLLIN, head, sizeof head, deadline, step));
  size_t size = 0;
  for (int i = 0; i < 4; ++i) size |= static_cast<size_t>(head[i]) << (8 * i);
  if (size > kMaxMessage) return Error{ErrorCode::kUnavailable, "the peer does not speak our protocol"};
  std::string text(size, '\0');
  RETURN_IF_ERROR(
      transfer(socket.fd(), POLLIN, reinterpret_cast<std::byte*>(text.data()), size, deadline, step));
  return text;
}

Result<std::pair<std::string, uint16_t>> parse_address(const std::string& text, uint16_t default_port) {
  const Error bad{ErrorCode::kInvalidArgument, "expected HOST or HOST:PORT, not " + text};
  std::string host = text, port;
  if (!text.empty() && text[0] == '[') {
    const size_t end = text.find(']');
    if (end == std::string::npos) return bad;
    host = text.substr(1, end - 1);
    if (end + 1 < text.size()) {
      if (text[end + 1] != ':') return bad;
      port = text.substr(end + 2);
      if (port.empty()) return bad;
    }
  } else if (const size_t colon = text.find(':');
             colon != std::string::npos && text.find(':', colon + 1) == std::string::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) return bad;
  }
  if (host.empty()) return bad;
  uint16_t number = default_port;
  if (!port.empty()) {
    const auto [end, ec] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (ec != std::errc() || end != port.data() + port.size() || number == 0) return bad;
  }
  return std::pair{host, number};
}

}  // namespace firesteel
