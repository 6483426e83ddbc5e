// ByteChannel: an ordered, reliable stream of bytes to one peer, without blocking.
//
// The bottom of `comm`: what differs between threads of one process, processes of one machine and machines.
// Owned by a Communicator and used by its thread alone. Nothing here knows frames, ranks or time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace firesteel {

class ByteChannel {
 public:
  virtual ~ByteChannel() = default;
  /// Moves as many bytes as fit now; 0 = none fits. kUnavailable: the peer is gone for good.
  virtual Result<size_t> write_some(std::span<const std::byte> bytes) = 0;
  virtual Result<size_t> read_some(std::span<std::byte> bytes) = 0;
  /// A descriptor to poll for readiness, or -1 when the channel is memory that must be looked at.
  virtual int fd() const { return -1; }
};

/// Two ends in one process (ranks as threads). `capacity`: bytes in flight per direction.
std::pair<std::unique_ptr<ByteChannel>, std::unique_ptr<ByteChannel>> make_local_channels(size_t capacity);

/// Processes of one machine: both ends map the same named POSIX shared memory. The side that creates it
/// removes the name once the other has opened it. `create` must come first.
Result<std::unique_ptr<ByteChannel>> create_shm_channel(const std::string& name, size_t capacity);
Result<std::unique_ptr<ByteChannel>> open_shm_channel(const std::string& name, size_t capacity);

/// A connected socket; takes ownership, sets it non-blocking and without delay.
std::unique_ptr<ByteChannel> make_tcp_channel(int socket);

}  // namespace firesteel
