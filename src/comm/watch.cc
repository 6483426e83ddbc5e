#include "comm/watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

namespace firesteel {
namespace {
constexpr char kBeat = '.', kGoodbye = 'B';
using Clock = std::chrono::steady_clock;
}  // namespace

struct Watch::Impl {
  std::vector<Socket> sockets;
  std::vector<std::string> names;
  WatchLimits limits;
  std::function<void(const std::string&)> on_lost;
  Socket stop{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::thread thread;

  /// Reads what a peer sent. Returns the reason when it is lost; clears the socket when it said goodbye.
  std::string read(size_t i, Clock::time_point now, std::vector<Clock::time_point>& heard) {
    char text[64];
    const ssize_t n = recv(sockets[i].fd(), text, sizeof text, MSG_DONTWAIT);
    if (n > 0) {
      heard[i] = now;
      if (std::memchr(text, kGoodbye, static_cast<size_t>(n)) != nullptr) sockets[i].reset();
      return "";
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return "";
    return names[i] + " is gone (" + (n == 0 ? "its process ended" : std::strerror(errno)) + ")";
  }

  void run() {
    std::vector<Clock::time_point> heard(sockets.size(), Clock::now());
    Clock::time_point next_beat = Clock::now();
    for (;;) {
      Clock::time_point now = Clock::now();
      if (now >= next_beat) {
        for (const Socket& s : sockets)
          if (s)
            (void)!send(s.fd(), &kBeat, 1,
                        MSG_NOSIGNAL | MSG_DONTWAIT);  // a full or broken link shows on reading
        next_beat = now + limits.beat;
      }
      std::vector<pollfd> fds{{stop.fd(), POLLIN, 0}};
      for (const Socket& s : sockets) fds.push_back({s ? s.fd() : -1, POLLIN, 0});
      const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next_beat - now).count();
      poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(wait, 1)));
      if (fds[0].revents != 0) {
        for (const Socket& s : sockets)
          if (s) (void)!send(s.fd(), &kGoodbye, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        return;
      }
      const Clock::time_point before = now;
      now = Clock::now();
      // If this process itself was stopped, silence says nothing about the others: start counting anew.
      if (now - before > limits.dead) heard.assign(sockets.size(), now);
      for (size_t i = 0; i < sockets.size(); ++i) {
        std::string lost;
        if (fds[i + 1].revents != 0) lost = read(i, now, heard);
        if (lost.empty() && sockets[i] && now - heard[i] > limits.dead)
          lost =
              names[i] + " does not answer (silent for " +
              std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(now - heard[i]).count()) +
              " ms)";
        if (!lost.empty()) {
          on_lost(lost);
          return;
        }
      }
    }
  }
};

Watch::Watch(std::vector<Socket> sockets, std::vector<std::string> names, WatchLimits limits,
             std::function<void(const std::string&)> on_lost)
    : impl_(std::make_unique<Impl>()) {
  impl_->sockets = std::move(sockets);
  impl_->names = std::move(names);
  impl_->limits = limits;
  impl_->on_lost = std::move(on_lost);
  impl_->thread = std::thread([this] { impl_->run(); });
}

Watch::~Watch() {
  const uint64_t one = 1;
  (void)!write(impl_->stop.fd(), &one, sizeof one);
  impl_->thread.join();
}

}  // namespace firesteel
