// What backends share of narrowing a matrix while it is loaded (MatrixKeep::kFp8, kQ4): reading its rows in
// pieces and giving each to quant/narrow.h, on several threads.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "ops/ops.h"
#include "quant/narrow.h"

namespace firesteel {

inline bool is_narrowed(const MatrixSpec& s) {
  return s.keep == MatrixKeep::kFp8 || s.keep == MatrixKeep::kQ4;
}

/// kUnsupported: this format cannot be kept this way, or never comes from a checkpoint.
Status check_keep(const MatrixSpec& spec);

/// One row as codes: `q4` or `fp8` holds its scales.
struct NarrowedRow {
  std::vector<float> wide;
  std::vector<uint8_t> codes;
  std::vector<Q4Scale> q4;
  std::vector<uint16_t> fp8;
};

/// Reads the rows of a matrix whose keep is kFp8 or kQ4, a piece at a time, and calls use(row, narrowed) for
/// each on the threads of `pool`; a block of `together` rows is one thread's, in order, and lies in one
/// piece. piece_done (may be empty) is called on the calling thread when all rows of a piece have been used.
/// Errors name the first row that cannot be narrowed.
Status narrow_rows(const MatrixSpec& spec, MatrixSource& source, ThreadPool& pool, int64_t together,
                   const std::function<void(int64_t row, const NarrowedRow&)>& use,
                   const std::function<Status(int64_t first, int64_t count)>& piece_done);

}  // namespace firesteel
