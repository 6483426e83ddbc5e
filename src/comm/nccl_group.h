// NcclGroup: one rank's part in a group of NCCL, formed over the ranks' Communicator.
//
// No call waits without end: what NCCL does in the background is polled for, and abort(), from any thread,
// ends gathers that run on the GPU and everything that waits. All other calls come from the thread that
// formed the group, on whose current GPU it works (NCCL uses the GPU's primary context).
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include "comm/communicator.h"
#include "comm/nccl.h"

namespace firesteel {

class NcclGroup {
 public:
  /// Every rank of `comm` calls it at about the same time. kUnavailable after `limit`, or when the
  /// communicator breaks; `ordinal`: the GPU that NCCL must have chosen.
  static Result<std::unique_ptr<NcclGroup>> form(const Nccl& nccl, Communicator& comm, int ordinal,
                                                 std::chrono::milliseconds limit);
  ~NcclGroup() { abort(); }
  NcclGroup(const NcclGroup&) = delete;

  /// Issues on `stream` (a CUstream, which may be capturing): all[r·count + i] = element i of rank r's
  /// `part`, device memory. kUnavailable: the group has failed.
  Status gather(const float* part, float* all, size_t count, void* stream);
  /// What NCCL noticed of a running gather (a connection that broke). Any thread.
  Status check();
  /// Ends what runs. Returns when NCCL has let go of the group, for which it waits until no recorded graph
  /// with a gather of this group is left.
  void abort();

 private:
  explicit NcclGroup(const Nccl& nccl) : nccl_(nccl) {}
  Error error(NcclResult code, const char* what) const;
  /// Polls until what was begun is done; `wanted` says whether to go on.
  template <typename Wanted>
  Status settle(const char* what, const Wanted& wanted);

  const Nccl& nccl_;
  std::mutex mutex_;  // of handle_ and all calls with it
  NcclComm handle_ = nullptr;
  std::atomic<bool> aborted_{false};
};

}  // namespace firesteel
