// The 128-point Walsh-Hadamard transform of EXL3: H[i][j] = (-1)^popcount(i & j) / √128, its own inverse.
//
// The order of the arithmetic is part of the contract (it decides bits): butterflies (a, b) → (a + b, a - b)
// at distances 1, 2, 4, …, 64, then one multiplication by kHadamardScale, all fp32. The transform is never
// folded into weights on one path and not on another. Any thread; in place.
#pragma once

#include <cstdint>

namespace firesteel {

constexpr int64_t kHadamardBlock = 128;
constexpr float kHadamardScale = 0.08838834764831845f;  // 1/√128

/// Transforms 128 consecutive values.
void hadamard_128(float* x);
/// Transforms each of the blocks of `count` values; count is a multiple of 128.
void hadamard_blocks(float* x, int64_t count);
/// Transforms each column of a [128, columns] matrix whose rows are `stride` values apart; the same bits as
/// hadamard_128 of that column.
void hadamard_128_columns(float* x, int64_t columns, int64_t stride);

}  // namespace firesteel
