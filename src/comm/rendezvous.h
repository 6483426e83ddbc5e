// Rendezvous: 2 or 4 processes become a group.
//
// Rank 0 listens at one address; the others connect, say who they are and on what they must agree (build,
// weights, settings), and are refused with the names of what differs. Rank 0 then hands out a session number
// and everyone's addresses; each pair of ranks gets one data channel (TCP, or shared memory on one machine)
// and each rank a watch connection to rank 0. A rank of another session can never slip in.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/communicator.h"
#include "comm/socket.h"

namespace firesteel {

enum class LinkKind : uint8_t { kTcp, kShm };

struct GroupOptions {
  int rank = 0, ranks = 1;
  std::string leader_host = "127.0.0.1";
  uint16_t leader_port = 29551;
  LinkKind link = LinkKind::kTcp;  // rank 0's choice counts
  std::chrono::milliseconds timeout{600'000};
  CommLimits limits;
  std::map<std::string, std::string> facts;  // must be equal on all ranks
};

/// A formed group: the communicator and the sockets of the watch (rank 0: one per other rank, in rank order;
/// others: one, to rank 0).
struct Group {
  std::unique_ptr<Communicator> comm;
  std::vector<Socket> watch;
  uint64_t session = 0;
};

/// Rank 0's side, which outlives groups: after a failure the same listener forms the next one.
class Leader {
 public:
  static Result<Leader> listen(const GroupOptions& options);
  uint16_t port() const { return port_; }
  /// Waits for every other rank. kInvalidArgument: a rank differs (the message names what); kUnavailable: not
  /// all came in the options' time, or one left meanwhile. With `stop` it waits for as long as that is false.
  Result<Group> form(const std::atomic<bool>* stop = nullptr);

 private:
  explicit Leader(GroupOptions options) : options_(std::move(options)) {}
  GroupOptions options_;
  Socket listener_;
  uint16_t port_ = 0;
};

/// The other ranks' side; waits for rank 0 to appear. kInvalidArgument: refused, the message names what
/// differs.
Result<Group> join_group(const GroupOptions& options);

/// Ranks as threads of one process: element r is rank r's communicator.
std::vector<std::unique_ptr<Communicator>> make_local_group(int ranks, CommLimits limits = {});

}  // namespace firesteel
