// A total order on (score, index) for exact top-k: higher score first, lower index first among equals; -0
// equals +0 and NaN comes last. Pure functions.
#pragma once

#include <cstdint>
#include <cstring>

namespace firesteel::cpu {

/// Larger key = earlier. Keys of different indexes differ, and are above 0.
inline uint64_t descending_key(float score, uint32_t index) {
  uint32_t bits;
  score += 0.0f;  // -0 becomes +0
  std::memcpy(&bits, &score, 4);
  bits = score != score ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{bits} << 32 | (0xFFFFFFFFu - index);
}
inline uint32_t key_index(uint64_t key) { return 0xFFFFFFFFu - static_cast<uint32_t>(key); }

}  // namespace firesteel::cpu
