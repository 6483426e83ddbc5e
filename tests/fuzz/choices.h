// A fuzz input read as a row of choices, so that most inputs are well formed and reach deep. Past its end
// every choice is the first one: what is composed stays finite. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace firesteel::fuzz {

inline void require(bool ok) {
  if (!ok) std::abort();
}

class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool more() const { return at_ < size_; }
  uint8_t next() { return more() ? data_[at_++] : 0; }
  /// 0 to n − 1, n at most 256.
  uint32_t below(uint32_t n) { return next() % n; }
  /// True about once in n.
  bool once_in(uint32_t n) { return more() && next() % n == n - 1; }
  template <typename T, size_t N>
  const T& of(const T (&list)[N]) {
    return list[below(N)];
  }
  /// All that is left.
  std::string_view rest() {
    const std::string_view out(reinterpret_cast<const char*>(data_) + at_, size_ - at_);
    at_ = size_;
    return out;
  }

 private:
  const uint8_t* const data_;
  const size_t size_;
  size_t at_ = 0;
};

}  // namespace firesteel::fuzz
