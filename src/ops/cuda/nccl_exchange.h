// The sum over ranks through NCCL: the parts of all ranks are gathered in device memory and added there, in
// the order of the slices.
//
// NCCL moves the parts and adds nothing, so the order of the sum is ours. Gathers run on a stream of their
// own, between two events. A thread watches a forward that runs: it ends the group when the communicator
// breaks (the ranks' watch), when NCCL notices a broken connection, or when no sum was completed for as long
// as a collective may stall. One object serves one communicator. Recorded forwards hold on to the group: they
// must be gone before this is destroyed.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "comm/nccl_choice.h"
#include "comm/nccl_group.h"
#include "ops/cuda/exchange.h"
#include "ops/cuda/kernels.h"

namespace firesteel::cuda {

class NcclExchange final : public Exchange {
 public:
  /// Forms the group and connects it; every rank of `comm` calls it at about the same time. `memory`: device
  /// memory for the parts of all ranks, used while forwards run. Both must outlive the exchange.
  static Result<std::unique_ptr<NcclExchange>> make(const gpu::Device& device, const Kernels& kernels,
                                                    Communicator& comm, std::span<std::byte> memory);
  ~NcclExchange() override;

  void begin(int32_t rows) override;
  Status send(const gpu::Stream& stream, const float* part, int32_t n) override;
  Status receive(const gpu::Stream& stream, float* part, int32_t n) override;
  Status finish() override;

 private:
  NcclExchange(const gpu::Device& device, const Kernels& kernels, Communicator& comm,
               std::span<std::byte> memory);
  /// The connections that the shortest and the longest gather use.
  Status connect();
  void watch();
  Status look();
  void give_up(const Error& why);  // under mutex_
  void fail(const Error& why);
  uint32_t progress() const;

  const gpu::Device& device_;
  const Kernels& kernels_;
  Communicator& comm_;
  float* const all_;       // [ranks, capacity_]
  const size_t capacity_;  // elements of a part
  gpu::Stream side_;
  gpu::Event sent_, gathered_;
  gpu::Buffer progress_;  // the number of the last sum that is done, from 1; host memory
  std::unique_ptr<NcclGroup> group_;
  int32_t rows_ = 0;
  uint32_t issued_ = 0;  // sums of this forward

  std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  bool stop_ = false, running_ = false;
  Status fault_;  // for good
  uint32_t seen_ = 0;
  std::chrono::steady_clock::time_point seen_at_;
  std::thread thread_;
};

}  // namespace firesteel::cuda
