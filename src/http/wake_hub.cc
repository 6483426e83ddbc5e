#include <sys/eventfd.h>
#include <unistd.h>

#include <boost/asio/post.hpp>

#include "http/server_core.h"

namespace firesteel::http {

class WakeHub::StrandWaker final : public Waker, public std::enable_shared_from_this<StrandWaker> {
 public:
  StrandWaker(std::shared_ptr<ServerCore> core, Strand strand, std::function<void()> f)
      : core_(std::move(core)), strand_(std::move(strand)), function_(std::move(f)) {}

  void wake() override {
    if (queued_.exchange(true, std::memory_order_acq_rel)) return;
    alive_ = shared_from_this();  // until the hub has taken it off its list
    core_->hub->enqueue(this);
  }

 private:
  friend class WakeHub;
  std::shared_ptr<ServerCore> core_;  // first in, last out: the strand needs the core's io_context
  Strand strand_;
  std::function<void()> function_;
  std::atomic<bool> queued_{false};
  std::shared_ptr<StrandWaker> alive_;
  StrandWaker* next_ = nullptr;
};

std::unique_ptr<WakeHub> WakeHub::create(asio::io_context& io) {
  const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) return nullptr;
  return std::unique_ptr<WakeHub>(new WakeHub(io, fd));
}

std::shared_ptr<Waker> WakeHub::make_waker(std::shared_ptr<ServerCore> core, Strand strand,
                                           std::function<void()> f) {
  return std::make_shared<StrandWaker>(std::move(core), std::move(strand), std::move(f));
}

void WakeHub::enqueue(StrandWaker* waker) {
  StrandWaker* head = head_.load(std::memory_order_relaxed);
  do {
    waker->next_ = head;
  } while (!head_.compare_exchange_weak(head, waker, std::memory_order_seq_cst, std::memory_order_relaxed));
  if (closed_.load(std::memory_order_seq_cst)) return drop_queued();
  if (signalled_.exchange(true, std::memory_order_seq_cst)) return;
  const uint64_t one = 1;
  // Fails only with the counter at its maximum, and then the reader is roused anyway.
  [[maybe_unused]] const auto n = ::write(event_.native_handle(), &one, sizeof one);
}

void WakeHub::listen() {
  event_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (ec) return;
    uint64_t count = 0;
    [[maybe_unused]] const auto n = ::read(event_.native_handle(), &count, sizeof count);
    run_queued();
    listen();
  });
}

void WakeHub::run_queued() {
  // Cleared before the list is taken: a wake after this line signals again.
  signalled_.store(false, std::memory_order_seq_cst);
  StrandWaker* w = head_.exchange(nullptr, std::memory_order_seq_cst);
  while (w != nullptr) {
    StrandWaker* next = w->next_;
    const std::shared_ptr<StrandWaker> alive = std::move(w->alive_);
    w->queued_.store(false, std::memory_order_release);
    asio::post(alive->strand_, [alive] { alive->function_(); });
    w = next;
  }
}

void WakeHub::drop_queued() {
  StrandWaker* w = head_.exchange(nullptr, std::memory_order_seq_cst);
  while (w != nullptr) {
    StrandWaker* next = w->next_;
    const std::shared_ptr<StrandWaker> last = std::move(w->alive_);
    w = next;
  }
}

void WakeHub::close() {
  closed_.store(true, std::memory_order_seq_cst);
  boost::system::error_code ignored;
  event_.cancel(ignored);
  drop_queued();
}

}  // namespace firesteel::http
