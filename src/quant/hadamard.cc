#include "quant/hadamard.h"

#include <algorithm>

#include "base/check.h"

namespace firesteel {

void hadamard_128(float* x) {
  for (int64_t h = 1; h < kHadamardBlock; h *= 2) {
    for (int64_t block = 0; block < kHadamardBlock; block += 2 * h) {
      for (int64_t i = block; i < block + h; ++i) {
        const float a = x[i], b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
    }
  }
  for (int64_t i = 0; i < kHadamardBlock; ++i) x[i] *= kHadamardScale;
}

void hadamard_blocks(float* x, int64_t count) {
  CHECK(count % kHadamardBlock == 0);
  for (int64_t i = 0; i < count; i += kHadamardBlock) hadamard_128(x + i);
}

void hadamard_128_columns(float* x, int64_t columns, int64_t stride) {
  constexpr int64_t kPanel = 128;  // 64 KB of values at a time stay in the cache for all seven stages
  for (int64_t first = 0; first < columns; first += kPanel) {
    const int64_t width = std::min(kPanel, columns - first);
    for (int64_t h = 1; h < kHadamardBlock; h *= 2) {
      for (int64_t i = 0; i < kHadamardBlock; ++i) {
        if (i & h) continue;
        float* upper = x + i * stride + first;
        float* lower = upper + h * stride;
        for (int64_t c = 0; c < width; ++c) {
          const float a = upper[c], b = lower[c];
          upper[c] = a + b;
          lower[c] = a - b;
        }
      }
    }
    for (int64_t i = 0; i < kHadamardBlock; ++i) {
      float* row = x + i * stride + first;
      for (int64_t c = 0; c < width; ++c) row[c] *= kHadamardScale;
    }
  }
}

}  // namespace firesteel
