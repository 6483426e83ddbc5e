// Small helpers of the files that launch products. Pure functions.
#pragma once

#include <cstdint>

#include "ops/cuda/params.h"

namespace firesteel::cuda {

inline constexpr int32_t kFewRows = 32;  // up to here the kernels for few rows

template <typename P, typename Q>
void copy_slices(P& params, const Q& product) {
  params.slices = product.slices;
  params.slice_stride = product.slice_stride;
  for (int i = 0; i < product.slices; ++i) {
    params.slice_begin[i] = i == 0 ? 0 : product.slice_end[i - 1];
    params.slice_end[i] = product.slice_end[i];
  }
}

/// Columns [first, first + count) as blocks of `channels`.
struct ColumnBlocks {
  int32_t offset, count;
};
inline ColumnBlocks column_blocks(int32_t first, int32_t count, int32_t channels) {
  return {first / channels, (count + channels - 1) / channels};
}

inline int32_t padded_k(int32_t k) { return (k + kGroupK - 1) / kGroupK * kGroupK; }
/// The kernels read whole groups of 16-byte aligned rows.
inline bool needs_padding(int32_t k, int64_t ldx) { return k % kGroupK != 0 || ldx % 8 != 0; }

}  // namespace firesteel::cuda
