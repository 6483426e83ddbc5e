#include "faulty_channel.h"

#include <algorithm>
#include <chrono>

namespace firesteel {
namespace {

class FaultyChannel final : public ByteChannel {
 public:
  FaultyChannel(std::unique_ptr<ByteChannel> inner, FaultPlan plan) : inner_(std::move(inner)), plan_(plan) {}

  Result<size_t> write_some(std::span<const std::byte> bytes) override {
    if (bytes.empty()) return size_t{0};
    if (plan_.kind == Fault::kNone || written_ > plan_.at_byte) return pass(bytes);
    if (written_ < plan_.at_byte) return pass(bytes.first(std::min(bytes.size(), plan_.at_byte - written_)));
    // At the byte.
    switch (plan_.kind) {
      case Fault::kNone:
        return pass(bytes);
      case Fault::kDelay: {
        const auto now = std::chrono::steady_clock::now();
        if (until_ == std::chrono::steady_clock::time_point{})
          until_ = now + std::chrono::milliseconds(plan_.delay_ms);
        if (now < until_) return size_t{0};
        return pass(bytes.first(1));
      }
      case Fault::kDuplicateByte: {
        auto first = inner_->write_some(bytes.first(1));
        if (!first.ok() || *first == 0) return first;
        auto second = inner_->write_some(bytes.first(1));
        if (!second.ok()) return second;
        written_ += 1;
        return size_t{1};
      }
      case Fault::kTruncate:
        written_ += 1;
        return size_t{1};  // claimed, never sent
      case Fault::kFlip: {
        const std::byte flipped = bytes[0] ^ std::byte{0x10};
        auto wrote = inner_->write_some({&flipped, 1});
        if (wrote.ok()) written_ += *wrote;
        return wrote;
      }
      case Fault::kCut:
        return Error{ErrorCode::kUnavailable, "cut by the test"};
      case Fault::kStop:
        return size_t{0};
    }
    return size_t{0};
  }
  Result<size_t> read_some(std::span<std::byte> bytes) override { return inner_->read_some(bytes); }
  int fd() const override { return inner_->fd(); }

 private:
  Result<size_t> pass(std::span<const std::byte> bytes) {
    auto wrote = inner_->write_some(bytes);
    if (wrote.ok()) written_ += *wrote;
    return wrote;
  }
  std::unique_ptr<ByteChannel> inner_;
  FaultPlan plan_;
  size_t written_ = 0;
  std::chrono::steady_clock::time_point until_{};
};

}  // namespace

std::unique_ptr<ByteChannel> make_faulty(std::unique_ptr<ByteChannel> inner, FaultPlan plan) {
  return std::make_unique<FaultyChannel>(std::move(inner), plan);
}

}  // namespace firesteel
