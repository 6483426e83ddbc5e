#include "comm/nccl_group.h"

#include <thread>
#include <utility>

namespace firesteel {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kBusyLooks = 2000;  // polls without a pause: a gather takes NCCL some ten microseconds to issue
constexpr std::chrono::microseconds kPause{50};

/// What rank 0 has made for the group; empty where that failed.
struct SharedId {
  NcclId id;
  bool made = false;
};

}  // namespace

Error NcclGroup::error(NcclResult code, const char* what) const {
  std::string text = std::string("NCCL: ") + what + ": " + nccl_.error_string(code);
  const char* const detail = handle_ != nullptr ? nccl_.last_error(handle_) : nullptr;
  if (detail != nullptr && *detail != '\0') {
    const std::string_view all(detail);
    text += " (" + std::string(all.substr(0, all.find('\n'))) + ")";
  }
  return {ErrorCode::kUnavailable, std::move(text)};
}

template <typename Wanted>
Status NcclGroup::settle(const char* what, const Wanted& wanted) {
  for (int looks = 0;; ++looks) {
    NcclResult state = 0;
    if (const NcclResult code = nccl_.async_error(handle_, &state); code != 0) return error(code, what);
    if (state == 0) return {};
    if (state != kNcclInProgress) return error(state, what);
    RETURN_IF_ERROR(wanted());
    if (looks < kBusyLooks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

Result<std::unique_ptr<NcclGroup>> NcclGroup::form(const Nccl& nccl, Communicator& comm, int ordinal,
                                                   std::chrono::milliseconds limit) {
  std::unique_ptr<NcclGroup> group(new NcclGroup(nccl));
  SharedId mine;
  NcclResult code = 0;
  if (comm.rank() == 0) {
    code = nccl.get_id(&mine.id);
    mine.made = code == 0;
  }
  std::array<SharedId, kMaxRanks> all;
  RETURN_IF_ERROR(
      comm.all_gather(CommOp::kSettings, std::as_bytes(std::span(&mine, 1)),
                      std::as_writable_bytes(std::span(all).first(static_cast<size_t>(comm.size())))));
  if (code != 0) return group->error(code, "no id for the group");
  if (!all[0].made) return Error{ErrorCode::kUnavailable, "NCCL: rank 0 has no id for the group"};

  const Clock::time_point deadline = Clock::now() + limit;
  const auto wanted = [&]() -> Status {
    if (comm.broken()) return comm.reason();
    if (Clock::now() > deadline)
      return Error{ErrorCode::kUnavailable, "NCCL: the group is not formed in time"};
    return {};
  };
  NcclConfig config;
  const std::lock_guard lock(group->mutex_);
  code = nccl.init_rank(&group->handle_, comm.size(), all[0].id, comm.rank(), &config);
  if (code != 0 && code != kNcclInProgress) return group->error(code, "no group");
  RETURN_IF_ERROR(group->settle("no group", wanted));
  int device = -1;
  if (code = nccl.device(group->handle_, &device); code != 0) return group->error(code, "which GPU");
  if (device != ordinal)
    return Error{ErrorCode::kUnavailable,
                 "NCCL works on GPU " + std::to_string(device) + " instead of " + std::to_string(ordinal)};
  return group;
}

Status NcclGroup::gather(const float* part, float* all, size_t count, void* stream) {
  const Error over{ErrorCode::kUnavailable, "NCCL: the group was given up"};
  const std::lock_guard lock(mutex_);
  if (handle_ == nullptr) return over;
  const NcclResult code = nccl_.all_gather(part, all, count, kNcclFloat32, handle_, stream);
  if (code == 0) return {};
  if (code != kNcclInProgress) return error(code, "gather");
  return settle("gather", [&]() -> Status {
    return aborted_.load(std::memory_order_acquire) ? Status(over) : Status();
  });
}

Status NcclGroup::check() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || handle_ == nullptr) return {};  // who holds it polls itself
  NcclResult state = 0;
  if (const NcclResult code = nccl_.async_error(handle_, &state); code != 0) return error(code, "gather");
  return state == 0 || state == kNcclInProgress ? Status() : Status(error(state, "gather"));
}

void NcclGroup::abort() {
  aborted_.store(true, std::memory_order_release);
  NcclComm handle = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::swap(handle, handle_);
  }
  // Not under the lock: NCCL waits for recorded graphs, and who owns them may be about to gather.
  if (handle != nullptr) (void)nccl_.abort(handle);
}

}  // namespace firesteel
