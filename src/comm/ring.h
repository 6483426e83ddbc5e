// Ring: a single-producer, single-consumer byte ring that works across threads and across processes that
// share its memory. The memory holds a RingHeader and `capacity` bytes; it starts zeroed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace firesteel {

struct RingHeader {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) std::atomic<uint32_t> closed;  // by either side, for good
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

inline constexpr size_t ring_bytes(size_t capacity) { return sizeof(RingHeader) + capacity; }

class Ring {
 public:
  Ring(std::byte* memory, size_t capacity)
      : header_(reinterpret_cast<RingHeader*>(memory)),
        data_(memory + sizeof(RingHeader)),
        capacity_(capacity) {}
  size_t write_some(std::span<const std::byte> bytes);
  size_t read_some(std::span<std::byte> bytes);
  void close() { header_->closed.store(1, std::memory_order_release); }
  bool closed() const { return header_->closed.load(std::memory_order_acquire) != 0; }

 private:
  RingHeader* header_;
  std::byte* data_;
  size_t capacity_;
};

}  // namespace firesteel
