// A client of raw bytes on a socket, for tests: it can send what no HTTP library would.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

namespace firesteel::http {

struct RawReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // lower-case names
  std::string body;                            // chunks joined
  bool complete = false;
};

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
      ::close(fd_);
      fd_ = -1;
      return;
    }
    const int one = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  ~RawClient() { close(); }
  RawClient(RawClient&& other) noexcept
      : fd_(other.fd_), buffer_(std::move(other.buffer_)), eof_(other.eof_) {
    other.fd_ = -1;
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  /// A reset instead of an orderly end.
  void abort() {
    linger l{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close();
  }
  void finish_sending() { ::shutdown(fd_, SHUT_WR); }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  /// Reads once; false at the end, after an error or when nothing came within `ms`.
  bool receive(int ms = 10'000) {
    if (eof_ || fd_ < 0) return false;
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, ms) <= 0) return false;
    char chunk[65536];
    const ssize_t n = ::recv(fd_, chunk, sizeof chunk, 0);
    if (n <= 0) {
      eof_ = true;
      return false;
    }
    buffer_.append(chunk, static_cast<size_t>(n));
    return true;
  }

  /// Everything up to and with `mark`; "" if it never came.
  std::string read_until(std::string_view mark, int ms = 10'000) {
    size_t at;
    while ((at = buffer_.find(mark)) == std::string::npos) {
      if (!receive(ms)) return {};
    }
    std::string out = buffer_.substr(0, at + mark.size());
    buffer_.erase(0, at + mark.size());
    return out;
  }

  /// True when the server ends the connection within `ms`.
  bool closed_within(int ms) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
    while (!eof_) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      receive(static_cast<int>(left.count()));
    }
    return true;
  }

  /// One final reply; interim ones (1xx) are passed over. `head_only`: the reply to a HEAD request.
  RawReply read_reply(bool head_only = false, int ms = 10'000) {
    RawReply reply;
    do {
      const std::string head = read_until("\r\n\r\n", ms);
      if (head.size() < 12) return {};
      reply = {};
      reply.status = std::atoi(head.c_str() + 9);
      parse_headers(head, &reply);
    } while (reply.status >= 100 && reply.status < 200);
    if (head_only || reply.status == 204) {
      reply.complete = true;
    } else if (reply.headers.count("transfer-encoding") != 0) {
      for (;;) {
        const std::string size_line = read_until("\r\n", ms);
        if (size_line.empty()) return reply;
        const size_t size = std::strtoull(size_line.c_str(), nullptr, 16);
        if (!fill(size + 2, ms)) return reply;
        reply.body += buffer_.substr(0, size);
        buffer_.erase(0, size + 2);
        if (size == 0) break;
      }
      reply.complete = true;
    } else if (reply.headers.count("content-length") != 0) {
      const size_t size = std::strtoull(reply.headers["content-length"].c_str(), nullptr, 10);
      if (!fill(size, ms)) return reply;
      reply.body = buffer_.substr(0, size);
      buffer_.erase(0, size);
      reply.complete = true;
    } else {
      while (receive(ms)) {
      }
      reply.body.swap(buffer_);
      reply.complete = eof_;
    }
    return reply;
  }

  std::string& buffer() { return buffer_; }

 private:
  bool fill(size_t n, int ms) {
    while (buffer_.size() < n) {
      if (!receive(ms)) return false;
    }
    return true;
  }
  static void parse_headers(const std::string& head, RawReply* reply) {
    size_t at = head.find("\r\n") + 2;
    while (at + 2 < head.size()) {
      const size_t end = head.find("\r\n", at);
      const std::string line = head.substr(at, end - at);
      const size_t colon = line.find(':');
      if (colon != std::string::npos) {
        std::string name = line.substr(0, colon);
        for (char& c : name) {
          if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
        }
        reply->headers[name] = line.substr(std::min(line.find_first_not_of(' ', colon + 1), line.size()));
      }
      at = end + 2;
    }
  }

  int fd_ = -1;
  std::string buffer_;
  bool eof_ = false;
};

}  // namespace firesteel::http
