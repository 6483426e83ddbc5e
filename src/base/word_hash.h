// A hash of a sequence of words that arrives one by one (FNV-1a over 64-bit words). For keys of tables in
// memory: never stored, and no defence against chosen input.
#pragma once

#include <cstdint>

namespace firesteel {

class WordHash {
 public:
  void add(uint64_t word) { value_ = (value_ ^ word) * 0x100000001b3ull; }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325ull;
};

}  // namespace firesteel
