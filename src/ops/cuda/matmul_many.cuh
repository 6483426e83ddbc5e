// The product kernels for prompts; see matmul.cuh for the arithmetic they share with the kernel for few rows.
#pragma once

#include "ops/cuda/matmul_common.cuh"

namespace firesteel::cuda {

inline constexpr int kManyWarps = 8, kStages = 4, kStageBytes = kRowsPerTile * kGroupK * 2;

/// Shared memory: kStages stages of 64 rows × 64 columns; the EXL3 epilogue uses it as a 64 × 132 fp32 tile.
template <typename Weights>
__device__ __forceinline__ void matmul_many(const MatmulParams& p) {
  extern __shared__ float4 shared4[];
  uint8_t* stages = reinterpret_cast<uint8_t*>(shared4);
  constexpr int NT = kRowsPerTile / 8, kThreads = kManyWarps * 32, kAhead = 4;
  constexpr int kUnitGroups = Weights::kUnitColumns / kGroupK;
  begin_kernel<false>();
  const BlockWork work = block_work<kRowsPerTile>(p, kBlockN);
  if (!work.valid) return;
  const MatrixRef& m = *work.matrix;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int span = max(1, p.unit_span), slice = static_cast<int>(blockIdx.z) / span;
  int k_begin = p.slices ? p.slice_begin[slice] : 0, k_end = p.slices ? p.slice_end[slice] : m.k;
  if (p.unit_span > 0) {  // one unit a block
    k_begin = min(k_end, k_begin + static_cast<int>(blockIdx.z) % span * Weights::kUnitColumns);
    k_end = min(k_end, k_begin + Weights::kUnitColumns);
  }
  const int groups = group_count(m.k), n_groups = (k_end - k_begin + kGroupK - 1) / kGroupK;
  const int channel0 = work.first_channel + warp * kTileN;
  const bool active = channel0 < m.n;

  // A thread copies 16-byte pieces: piece i = (half of 32 columns, row, quarter).
  constexpr int kPieces = kStageBytes / 16 / kThreads;
  const Bits16* source[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int piece = i * kThreads + threadIdx.x;
    source[i] = x_row(p, work, (piece >> 2) % kRowsPerTile);
  }
  const auto stage_in = [&](int g) {
    if (g < n_groups) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int piece = i * kThreads + threadIdx.x;
        const int column = k_begin + g * kGroupK + piece / (4 * kRowsPerTile) * 32 + 8 * (piece & 3);
        uint8_t* dst = stages + (g % kStages) * kStageBytes + piece * 16;
        copy_async16(dst, source[i] + column, true);
      }
    }
    copy_async_commit();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) stage_in(s);

  float acc[NT][4], total[NT][4];
#pragma unroll
  for (int t = 0; t < NT; ++t)
#pragma unroll
    for (int r = 0; r < 4; ++r) acc[t][r] = 0.0f, total[t][r] = 0.0f;
  const uint8_t* base =
      m.data + (static_cast<int64_t>(channel0 / kTileN) * groups + k_begin / kGroupK) * Weights::kGroupBytes;
  Weights now[1], next[1];
  if (active && n_groups > 0) now[0].load(base);
  const int k_blocks = (m.k + 127) / 128;
  for (int g = 0; g < n_groups; ++g) {
    copy_async_wait<kStages - 2>();
    __syncthreads();
    stage_in(g + kStages - 1);
    if (!active) continue;
    // The wait for a load also waits for those issued since: this group is exchanged before the next is asked
    // for.
    now[0].ready();
    if (g + 1 < n_groups) next[0].load(base + (g + 1) * Weights::kGroupBytes);
    // Memory is further away than one group: ask for the weights of four groups ahead, a cache line a lane.
    if (g + kAhead < n_groups && lane * 128 < Weights::kGroupBytes) {
      prefetch_l2(base + (g + kAhead) * Weights::kGroupBytes + lane * 128);
    }
    const uint8_t* stage = stages + (g % kStages) * kStageBytes;
    const uint8_t* piece = stage + ((lane >> 2) * 4 + (lane & 3)) * 16;
    uint4 b[NT];
#pragma unroll
    for (int t = 0; t < NT; ++t) b[t] = *reinterpret_cast<const uint4*>(piece + t * 512);
    multiply_half<0>(now[0], b, acc);
#pragma unroll
    for (int t = 0; t < NT; ++t) b[t] = *reinterpret_cast<const uint4*>(piece + kRowsPerTile * 64 + t * 512);
    multiply_half<1>(now[0], b, acc);
    if ((g + 1) % kUnitGroups == 0 || g + 1 == n_groups) {
      float scale = Weights::kFactor;
      if constexpr (Weights::kBlockScales) {
        scale = m.scale[channel0 / 128 * k_blocks + (k_begin + g * kGroupK) / 128];
      }
#pragma unroll
      for (int t = 0; t < NT; ++t)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          total[t][r] = Weights::kScaled ? fmaf(scale, acc[t][r], total[t][r]) : total[t][r] + acc[t][r];
          acc[t][r] = 0.0f;
        }
    }
    now[0] = next[0];
  }
  copy_async_wait<0>();

  if constexpr (Weights::kExl3) {
    float* tile = reinterpret_cast<float*>(shared4);
    constexpr int kPitch = kBlockN + 4;
    __syncthreads();
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        tile[(8 * t + 2 * (lane & 3) + (r & 1)) * kPitch + warp * kTileN + (lane >> 2) + 8 * (r >> 1)] =
            total[t][r];
    __syncthreads();
    finish_exl3<kPitch>(p, work, tile, blockIdx.z, kManyWarps);
  } else {
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = 8 * t + 2 * (lane & 3) + (r & 1), channel = channel0 + (lane >> 2) + 8 * (r >> 1);
        if (active && row < work.rows && channel < m.n) {
          store_out(p, work, blockIdx.z, row, channel - work.first_channel, total[t][r]);
        }
      }
  }
}

}  // namespace firesteel::cuda
