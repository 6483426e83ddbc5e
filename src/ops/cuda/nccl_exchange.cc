#include "ops/cuda/nccl_exchange.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"

namespace firesteel::cuda {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kFormStalls = 6;  // forming a group may take some times as long as a gather may stall
constexpr std::chrono::milliseconds kLook{10};  // between two looks at a forward that runs

}  // namespace

NcclExchange::NcclExchange(const gpu::Device& device, const Kernels& kernels, Communicator& comm,
                           std::span<std::byte> memory)
    : device_(device),
      kernels_(kernels),
      comm_(comm),
      all_(reinterpret_cast<float*>(memory.data())),
      capacity_(memory.size() / sizeof(float) / static_cast<size_t>(comm.size())) {}

Result<std::unique_ptr<NcclExchange>> NcclExchange::make(const gpu::Device& device, const Kernels& kernels,
                                                         Communicator& comm, std::span<std::byte> memory) {
  std::unique_ptr<NcclExchange> out(new NcclExchange(device, kernels, comm, memory));
  ASSIGN_OR_RETURN(const Nccl* const nccl, load_nccl());
  ASSIGN_OR_RETURN(out->group_,
                   NcclGroup::form(*nccl, comm, device.info().ordinal, kFormStalls * comm.limits().stall));
  ASSIGN_OR_RETURN(out->side_, device.stream());
  ASSIGN_OR_RETURN(out->sent_, device.event(false));
  ASSIGN_OR_RETURN(out->gathered_, device.event(false));
  ASSIGN_OR_RETURN(out->progress_, device.allocate_pinned(sizeof(uint32_t), "the progress of sums"));
  out->thread_ = std::thread([exchange = out.get()] { exchange->watch(); });
  RETURN_IF_ERROR(out->connect());
  return out;
}

NcclExchange::~NcclExchange() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Status NcclExchange::connect() {
  begin(1);
  {
    const std::lock_guard lock(mutex_);
    seen_at_ += (kFormStalls - 1) * comm_.limits().stall;  // no sum is completed here
  }
  Status issued;
  for (const size_t count : {size_t{1}, capacity_}) {
    const float* const mine = all_ + static_cast<size_t>(comm_.rank()) * count;
    if (issued.ok()) issued = group_->gather(mine, all_, count, side_.handle());
  }
  if (!issued.ok()) fail(issued.error());
  const Status done = side_.synchronize();
  RETURN_IF_ERROR(finish());
  return done;
}

uint32_t NcclExchange::progress() const {
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(progress_.data()))
      .load(std::memory_order_relaxed);
}

void NcclExchange::begin(int32_t rows) {
  rows_ = rows;
  issued_ = 0;
  const std::lock_guard lock(mutex_);
  running_ = true;
  seen_ = progress();
  seen_at_ = Clock::now();
}

Status NcclExchange::send(const gpu::Stream& stream, const float* part, int32_t n) {
  const size_t count = static_cast<size_t>(rows_) * static_cast<size_t>(n);
  CHECK(count <= capacity_);
  RETURN_IF_ERROR(sent_.record(stream));
  RETURN_IF_ERROR(sent_.wait_on(side_));
  const Status issued = group_->gather(part, all_, count, side_.handle());
  if (!issued.ok()) fail(issued.error());
  // Also after a failure: a stream that was drawn into a recording must come back to the one that is
  // recorded.
  RETURN_IF_ERROR(gathered_.record(side_));
  return issued;
}

Status NcclExchange::receive(const gpu::Stream& stream, float* part, int32_t n) {
  RETURN_IF_ERROR(gathered_.wait_on(stream));
  const int64_t count = int64_t{rows_} * n;
  const auto blocks = static_cast<unsigned>((count + 1023) / 1024);
  return device_.launch(
      stream, kernels_.exchange_sum, {{blocks}, 256},
      {all_, part, count, comm_.size(), ++issued_, reinterpret_cast<uint32_t*>(progress_.data())});
}

Status NcclExchange::finish() {
  const std::lock_guard lock(mutex_);
  running_ = false;
  return fault_;
}

/// The communicator is broken before finish() can report it: whoever hears of the fault sees that too.
void NcclExchange::give_up(const Error& why) {
  fault_ = why;
  comm_.abort(why);
}

void NcclExchange::fail(const Error& why) {
  {
    const std::lock_guard lock(mutex_);
    if (fault_.ok()) give_up(comm_.broken() ? comm_.reason() : why);
  }
  wake_.notify_one();
}

Status NcclExchange::look() {
  if (comm_.broken()) return comm_.reason();
  RETURN_IF_ERROR(group_->check());
  const uint32_t done = progress();
  const Clock::time_point now = Clock::now();
  if (done != seen_) {
    seen_ = done;
    seen_at_ = now;
  } else if (now - seen_at_ > comm_.limits().stall) {
    return Error{ErrorCode::kUnavailable, "no sum with the other ranks was completed in time"};
  }
  return {};
}

void NcclExchange::watch() {
  std::unique_lock lock(mutex_);
  bool ended = false;
  while (!stop_) {
    wake_.wait_for(lock, kLook);
    if (running_ && fault_.ok())
      if (const Status seen = look(); !seen.ok()) give_up(seen.error());
    if (fault_.ok() || ended) continue;
    ended = true;
    lock.unlock();  // finish() must not wait for NCCL, which waits for the recorded forwards to go
    group_->abort();
    lock.lock();
  }
}

}  // namespace firesteel::cuda
