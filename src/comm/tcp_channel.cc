#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "comm/channel.h"

namespace firesteel {
namespace {

class TcpChannel final : public ByteChannel {
 public:
  explicit TcpChannel(int socket) : socket_(socket) {
    fcntl(socket_, F_SETFL, fcntl(socket_, F_GETFL) | O_NONBLOCK);
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~TcpChannel() override { close(socket_); }
  int fd() const override { return socket_; }

  Result<size_t> write_some(std::span<const std::byte> bytes) override {
    if (bytes.empty()) return size_t{0};
    const ssize_t n = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return size_t{0};
    return Error{ErrorCode::kUnavailable, std::string("the link broke: ") + std::strerror(errno)};
  }
  Result<size_t> read_some(std::span<std::byte> bytes) override {
    if (bytes.empty()) return size_t{0};
    const ssize_t n = recv(socket_, bytes.data(), bytes.size(), 0);
    if (n > 0) return static_cast<size_t>(n);
    if (n == 0) return Error{ErrorCode::kUnavailable, "the peer closed the link"};
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return size_t{0};
    return Error{ErrorCode::kUnavailable, std::string("the link broke: ") + std::strerror(errno)};
  }

 private:
  int socket_;
};

}  // namespace

std::unique_ptr<ByteChannel> make_tcp_channel(int socket) { return std::make_unique<TcpChannel>(socket); }

}  // namespace firesteel
