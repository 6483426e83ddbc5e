// The sum over ranks by way of page-locked host memory: a thread of the host that the GPU asks for each sum.
//
// A kernel copies the part to the host and raises a flag that carries the length, one more spins on another
// flag, and a third takes the sum back; this thread sees the first flag, sums with the other ranks through
// the Communicator, and raises the second. Both sides only ever touch memory, so a recorded forward holds the
// exchange like any other op. Copy engines are left out: ranks of one process share their queues, in which
// the copy of a rank that waits for another may stand before that one's. The thread sleeps while no forward
// runs, and always answers: what a lost rank leaves undone is reported by finish().
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/sum_exchange.h"
#include "ops/cuda/exchange.h"
#include "ops/cuda/kernels.h"

namespace firesteel::cuda {

class HostExchange final : public Exchange {
 public:
  /// For sums whose received parts take up to `bytes`. Device and kernels must outlive it.
  static Result<std::unique_ptr<HostExchange>> make(const gpu::Device& device, const Kernels& kernels,
                                                    size_t bytes);
  ~HostExchange() override;

  /// Which ranks; not during a forward.
  void connect(Communicator* comm) { comm_ = comm; }

  void begin(int32_t rows) override;
  Status send(const gpu::Stream& stream, const float* part, int32_t n) override;
  Status receive(const gpu::Stream& stream, float* part, int32_t n) override;
  Status finish() override;

 private:
  static constexpr size_t kFlagBytes = 512;
  HostExchange(const gpu::Device& device, const Kernels& kernels) : device_(device), kernels_(kernels) {}
  void run();
  void sum(uint32_t n);

  std::byte* part() const { return memory_.data() + kFlagBytes; }
  int64_t count(int32_t n) const { return int64_t{rows_} * n; }
  /// The GPU writes the row length here once the part is on the host.
  uint32_t* request() const { return reinterpret_cast<uint32_t*>(memory_.data()); }
  /// Becomes 1 when the sum is where the part was; the GPU puts it back to 0.
  uint32_t* done() const { return reinterpret_cast<uint32_t*>(memory_.data() + kFlagBytes / 2); }

  const gpu::Device& device_;
  const Kernels& kernels_;
  gpu::Buffer memory_;   // flags, the part, what is received
  gpu::Buffer arrived_;  // on the device: exchange_send's count of blocks
  size_t half_ = 0;
  Communicator* comm_ = nullptr;
  SumExchange exchange_;
  int32_t rows_ = 0;
  Status fault_;  // the thread's while a forward runs

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::atomic<bool> running_{false};  // a forward
  std::atomic<bool> busy_{false};     // the thread watches the flag
  std::thread thread_;
};

}  // namespace firesteel::cuda
