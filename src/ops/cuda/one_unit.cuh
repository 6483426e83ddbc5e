// A warp's unit of one tile, for launches whose blocks take all units of their channels at once.
#pragma once

#include "ops/cuda/matmul_common.cuh"

namespace firesteel::cuda {

inline constexpr int kUnitGroups = kUnit / kGroupK;

/// The sums of one unit of a tile for up to eight rows. The weights' first kDepth groups come into registers
/// and the others to L2 before anything is waited for.
template <typename Weights, int kDepth>
struct OneUnit {
  Weights ring[kDepth];
  const uint8_t* data;
  int groups;

  __device__ __forceinline__ void start(const uint8_t* matrix, int tile, int k, int unit) {
    const int all = k / kGroupK, group0 = unit * kUnitGroups;
    groups = min(kUnitGroups, all - group0);
    data = matrix + (static_cast<int64_t>(tile) * all + group0) * Weights::kGroupBytes;
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
      if (d < groups) ring[d].load(data + d * Weights::kGroupBytes);
    for (int at = kDepth * Weights::kGroupBytes + 128 * (threadIdx.x & 31);
         at < groups * Weights::kGroupBytes; at += 4096) {
      prefetch_l2(data + at);
    }
  }
  /// x: the lane's row at its first column of the unit.
  __device__ __forceinline__ void multiply(const Bits16* x, float (&acc)[1][4]) {
#pragma unroll
    for (int g0 = 0; g0 < kUnitGroups; g0 += kDepth) {
      uint4 b[kDepth][2];
#pragma unroll
      for (int d = 0; d < kDepth; ++d)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (g0 + d < groups) b[d][i] = load_x(x, (g0 + d) * kGroupK + 32 * i);
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        if (g0 + d >= groups) break;
        const uint4 low[1] = {b[d][0]}, high[1] = {b[d][1]};
        multiply_half<0>(ring[d], low, acc);
        multiply_half<1>(ring[d], high, acc);
        if (g0 + d + kDepth < groups) ring[d].load(data + (g0 + d + kDepth) * Weights::kGroupBytes);
      }
    }
  }
};

/// Sums of a unit, by row and channel.
struct UnitSums {
  float of[8][kTileN + 1];
  __device__ __forceinline__ void store(const float (&acc)[1][4]) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int r = 0; r < 4; ++r) of[2 * (lane & 3) + (r & 1)][(lane >> 2) + 8 * (r >> 1)] = acc[0][r];
  }
};

/// The lane's row of x [rows, k] at its columns of a unit; rows beyond the last repeat it.
__device__ __forceinline__ const Bits16* unit_row(const Bits16* x, int k, int rows, int first_row, int unit) {
  const int lane = threadIdx.x & 31, row = min(first_row + (lane >> 2), rows - 1);
  return x + static_cast<int64_t>(row) * k + unit * kUnit + 8 * (lane & 3);
}

}  // namespace firesteel::cuda
