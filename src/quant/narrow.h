// The two lossy forms that plain matrices (bf16, fp32) may take while they are loaded, a row at a time.
//
//   q4   groups of 64 along K: codes 0..15, a scale and an offset in bf16; weight = bf16(code · scale +
//   offset),
//        one rounding. Scale and offset are found by a search that makes the squared error of the group
//        small.
//   fp8  groups of 128 along K: e4m3 codes and a scale in bf16, the largest magnitude / 448; weight =
//        bf16(code · scale), one rounding.
//
// Either way a weight is a bf16 number: a narrowed matrix means a bf16 matrix, and backends agree about every
// bit of it. (The rounding adds at most 2^-9 of a weight to errors that are 15 and 50 times that.) Groups are
// cut from the row's first column; a rank's part of K begins at a multiple of 128 and so has the codes of the
// whole row. Codes depend on the group alone, and are the same on every machine. Pure functions, any thread.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/result.h"
#include "tensor/dtype.h"

namespace firesteel {

inline constexpr int64_t kQ4Group = 64, kFp8Group = 128;
/// Larger weights are refused: backends may shift all weights by a power of two and need the room.
inline constexpr float kLargestNarrowed = 0x1p24f;
/// Scales and offsets that the search gives: a scale is in [kLeastQ4Scale, 2^22]; an offset is 0 or at least
/// 2^-16 of its scale (below that it could only break ties of the rounding).
inline constexpr float kLeastQ4Scale = 0x1p-40f;
/// Scales of fp8 groups are in [kLeastFp8Scale, 2^16].
inline constexpr float kLeastFp8Scale = 0x1p-60f;

struct Q4Scale {
  uint16_t scale = 0, offset = 0;  // bf16
  bool operator==(const Q4Scale&) const = default;
};

/// The weight that a code means, bf16 bits. fp32 holds what a tie of the last rounding hangs on, given the
/// ranges above.
inline uint16_t q4_value(int code, Q4Scale s) {
  return f32_to_bf16(std::fmaf(static_cast<float>(code), bf16_to_f32(s.scale), bf16_to_f32(s.offset)));
}
inline uint16_t fp8_value(uint8_t code, uint16_t scale) {
  return f32_to_bf16(f8e4m3_to_f32(code) * bf16_to_f32(scale));
}

/// A row of k weights, k a multiple of 64: codes[k], scales[k/64]. kUnsupported names the first column that
/// holds no finite number or one beyond kLargestNarrowed.
Status q4_from_row(const float* w, int64_t k, uint8_t* codes, Q4Scale* scales);

/// A row of k weights: codes[k], scales[⌈k/128⌉] as bf16; errors as above.
Status fp8_from_row(const float* w, int64_t k, uint8_t* codes, uint16_t* scales);

}  // namespace firesteel
