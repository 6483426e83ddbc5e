#include "ops/cuda/host_exchange.h"

#include <chrono>
#include <utility>

namespace firesteel::cuda {

namespace {

using Clock = std::chrono::steady_clock;

// How long the thread watches without pause, and then only now and then. Sums of a decode step come every
// hundred microseconds.
constexpr std::chrono::microseconds kWatch{300}, kPause{20};

std::atomic_ref<uint32_t> flag(uint32_t* p) { return std::atomic_ref<uint32_t>(*p); }

}  // namespace

HostExchange::~HostExchange() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    running_.store(false);
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Status HostExchange::open(const gpu::Device& device, size_t bytes) {
  half_ = (bytes + 255) / 256 * 256;
  // The part itself is never longer than what is received.
  ASSIGN_OR_RETURN(memory_,
                   device.allocate_pinned(kFlagBytes + 2 * half_, "the exchange with the other ranks"));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  return {};
}

void HostExchange::begin(int32_t rows) {
  rows_ = rows;
  flag(request()).store(0, std::memory_order_relaxed);
  flag(done()).store(0, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    running_.store(true, std::memory_order_release);
  }
  wake_.notify_one();
}

Status HostExchange::finish() {
  running_.store(false, std::memory_order_release);
  while (busy_.load(std::memory_order_acquire)) std::this_thread::yield();
  return std::exchange(fault_, Status());
}

void HostExchange::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || running_.load(std::memory_order_acquire); });
      if (stop_) return;
      busy_.store(true, std::memory_order_release);
    }
    Clock::time_point seen = Clock::now();
    while (running_.load(std::memory_order_acquire)) {
      const uint32_t n = flag(request()).load(std::memory_order_acquire);
      if (n == 0) {
        if (Clock::now() - seen > kWatch) std::this_thread::sleep_for(kPause);
        continue;
      }
      flag(request()).store(0, std::memory_order_relaxed);
      sum(n);
      flag(done()).store(1, std::memory_order_release);
      seen = Clock::now();
    }
    busy_.store(false, std::memory_order_release);
  }
}

void HostExchange::sum(uint32_t n) {
  if (!fault_.ok()) return;
  if (comm_ == nullptr) {
    fault_ = Error{ErrorCode::kUnavailable, "the other ranks are lost"};
    return;
  }
  const size_t count = static_cast<size_t>(rows_) * n;
  fault_ = exchange_.begin(*comm_, {reinterpret_cast<float*>(part()), count}, {part() + half_, half_});
  if (fault_.ok()) fault_ = exchange_.end();
}

}  // namespace firesteel::cuda
