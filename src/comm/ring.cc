#include "comm/ring.h"

#include <algorithm>
#include <cstring>

namespace firesteel {

size_t Ring::write_some(std::span<const std::byte> bytes) {
  const uint64_t written = header_->written.load(std::memory_order_relaxed);
  const uint64_t used = written - header_->read.load(std::memory_order_acquire);
  if (used >= capacity_) return 0;
  const size_t n = std::min(bytes.size(), capacity_ - static_cast<size_t>(used));
  const size_t at = static_cast<size_t>(written % capacity_), head = std::min(n, capacity_ - at);
  std::memcpy(data_ + at, bytes.data(), head);
  std::memcpy(data_, bytes.data() + head, n - head);
  header_->written.store(written + n, std::memory_order_release);
  return n;
}

size_t Ring::read_some(std::span<std::byte> bytes) {
  const uint64_t read = header_->read.load(std::memory_order_relaxed);
  const uint64_t present = header_->written.load(std::memory_order_acquire) - read;
  // The other side is a process of its own: what it wrote into the header is not trusted beyond the ring.
  const size_t n = std::min({bytes.size(), static_cast<size_t>(std::min<uint64_t>(present, capacity_))});
  const size_t at = static_cast<size_t>(read % capacity_), head = std::min(n, capacity_ - at);
  std::memcpy(bytes.data(), data_ + at, head);
  std::memcpy(bytes.data() + head, data_, n - head);
  header_->read.store(read + n, std::memory_order_release);
  return n;
}

}  // namespace firesteel
