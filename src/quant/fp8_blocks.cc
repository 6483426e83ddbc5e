#include "quant/fp8_blocks.h"

#include <algorithm>
#include <array>

#include "tensor/dtype.h"

namespace firesteel {

void fp8_blocks_to_f32(const uint8_t* codes, const float* scales, int64_t cols, int64_t row_begin,
                       int64_t row_end, float* out) {
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> values;
    for (size_t i = 0; i < values.size(); ++i) values[i] = f8e4m3_to_f32(static_cast<uint8_t>(i));
    return values;
  }();
  const int64_t blocks = (cols + kFp8Block - 1) / kFp8Block;
  for (int64_t r = row_begin; r < row_end; ++r) {
    const uint8_t* row = codes + r * cols;
    for (int64_t block = 0; block < blocks; ++block) {
      const float scale = scales[r / kFp8Block * blocks + block];
      const int64_t end = std::min(cols, (block + 1) * kFp8Block);
      for (int64_t c = block * kFp8Block; c < end; ++c) *out++ = kValues[row[c]] * scale;
    }
  }
}

}  // namespace firesteel
