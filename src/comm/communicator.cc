#include "comm/communicator.h"

#include <poll.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>

#include "base/check.h"

namespace firesteel {
namespace {

struct FrameHeader {
  uint32_t magic;
  uint32_t op;
  uint64_t sequence;
  uint64_t bytes;
  uint64_t checksum;  // of the payload, seeded with the fields above
};
static_assert(sizeof(FrameHeader) == 32);
constexpr uint32_t kMagic = 0x46534331;  // "FSC1"

uint64_t frame_checksum(const FrameHeader& h, std::span<const std::byte> payload) {
  return XXH3_64bits_withSeed(
      payload.data(), payload.size(),
      (static_cast<uint64_t>(h.op) << 56) ^ (h.sequence * 0x9E3779B97F4A7C15ull) ^ h.bytes);
}

}  // namespace

/// One peer's side of the operation in progress.
struct Communicator::Peer {
  int rank = 0;
  std::unique_ptr<ByteChannel> channel;
  // Sending: header, then payload.
  FrameHeader out{};
  std::span<const std::byte> out_payload;
  size_t out_done = 0, out_total = 0;
  uint64_t out_sequence = 0;
  // Receiving.
  FrameHeader in{};
  size_t in_done = 0;  // bytes of header and payload so far
  bool want_in = false;
  bool skipping = false;  // a duplicate: read past it
  std::span<std::byte> in_payload;
  uint64_t in_sequence = 0;
  std::vector<std::byte> skipped;

  bool done() const { return out_done == out_total && !want_in; }
};

Communicator::Communicator(int rank, std::vector<std::unique_ptr<ByteChannel>> peers, CommLimits limits)
    : rank_(rank), limits_(limits) {
  CHECK(rank >= 0 && rank < static_cast<int>(peers.size()) && peers.size() <= kMaxRanks);
  for (size_t r = 0; r < peers.size(); ++r) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->rank = static_cast<int>(r);
    peers_.back()->channel = std::move(peers[r]);
    CHECK((static_cast<int>(r) == rank) == (peers_.back()->channel == nullptr));
  }
}

Communicator::~Communicator() = default;

Error Communicator::reason() const {
  std::lock_guard lock(reason_mutex_);
  return reason_;
}

void Communicator::abort(const Error& why) {
  std::lock_guard lock(reason_mutex_);
  if (broken_.load(std::memory_order_relaxed)) return;
  reason_ = why;
  broken_.store(true, std::memory_order_release);
}

Status Communicator::fail(Error error) {
  abort(error);
  return reason();
}

Status Communicator::header_arrived(Peer& peer) {
  const std::string who = "rank " + std::to_string(peer.rank) + ": ";
  const FrameHeader& h = peer.in;
  if (h.magic != kMagic) return fail({ErrorCode::kUnavailable, who + "what arrived is no frame"});
  // A frame that was already taken came twice: read past it. Its length is bounded before it is believed.
  if (h.sequence < peer.in_sequence && h.bytes <= limits_.max_control_bytes) {
    peer.skipping = true;
    peer.skipped.resize(
        std::max<size_t>(peer.skipped.size(), static_cast<size_t>(std::min<uint64_t>(h.bytes, 1 << 16))));
    return {};
  }
  if (h.sequence != peer.in_sequence) {
    return fail({ErrorCode::kUnavailable, who + "out of step: expected message " +
                                              std::to_string(peer.in_sequence) + ", got " +
                                              std::to_string(h.sequence)});
  }
  if (h.op != static_cast<uint32_t>(open_op_)) {
    return fail({ErrorCode::kUnavailable, who + "out of step: expected operation " +
                                              std::to_string(static_cast<uint32_t>(open_op_)) + ", got " +
                                              std::to_string(h.op)});
  }
  if (variable_) {
    if (h.bytes > limits_.max_control_bytes)
      return fail({ErrorCode::kUnavailable,
                   who + "a record of " + std::to_string(h.bytes) + " bytes is over the limit"});
    record_.resize(static_cast<size_t>(h.bytes));
    peer.in_payload = record_;
  } else if (h.bytes != peer.in_payload.size()) {
    return fail({ErrorCode::kUnavailable, who + "out of step: expected " +
                                              std::to_string(peer.in_payload.size()) + " bytes, got " +
                                              std::to_string(h.bytes)});
  }
  return {};
}

Status Communicator::receive(Peer& peer, bool* moved) {
  for (;;) {
    size_t n = 0;
    if (peer.in_done < sizeof(FrameHeader)) {
      const auto header = std::as_writable_bytes(std::span(&peer.in, 1)).subspan(peer.in_done);
      auto got = peer.channel->read_some(header);
      if (!got.ok())
        return fail({got.error().code, "rank " + std::to_string(peer.rank) + ": " + got.error().message});
      n = *got;
      peer.in_done += n;
      if (n > 0) *moved = true;
      if (peer.in_done < sizeof(FrameHeader)) {
        if (n == 0) return {};
        continue;
      }
      RETURN_IF_ERROR(header_arrived(peer));
    }
    const size_t at = peer.in_done - sizeof(FrameHeader);
    const size_t total = static_cast<size_t>(peer.in.bytes);
    if (at < total) {
      std::span<std::byte> into =
          peer.skipping ? std::span(peer.skipped).first(std::min(peer.skipped.size(), total - at))
                        : peer.in_payload.subspan(at);
      auto got = peer.channel->read_some(into);
      if (!got.ok())
        return fail({got.error().code, "rank " + std::to_string(peer.rank) + ": " + got.error().message});
      n = *got;
      peer.in_done += n;
      if (n == 0) return {};
      *moved = true;
      if (peer.in_done - sizeof(FrameHeader) < total) continue;
    }
    peer.in_done = 0;
    if (peer.skipping) {
      peer.skipping = false;
      continue;
    }
    if (frame_checksum(peer.in, peer.in_payload) != peer.in.checksum)
      return fail(
          {ErrorCode::kUnavailable, "rank " + std::to_string(peer.rank) + ": a message arrived damaged"});
    ++peer.in_sequence;
    peer.want_in = false;
    return {};
  }
}

Status Communicator::step(Peer& peer, bool* moved) {
  while (peer.out_done < peer.out_total) {
    const std::span<const std::byte> header = std::as_bytes(std::span(&peer.out, 1));
    const std::span<const std::byte> rest = peer.out_done < header.size()
                                                ? header.subspan(peer.out_done)
                                                : peer.out_payload.subspan(peer.out_done - header.size());
    auto wrote = peer.channel->write_some(rest);
    if (!wrote.ok())
      return fail({wrote.error().code, "rank " + std::to_string(peer.rank) + ": " + wrote.error().message});
    if (*wrote == 0) break;
    peer.out_done += *wrote;
    *moved = true;
  }
  if (peer.want_in) RETURN_IF_ERROR(receive(peer, moved));
  return {};
}

void Communicator::idle_wait(int idle_loops) {
  if (idle_loops < 64) return;
  if (idle_loops < 256) {
    std::this_thread::yield();
    return;
  }
  pollfd fds[4];
  nfds_t count = 0;
  for (const auto& p : peers_) {
    if (p->channel == nullptr || p->done()) continue;
    if (p->channel->fd() < 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      return;
    }
    const short events =
        static_cast<short>((p->want_in ? POLLIN : 0) | (p->out_done < p->out_total ? POLLOUT : 0));
    fds[count++] = {p->channel->fd(), events, 0};
  }
  // Short, so that an abort from another thread is seen soon.
  poll(fds, count, 1);
}

Status Communicator::run(Clock::time_point first_deadline) {
  Clock::time_point deadline = first_deadline;
  int idle_loops = 0;
  for (;;) {
    if (broken()) return reason();
    bool moved = false, all_done = true;
    for (const auto& p : peers_) {
      if (p->channel == nullptr || p->done()) continue;
      RETURN_IF_ERROR(step(*p, &moved));
      all_done = all_done && p->done();
    }
    if (all_done) return {};
    if (moved) {
      idle_loops = 0;
      deadline = Clock::now() + limits_.stall;
      continue;
    }
    if (Clock::now() > deadline) {
      std::string late;
      for (const auto& p : peers_)
        if (p->channel != nullptr && !p->done()) late += (late.empty() ? "" : ", ") + std::to_string(p->rank);
      return fail({ErrorCode::kUnavailable, "no answer from rank " + late + " in time"});
    }
    idle_wait(++idle_loops);
  }
}

Status Communicator::trade_begin(CommOp op, std::span<const std::span<const std::byte>> to,
                                 std::span<const std::span<std::byte>> from) {
  CHECK(!open_ && to.size() == peers_.size() && from.size() == peers_.size());
  if (broken()) return reason();
  open_ = true;
  variable_ = false;
  open_op_ = op;
  for (const auto& p : peers_) {
    if (p->channel == nullptr) continue;
    const std::span<const std::byte> mine = to[static_cast<size_t>(p->rank)];
    p->out = {kMagic, static_cast<uint32_t>(op), p->out_sequence++, mine.size(), 0};
    p->out.checksum = frame_checksum(p->out, mine);
    p->out_payload = mine;
    p->out_done = 0;
    p->out_total = sizeof(FrameHeader) + mine.size();
    p->in_payload = from[static_cast<size_t>(p->rank)];
    p->in_done = 0;
    p->want_in = true;
  }
  for (const auto& p : peers_) {
    bool moved = false;
    if (p->channel == nullptr) continue;
    if (Status status = step(*p, &moved); !status.ok()) {
      open_ = false;
      return status;
    }
  }
  return {};
}

Status Communicator::gather_begin(CommOp op, std::span<const std::byte> mine, std::span<std::byte> all) {
  CHECK(all.size() == mine.size() * peers_.size());
  std::array<std::span<const std::byte>, kMaxRanks> to;
  std::array<std::span<std::byte>, kMaxRanks> from;
  for (size_t r = 0; r < peers_.size(); ++r) {
    to[r] = mine;
    from[r] = all.subspan(r * mine.size(), mine.size());
  }
  const std::span<std::byte> own = from[static_cast<size_t>(rank_)];
  if (own.data() != mine.data()) std::ranges::copy(mine, own.begin());
  return trade_begin(op, std::span(to).first(peers_.size()), std::span(from).first(peers_.size()));
}

Status Communicator::gather_end() { return end(limits_.stall); }

Status Communicator::end(std::chrono::milliseconds patience) {
  CHECK(open_);
  open_ = false;
  return run(Clock::now() + patience);
}

Status Communicator::all_gather(CommOp op, std::span<const std::byte> mine, std::span<std::byte> all) {
  return all_gather(op, mine, all, limits_.stall);
}

Status Communicator::all_gather(CommOp op, std::span<const std::byte> mine, std::span<std::byte> all,
                                std::chrono::milliseconds patience) {
  RETURN_IF_ERROR(gather_begin(op, mine, all));
  return end(patience);
}

Result<std::span<const std::byte>> Communicator::control(std::span<const std::byte> record,
                                                         std::chrono::milliseconds patience) {
  CHECK(!open_);
  if (broken()) return reason();
  open_op_ = CommOp::kControl;
  variable_ = rank_ != 0;
  for (const auto& p : peers_) {
    if (p->channel == nullptr) continue;
    if (rank_ == 0) {
      p->out = {kMagic, static_cast<uint32_t>(CommOp::kControl), p->out_sequence++, record.size(), 0};
      p->out.checksum = frame_checksum(p->out, record);
      p->out_payload = record;
      p->out_done = 0;
      p->out_total = sizeof(FrameHeader) + record.size();
    } else if (p->rank == 0) {
      p->in_done = 0;
      p->want_in = true;
    }
  }
  RETURN_IF_ERROR(run(Clock::now() + (rank_ == 0 ? limits_.stall : patience)));
  if (rank_ == 0) return record;
  return std::span<const std::byte>(record_);
}

}  // namespace firesteel
