// Sums over ranks on the CUDA backend: how the ranks settle between NCCL and host memory, and the two ops.
#include <array>

#include "base/log.h"
#include "comm/group_plan.h"
#include "ops/cuda/cuda_ops_impl.h"

namespace firesteel::cuda {

namespace {

// The others connect as soon as all ranks are ready; rank 0 may have other things to start first.
constexpr std::chrono::seconds kFollowers{60};
// From the moment when all ranks form a group of NCCL until the last knows what came of it.
constexpr std::chrono::seconds kForming{120};

Result<std::string> ask_all(Communicator& comm, const NcclOffer& mine) {
  std::array<NcclOffer, kMaxRanks> all;
  const std::span<NcclOffer> offers = std::span(all).first(static_cast<size_t>(comm.size()));
  RETURN_IF_ERROR(comm.all_gather(
      CommOp::kSettings, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(offers),
      comm.rank() == 0 ? std::chrono::milliseconds(kFollowers) : std::chrono::milliseconds(kLoadPatience)));
  return why_not_nccl(offers);
}

}  // namespace

size_t CudaOps::exchange_bytes(int ranks, int32_t rows, int32_t n) const {
  return SumExchange::buffer_bytes(ranks, static_cast<size_t>(rows) * static_cast<size_t>(n));
}

void CudaOps::set_exchange(std::byte* buffer, size_t bytes) { exchange_memory_ = {buffer, bytes}; }

void CudaOps::connect(Communicator* comm) {
  alone_ = false;
  check(device_->make_current());
  recordings_.clear();  // NCCL lets go of a group when no recorded forward holds it
  nccl_exchange_.reset();
  exchange_ = nullptr;
  lost_ = Error{ErrorCode::kUnavailable, "the other ranks are lost"};
  if (comm == nullptr) return;
  lost_ = choose_exchange(*comm);
  if (lost_.ok()) return;
  LOG_WARN("rank {}: {}", comm->rank(), lost_.error().message);
  comm->abort(lost_.error());
}

Status CudaOps::choose_exchange(Communicator& comm) {
  ASSIGN_OR_RETURN(std::string why, ask_all(comm, make_nccl_offer(choice_, device_->info().uuid)));
  if (why.empty()) {
    auto made = NcclExchange::make(*device_, kernels_, comm, exchange_memory_);
    ASSIGN_OR_RETURN(const bool all, all_agree(comm, made.ok(), kForming));
    if (all) {
      nccl_exchange_ = std::move(made).value();
      exchange_ = nccl_exchange_.get();
      if (comm.rank() == 0) LOG_INFO("ranks exchange through NCCL");
      return {};
    }
    why = made.ok() ? "NCCL does not start on another rank" : made.error().message;
  }
  if (choice_ == ExchangeChoice::kNccl)
    return Error{ErrorCode::kUnsupported, "ranks cannot exchange through NCCL: " + why};
  RETURN_IF_ERROR(open_host_exchange(comm));
  if (comm.rank() == 0) LOG_INFO("ranks exchange through host memory, not NCCL ({})", why);
  return {};
}

Status CudaOps::open_host_exchange(Communicator& comm) {
  Status opened;
  if (host_exchange_ == nullptr) {
    auto made = HostExchange::make(*device_, kernels_, exchange_memory_.size());
    if (made.ok())
      host_exchange_ = std::move(made).value();
    else
      opened = made.error();
  }
  // Ranks of one process: a forward that waits for another rank would keep that one from taking its memory.
  ASSIGN_OR_RETURN(const bool all, all_agree(comm, opened.ok(), kForming));
  RETURN_IF_ERROR(opened);
  if (!all) return Error{ErrorCode::kUnavailable, "another rank has no memory for the exchange"};
  host_exchange_->connect(&comm);
  exchange_ = host_exchange_.get();
  return {};
}

void CudaOps::exchange_begin(Stage, float* part, int32_t n) {
  if (alone_ || !status_.ok() || rows_ == 0) return;
  check(exchange_->send(stream_, part, n));
}

void CudaOps::exchange_end(Stage, float* part, int32_t n) {
  if (alone_ || !status_.ok() || rows_ == 0) return;
  check(exchange_->receive(stream_, part, n));
}

}  // namespace firesteel::cuda
