// MatrixSource over a checkpoint: gives a backend one rank's part of a matrix straight from the files,
// reading nothing else. One loading thread per source; different sources may run at once.
#pragma once

#include <vector>

#include "model/weight_map.h"

namespace firesteel {

/// Bytes as stored, for every format. `ref` must outlive the source.
class FileMatrixSource : public MatrixSource {
 public:
  explicit FileMatrixSource(const MatrixRef& ref) : ref_(ref) {}
  Status read_rows(MatrixPart part, int64_t first, int64_t count, void* dst) override;

 private:
  const MatrixRef& ref_;
};

/// Reads a vector's pieces and widens them to fp32; `dst` holds ref.size() elements.
Status read_vector(const VectorRef& ref, float* dst);

/// True when every matrix has an EXL3 input scale (suh) and all are the same bits (-0 differs from +0).
Result<bool> same_suh(const std::vector<const MatrixRef*>& matrices);

}  // namespace firesteel
