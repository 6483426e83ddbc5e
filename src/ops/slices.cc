#include <algorithm>

#include "ops/ops.h"

namespace firesteel {

int32_t slice_boundary(int32_t unsliced_k, int32_t i) {
  const int64_t blocks = (int64_t{unsliced_k} + 127) / 128;
  return static_cast<int32_t>(std::min<int64_t>(unsliced_k, 128 * (i * blocks / 4)));
}

}  // namespace firesteel
