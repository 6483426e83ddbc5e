#include "model/slicing.h"

namespace firesteel {

Status check_placement(const Placement& p) {
  if (p.ranks != 1 && p.ranks != 2 && p.ranks != 4) {
    return Error{ErrorCode::kInvalidArgument, "ranks must be 1, 2 or 4, not " + std::to_string(p.ranks)};
  }
  if (p.rank < 0 || p.rank >= p.ranks) {
    return Error{ErrorCode::kInvalidArgument,
                 "rank " + std::to_string(p.rank) + " is not below " + std::to_string(p.ranks) + " ranks"};
  }
  return Status::success();
}

Range rank_range(int32_t unsliced, const Placement& p) {
  const int32_t each = 4 / p.ranks;
  return {slice_boundary(unsliced, p.rank * each), slice_boundary(unsliced, (p.rank + 1) * each)};
}

Result<Range> head_range(int32_t heads, int32_t dim, const std::string& what, const Placement& p) {
  const Range columns = rank_range(heads * dim, p);
  if (columns.begin % dim != 0 || columns.end % dim != 0) {
    return Error{ErrorCode::kUnsupported, what + ": " + std::to_string(heads) + " heads of " +
                                              std::to_string(dim) + " do not split over " +
                                              std::to_string(p.ranks) + " ranks"};
  }
  return Range{columns.begin / dim, columns.end / dim};
}

void set_slices(MatrixSpec& spec, int32_t unsliced, const Placement& p) {
  const int32_t each = 4 / p.ranks;
  const int32_t first = slice_boundary(unsliced, p.rank * each);
  spec.slices = each;
  for (int32_t i = 0; i < each; ++i)
    spec.slice_end[i] = slice_boundary(unsliced, p.rank * each + i + 1) - first;
}

}  // namespace firesteel
