#include "ops/cuda/host_exchange.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace firesteel::cuda {

namespace {

using Clock = std::chrono::steady_clock;

// How long the thread watches without pause, and then only now and then. Sums of a decode step come every
// hundred microseconds.
constexpr std::chrono::microseconds kWatch{300}, kPause{20};

// A part of a row is 16 KB, one of a prompt chunk 33 MB; the wire to the host is busy with a few blocks.
constexpr unsigned kCopyThreads = 256;
constexpr int64_t kFloatsABlock = 4 * kCopyThreads * 4, kMostCopyBlocks = 32;

unsigned copy_blocks(int64_t count) {
  return static_cast<unsigned>(std::clamp<int64_t>(count / kFloatsABlock, 1, kMostCopyBlocks));
}

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

Result<std::unique_ptr<HostExchange>> HostExchange::make(const gpu::Device& device, const Kernels& kernels,
                                                         size_t bytes) {
  std::unique_ptr<HostExchange> out(new HostExchange(device, kernels));
  out->half_ = (bytes + 255) / 256 * 256;
  // The part itself is never longer than what is received.
  ASSIGN_OR_RETURN(out->memory_,
                   device.allocate_pinned(kFlagBytes + 2 * out->half_, "the exchange with the other ranks"));
  ASSIGN_OR_RETURN(out->arrived_, device.allocate(sizeof(uint32_t), "a count of the exchange"));
  ASSIGN_OR_RETURN(const gpu::Stream stream, device.stream());
  RETURN_IF_ERROR(device.fill(stream, out->arrived_.data(), 0, sizeof(uint32_t)));
  RETURN_IF_ERROR(stream.synchronize());
  out->thread_ = std::thread([exchange = out.get()] { exchange->run(); });
  return out;
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

Status HostExchange::send(const gpu::Stream& stream, const float* sent, int32_t n) {
  CHECK(static_cast<size_t>(count(n)) * sizeof(float) <= half_);
  return device_.launch(stream, kernels_.exchange_send, {{copy_blocks(count(n))}, kCopyThreads},
                        {sent, reinterpret_cast<float*>(part()), count(n),
                         reinterpret_cast<uint32_t*>(arrived_.data()), request(), static_cast<uint32_t>(n)});
}

Status HostExchange::receive(const gpu::Stream& stream, float* sum, int32_t n) {
  RETURN_IF_ERROR(device_.launch(stream, kernels_.exchange_wait, {{1}, 1}, {done()}));
  return device_.launch(stream, kernels_.exchange_take, {{copy_blocks(count(n))}, kCopyThreads},
                        {reinterpret_cast<const float*>(part()), sum, count(n)});
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
  const size_t count = static_cast<size_t>(rows_) * n;
  fault_ = exchange_.begin(*comm_, {reinterpret_cast<float*>(part()), count}, {part() + half_, half_});
  if (fault_.ok()) fault_ = exchange_.end();
}

}  // namespace firesteel::cuda
