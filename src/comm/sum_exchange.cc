#include "comm/sum_exchange.h"

#include <array>

#include "base/check.h"

namespace firesteel {
namespace {

// Below this a second turn costs more than the bytes it saves.
constexpr size_t kWholeBytes = 64u << 10;

/// dst[i] = sum of all[r·n + i] over ranks in the order of the slices. dst may be one of the parts.
void sum_parts(std::span<const float> all, size_t ranks, std::span<float> dst) {
  const size_t n = dst.size();
  const float* const p = all.data();
  float* const out = dst.data();
  if (ranks == 2) {
    for (size_t i = 0; i < n; ++i) out[i] = p[i] + p[n + i];
  } else {
    for (size_t i = 0; i < n; ++i) out[i] = (p[i] + p[n + i]) + (p[2 * n + i] + p[3 * n + i]);
  }
}

}  // namespace

size_t SumExchange::buffer_bytes(int ranks, size_t count) {
  return ranks == 1 ? 0 : static_cast<size_t>(ranks) * count * sizeof(float);
}

std::span<float> SumExchange::piece(std::span<float> whole, size_t rank) const {
  const size_t ranks = static_cast<size_t>(comm_->size()), n = whole.size();
  const size_t begin = n * rank / ranks;
  return whole.subspan(begin, n * (rank + 1) / ranks - begin);
}

Status SumExchange::begin(Communicator& comm, std::span<float> part, std::span<std::byte> buffer) {
  comm_ = &comm;
  part_ = part;
  const size_t ranks = static_cast<size_t>(comm.size()), rank = static_cast<size_t>(comm.rank());
  if (ranks == 1) return {};
  CHECK(buffer.size() >= buffer_bytes(comm.size(), part.size()));
  in_pieces_ = ranks == 4 && part.size_bytes() >= kWholeBytes;
  auto* const floats = reinterpret_cast<float*>(buffer.data());
  if (!in_pieces_) {
    all_ = {floats, ranks * part.size()};
    return comm.gather_begin(CommOp::kSum, std::as_bytes(part), std::as_writable_bytes(all_));
  }
  const size_t n = piece(part, rank).size();
  all_ = {floats, ranks * n};
  std::ranges::copy(piece(part, rank), all_.begin() + static_cast<ptrdiff_t>(rank * n));
  std::array<std::span<const std::byte>, kMaxRanks> to;
  std::array<std::span<std::byte>, kMaxRanks> from;
  for (size_t r = 0; r < ranks; ++r) {
    to[r] = std::as_bytes(piece(part, r));
    from[r] = std::as_writable_bytes(all_.subspan(r * n, n));
  }
  return comm.trade_begin(CommOp::kSum, std::span(to).first(ranks), std::span(from).first(ranks));
}

Status SumExchange::end() {
  const size_t ranks = static_cast<size_t>(comm_->size()), rank = static_cast<size_t>(comm_->rank());
  if (ranks == 1) return {};
  RETURN_IF_ERROR(comm_->gather_end());
  if (!in_pieces_) {
    sum_parts(all_, ranks, part_);
    return {};
  }
  sum_parts(all_, ranks, piece(part_, rank));
  std::array<std::span<const std::byte>, kMaxRanks> to;
  std::array<std::span<std::byte>, kMaxRanks> from;
  for (size_t r = 0; r < ranks; ++r) {
    to[r] = std::as_bytes(piece(part_, rank));
    from[r] = std::as_writable_bytes(piece(part_, r));
  }
  RETURN_IF_ERROR(comm_->trade_begin(CommOp::kSum, std::span(to).first(ranks), std::span(from).first(ranks)));
  return comm_->gather_end();
}

}  // namespace firesteel
