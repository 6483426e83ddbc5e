// What part of each matrix and vector one rank holds (spec/model.md 5.1, DESIGN section 4).
//
// Everything that is cut is cut at the boundaries of the four K-slices of some unsliced width: one rank holds
// all four, two ranks two each, four ranks one each. A cut by heads follows the slices of its o_proj, a cut
// by expert columns those of its down_proj, the vocabulary its own. Plain values.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "ops/ops.h"

namespace firesteel {

struct Placement {
  int32_t rank = 0, ranks = 1;  // ranks 1, 2 or 4
};

Status check_placement(const Placement& p);

/// Half-open range of rows, columns, heads or ids.
struct Range {
  int32_t begin = 0, end = 0;
  int32_t size() const { return end - begin; }
};

inline Range whole(int32_t n) { return {0, n}; }
inline Range scaled(Range r, int32_t by) { return {r.begin * by, r.end * by}; }
/// The local slices of an unsliced width: columns of row-parallel matrices, ids of the vocabulary.
Range rank_range(int32_t unsliced, const Placement& p);
/// Heads whose `dim` columns make up this rank's slices of heads·dim; kUnsupported when a slice would cut a
/// head.
Result<Range> head_range(int32_t heads, int32_t dim, const std::string& what, const Placement& p);

/// Fills slices and slice_end for a row-parallel matrix of `unsliced` columns.
void set_slices(MatrixSpec& spec, int32_t unsliced, const Placement& p);

}  // namespace firesteel
