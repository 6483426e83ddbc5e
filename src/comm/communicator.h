// Communicator: the collective operations of 1, 2 or 4 ranks over a full mesh of byte channels.
//
// Every message is a frame with a kind, a sequence number, a length and a checksum. What does not match
// (another operation at the peer, a flipped bit, a lost or truncated frame) is an error, never a wrong
// number; a duplicate of an earlier frame is dropped. After any error the communicator is broken for good:
// every later call fails with the first reason, and a new group must be formed. Collectives are issued by one
// thread, in the same order on every rank; abort() may come from any thread (the watch) and ends a wait
// within a millisecond or so.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/result.h"
#include "comm/channel.h"

namespace firesteel {

/// What a frame is for; both sides must agree.
enum class CommOp : uint32_t { kSum = 1, kCandidates, kControl, kSettings };

inline constexpr size_t kMaxRanks = 4;

struct CommLimits {
  std::chrono::milliseconds stall{5000};  // a collective that makes no progress for so long has failed
  size_t max_control_bytes = 64u << 20;   // of one control record
};

class Communicator {
 public:
  /// `peers[r]` leads to rank r; the own entry is null. size() = peers.size(), 1 to 4.
  Communicator(int rank, std::vector<std::unique_ptr<ByteChannel>> peers, CommLimits limits = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  /// Every rank gives the same number of bytes and receives all contributions in rank order:
  /// all.size() = size() · mine.size(). `mine` may be all's own part.
  Status all_gather(CommOp op, std::span<const std::byte> mine, std::span<std::byte> all);

  /// The same where ranks come at very different times (one has loaded its weights, another has not): waits
  /// up to `patience` for the first sign of progress.
  Status all_gather(CommOp op, std::span<const std::byte> mine, std::span<std::byte> all,
                    std::chrono::milliseconds patience);

  /// Split form of a gather, so that work can go between: begin posts `mine` (which must stay unchanged until
  /// end); end waits for everyone. One gather may be open at a time.
  Status gather_begin(CommOp op, std::span<const std::byte> mine, std::span<std::byte> all);
  Status gather_end();
  /// The general form: to[r] goes to rank r and from[r] comes from it; the own elements are ignored. Ended by
  /// gather_end().
  Status trade_begin(CommOp op, std::span<const std::span<const std::byte>> to,
                     std::span<const std::span<std::byte>> from);

  /// Rank 0 sends a record of any length up to the limit; the others receive it. The returned bytes live
  /// until the next call. On rank 0 returns its own record. A follower waits as long as `patience` for the
  /// record to begin (rank 0 idles between rounds), then the stall limit applies.
  Result<std::span<const std::byte>> control(std::span<const std::byte> record,
                                             std::chrono::milliseconds patience);

  /// Breaks the communicator: a waiting call and all later ones return `why`.
  void abort(const Error& why);
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  /// Why it is broken.
  Error reason() const;

  const CommLimits& limits() const { return limits_; }

 private:
  struct Peer;
  using Clock = std::chrono::steady_clock;
  Status fail(Error error);
  Status end(std::chrono::milliseconds patience);
  Status run(Clock::time_point first_deadline);
  Status step(Peer& peer, bool* moved);
  Status receive(Peer& peer, bool* moved);
  Status header_arrived(Peer& peer);
  void idle_wait(int idle_loops);

  const int rank_;
  const CommLimits limits_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::byte> record_;
  CommOp open_op_ = CommOp::kSettings;
  bool open_ = false;
  bool variable_ = false;  // the open operation takes its length from the frame
  std::atomic<bool> broken_{false};
  mutable std::mutex reason_mutex_;
  Error reason_;
};

}  // namespace firesteel
