// Tiles of outputs: what one task of a matrix product computes. Pure functions, any thread.
#pragma once

#include <algorithm>
#include <cstring>

#include "ops/cpu/matrix.h"
#include "ops/cpu/vec.h"

namespace firesteel::cpu {

/// Outputs of the largest tile: one Hadamard block.
inline constexpr int32_t kTile = kHadamard;
/// Floats of a tile's results for a block of rows.
inline constexpr size_t kTileFloats = size_t{kRowBlock} * kTile;

/// How many outputs a task takes. EXL3 needs whole Hadamard blocks; small matrices are cut finer so that
/// every worker gets some.
inline int32_t tile_outputs(const MatrixView& w, int workers) {
  if (w.format == MatrixFormat::kExl3) return kTile;
  return w.n >= 128 * workers ? 64 : 8;
}
inline int32_t tile_count(const MatrixView& w, int32_t tile) { return (w.n + tile - 1) / tile; }

/// One tile over columns [k0, k1), finished for EXL3 (x already rotated): out[r·kTile + i].
inline void product_tile(const MatrixView& w, int32_t n0, int32_t n, int32_t k0, int32_t k1, const Rows& x,
                         float* out, float* dot_scratch) {
  dot_tile(w, n0, n, k0, k1, x, out, kTile, dot_scratch);
  if (w.format != MatrixFormat::kExl3) return;
  for (int32_t r = 0; r < x.count; ++r) rotate_output(w.svh + n0, out + int64_t{r} * kTile);
}

/// out[i] = (s0+s1)+(s2+s3), s0+s1 or s0 of `slices` vectors that lie `stride` floats apart.
inline void join_slices(const float* s, int64_t stride, int32_t slices, int32_t n, float* out) {
  for16(static_cast<size_t>(n), [&](size_t i, size_t c) HWY_ATTR {
    const auto slice = [&](int k) HWY_ATTR { return load16(s + k * stride + i, c); };
    V16 v = slice(0);
    if (slices >= 2) v = add(v, slice(1));
    if (slices == 4) v = add(v, add(slice(2), slice(3)));
    store16(v, out + i, c);
  });
}

/// Columns of slice i of a loaded matrix.
inline int32_t slice_first(const MatrixSpec& s, int32_t i) { return i == 0 ? 0 : s.slice_end[i - 1]; }
inline int32_t slice_last(const MatrixSpec& s, int32_t i) { return s.slices == 1 ? s.k : s.slice_end[i]; }

inline bool same_suh(const MatrixView& a, const MatrixView& b) {
  return a.k == b.k &&
         (a.suh == b.suh || std::memcmp(a.suh, b.suh, sizeof(float) * static_cast<size_t>(a.k)) == 0);
}

/// Rows of a block of at most kRowBlock rows, cut out of x.
inline Rows sub_rows(const Rows& x, int32_t first, int32_t count) {
  Rows s = x;
  s.count = count;
  if (x.index != nullptr) {
    s.index = x.index + first;
  } else {
    s.x = x.x + first * x.ld;
  }
  return s;
}

}  // namespace firesteel::cpu
