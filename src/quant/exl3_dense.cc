#include <vector>

#include "base/check.h"
#include "quant/exl3.h"
#include "quant/hadamard.h"
#include "tensor/dtype.h"

namespace firesteel {

void exl3_dense(const Exl3Trellis& trellis, const uint16_t* suh, const uint16_t* svh, int64_t block_begin,
                int64_t block_end, float* out) {
  const int64_t n = trellis.n;
  CHECK(trellis.k % kHadamardBlock == 0 && n % kHadamardBlock == 0);
  CHECK(0 <= block_begin && block_begin <= block_end && block_end <= trellis.k / kHadamardBlock);
  constexpr int64_t kTilesPerBlock = kHadamardBlock / kExl3Tile;
  std::vector<uint16_t> inner(static_cast<size_t>(kExl3Tile * n));
  std::vector<float> output_scale(static_cast<size_t>(n));
  for (int64_t c = 0; c < n; ++c) output_scale[static_cast<size_t>(c)] = f16_to_f32(svh[c]);

  for (int64_t block = block_begin; block < block_end; ++block) {
    float* rows = out + (block - block_begin) * kHadamardBlock * n;
    for (int64_t t = 0; t < kTilesPerBlock; ++t) {
      const int64_t kt = block * kTilesPerBlock + t;
      exl3_decode(trellis, {kt, kt + 1, 0, n / kExl3Tile}, inner.data(), n);
      float* tile_rows = rows + t * kExl3Tile * n;
      for (size_t i = 0; i < inner.size(); ++i) tile_rows[i] = f16_to_f32(inner[i]);
    }
    hadamard_128_columns(rows, n, n);
    for (int64_t r = 0; r < kHadamardBlock; ++r) {
      float* row = rows + r * n;
      const float input_scale = f16_to_f32(suh[block * kHadamardBlock + r]);
      for (int64_t c = 0; c < n; ++c) row[c] *= input_scale;
      hadamard_blocks(row, n);
      for (int64_t c = 0; c < n; ++c) row[c] *= output_scale[static_cast<size_t>(c)];
    }
  }
}

}  // namespace firesteel
