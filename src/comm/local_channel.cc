#include <vector>

#include "comm/channel.h"
#include "comm/ring.h"

namespace firesteel {
namespace {

/// Both directions, shared by the two ends.
struct Pipe {
  explicit Pipe(size_t capacity) : memory(2 * stride(capacity)), capacity(capacity) {}
  static size_t stride(size_t capacity) { return (ring_bytes(capacity) + 63) / 64; }
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory;
  size_t capacity;
  Ring ring(int direction) {
    return {reinterpret_cast<std::byte*>(memory.data() + static_cast<size_t>(direction) * stride(capacity)),
            capacity};
  }
};

class LocalChannel final : public ByteChannel {
 public:
  LocalChannel(std::shared_ptr<Pipe> pipe, int side)
      : pipe_(std::move(pipe)), out_(pipe_->ring(side)), in_(pipe_->ring(1 - side)) {}
  ~LocalChannel() override {
    out_.close();
    in_.close();
  }
  Result<size_t> write_some(std::span<const std::byte> bytes) override {
    if (out_.closed()) return Error{ErrorCode::kUnavailable, "the peer closed its end"};
    return out_.write_some(bytes);
  }
  Result<size_t> read_some(std::span<std::byte> bytes) override {
    const bool closed = in_.closed();  // before the read: what was written before closing is still delivered
    const size_t n = in_.read_some(bytes);
    if (n == 0 && closed && !bytes.empty()) return Error{ErrorCode::kUnavailable, "the peer closed its end"};
    return n;
  }

 private:
  std::shared_ptr<Pipe> pipe_;
  Ring out_, in_;
};

}  // namespace

std::pair<std::unique_ptr<ByteChannel>, std::unique_ptr<ByteChannel>> make_local_channels(size_t capacity) {
  auto pipe = std::make_shared<Pipe>(capacity);
  return {std::make_unique<LocalChannel>(pipe, 0), std::make_unique<LocalChannel>(pipe, 1)};
}

}  // namespace firesteel
