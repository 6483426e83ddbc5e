// Published FP8 matrices: e4m3 codes [rows, cols] with one fp32 scale per 128×128 block, weight = code ×
// scale.
//
// The scale of element (r, c) is scales[r / 128, c / 128], row-major over ⌈cols/128⌉ blocks; the last block
// of either direction may be partial. The file calls the scale `…_scale_inv`, but it multiplies. Any thread.
#pragma once

#include <cstdint>

namespace firesteel {

constexpr int64_t kFp8Block = 128;

/// Rows [row_begin, row_end) of the whole matrix `codes` [·, cols] into `out`, packed; one fp32 rounding an
/// element.
void fp8_blocks_to_f32(const uint8_t* codes, const float* scales, int64_t cols, int64_t row_begin,
                       int64_t row_end, float* out);

}  // namespace firesteel
