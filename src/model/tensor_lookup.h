// Finding one matrix or vector in a checkpoint's headers, in whichever storage form it has, and checking it.
#pragma once

#include <initializer_list>
#include <string>

#include "model/weight_map.h"

namespace firesteel {

/// What a lossy DenseFormat does to a matrix that is stored plain.
enum class Narrowing : uint8_t {
  kDense,  // takes the format; 4 bits need whole groups of 64 columns, other widths take FP8
  kHead,   // FP8 in any case
  kNever,
};

/// The whole matrix and this rank's part of it.
struct MatrixWanted {
  int32_t n = 0, k = 0;
  Range rows, cols;
  bool sliced = false;      // row-parallel: summed in K-slices
  bool only_plain = false;  // the op reads F32 or BF16 alone
  bool bare_name = false;   // stored without ".weight"
  Narrowing narrowing = Narrowing::kDense;
};

class TensorLookup {
 public:
  TensorLookup(const Checkpoint& checkpoint, const Placement& placement, DenseFormat dense)
      : checkpoint_(checkpoint), placement_(placement), dense_(dense) {}

  /// `name` without ".weight".
  Status matrix(const std::string& name, const MatrixWanted& want, MatrixRef& out) const;
  /// Appends elements [rows.begin, rows.end) × `inner` of a tensor whose shape is one of `shapes`.
  Status vector(const std::string& name, std::initializer_list<std::vector<int64_t>> shapes, Range rows,
                int64_t inner, VectorRef& out) const;
  /// The whole of a one-dimensional tensor.
  Status vector(const std::string& name, int32_t size, VectorRef& out) const {
    return vector(name, {{size}}, whole(size), 1, out);
  }

 private:
  Result<TensorRef> need(const std::string& name, std::initializer_list<DType> types,
                         std::initializer_list<std::vector<int64_t>> shapes) const;
  Status plain_matrix(const std::string& name, const MatrixWanted& want, MatrixRef& out) const;
  Status exl3_matrix(const std::string& name, const MatrixWanted& want, MatrixRef& out) const;

  const Checkpoint& checkpoint_;
  Placement placement_;
  DenseFormat dense_;
};

}  // namespace firesteel
