// The sum over ranks by way of page-locked host memory: a thread of the host that the GPU asks for each sum.
//
// The GPU copies its part to the host, raises a flag that carries the length, and spins on another flag; this
// thread sees the first, sums with the other ranks through the Communicator, and raises the second. Both
// sides only ever touch memory, so a recorded forward holds the exchange like any other op. Owned by CudaOps;
// all calls come from the engine's thread. The thread sleeps while no forward runs, and always answers: what
// a lost rank leaves undone is reported by finish().
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "comm/sum_exchange.h"
#include "gpu/device.h"

namespace firesteel::cuda {

class HostExchange {
 public:
  HostExchange() = default;
  ~HostExchange();

  /// Memory for sums whose received parts take up to `bytes`; starts the thread.
  Status open(const gpu::Device& device, size_t bytes);
  /// Null: the other ranks are lost, and every sum fails. Not during a forward.
  void connect(Communicator* comm) { comm_ = comm; }

  /// A forward begins, of `rows` rows; nothing is in flight.
  void begin(int32_t rows);
  /// It has ended on the GPU. The first failure of its sums.
  Status finish();

  std::byte* part() const { return memory_.data() + kFlagBytes; }
  size_t part_bytes() const { return half_; }
  /// The GPU writes the row length here once the part is on the host.
  uint32_t* request() const { return reinterpret_cast<uint32_t*>(memory_.data()); }
  /// Becomes 1 when the sum is where the part was; the GPU puts it back to 0.
  uint32_t* done() const { return reinterpret_cast<uint32_t*>(memory_.data() + kFlagBytes / 2); }

 private:
  static constexpr size_t kFlagBytes = 512;
  void run();
  void sum(uint32_t n);

  gpu::Buffer memory_;  // flags, the part, what is received
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
