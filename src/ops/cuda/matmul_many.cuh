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
  const int slice = blockIdx.z;
  const int k_begin = p.slices ? p.slice_begin[slice] : 0, k_end = p.slices ? p.slice_end[slice] : m.k;
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
    if (g + 1 < n_groups) next[0].load(base + (g + 1) * Weights::kGroupBytes);
    // Memory is further away than one group: ask for the weights of four groups ahead, a cache line a lane.
    if (g + kAhead < n_groups && lane * 128 < Weights::kGroupBytes) {
      prefetch_l2(base + (g + kAhead) * Weights::kGroupBytes + lane * 128);
    }
    now[0].ready();
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
    finish_exl3<kPitch>(p, work, tile, slice, kManyWarps);
  } else {
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = 8 * t + 2 * (lane & 3) + (r & 1), channel = channel0 + (lane >> 2) + 8 * (r >> 1);
        if (active && row < work.rows && channel < m.n) {
          store_out(p, work, slice, row, channel - work.first_channel, total[t][r]);
        }
      }
  }
}

/// As matmul_many for 128 rows, with the weights staged too: for formats that need no decoding to speak of. A
/// warp takes 32 channels and 64 rows. Shared memory: kWideStages stages of 128 channels and 128 rows × 64
/// columns.
inline constexpr int kWideRows = 128, kWideStages = 3;

template <typename Weights>
__device__ __forceinline__ void matmul_wide(const MatmulParams& p) {
  extern __shared__ float4 shared4[];
  uint8_t* stages = reinterpret_cast<uint8_t*>(shared4);
  constexpr int NT = 8, kThreads = 256, kTilesOfBlock = 8;
  constexpr int kWeightBytes = kTilesOfBlock * Weights::kGroupBytes, kRowBytes = kWideRows * kGroupK * 2;
  constexpr int kStage = kWeightBytes + kRowBytes;
  constexpr int kUnitGroups = Weights::kUnitColumns / kGroupK;
  begin_kernel<false>();
  const BlockWork work = block_work<kWideRows>(p, kBlockN);
  const MatrixRef& m = *work.matrix;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int tile0 = warp % 4 * 2, row_half = warp / 4;
  const int slice = blockIdx.z;
  const int k_begin = p.slices ? p.slice_begin[slice] : 0, k_end = p.slices ? p.slice_end[slice] : m.k;
  const int groups = group_count(m.k), n_groups = (k_end - k_begin + kGroupK - 1) / kGroupK;
  const int last_tile = (m.n + kTileN - 1) / kTileN - 1;

  constexpr int kRowPieces = kRowBytes / 16 / kThreads,
                kWeightPieces = (kWeightBytes / 16 + kThreads - 1) / kThreads;
  const Bits16* source[kRowPieces / 2];  // piece i and piece i + half read the same row
#pragma unroll
  for (int i = 0; i < kRowPieces / 2; ++i)
    source[i] = x_row(p, work, ((i * kThreads + threadIdx.x) >> 2) % kWideRows);
  const auto stage_in = [&](int g) {
    if (g < n_groups) {
      uint8_t* stage = stages + g % kWideStages * kStage;
#pragma unroll
      for (int i = 0; i < kWeightPieces; ++i) {
        const int piece = i * kThreads + threadIdx.x, tile = piece / (Weights::kGroupBytes / 16);
        if (kWeightBytes / 16 % kThreads != 0 && piece >= kWeightBytes / 16) continue;
        const int64_t from =
            static_cast<int64_t>(min(work.first_channel / kTileN + tile, last_tile)) * groups +
            k_begin / kGroupK + g;
        copy_async16(stage + piece * 16,
                     m.data + from * Weights::kGroupBytes + piece % (Weights::kGroupBytes / 16) * 16, true);
      }
#pragma unroll
      for (int i = 0; i < kRowPieces; ++i) {
        const int piece = i * kThreads + threadIdx.x;
        const int column = k_begin + g * kGroupK + piece / (4 * kWideRows) * 32 + 8 * (piece & 3);
        copy_async16(stage + kWeightBytes + piece * 16, source[i % (kRowPieces / 2)] + column, true);
      }
    }
    copy_async_commit();
  };
#pragma unroll
  for (int s = 0; s < kWideStages - 1; ++s) stage_in(s);

  float acc[2][NT][4], total[2][NT][4];
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
      for (int r = 0; r < 4; ++r) acc[i][t][r] = 0.0f, total[i][t][r] = 0.0f;
  const int k_blocks = (m.k + 127) / 128;
  for (int g = 0; g < n_groups; ++g) {
    copy_async_wait<kWideStages - 2>();
    __syncthreads();
    stage_in(g + kWideStages - 1);
    const uint8_t* stage = stages + g % kWideStages * kStage;
    Weights w[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) w[i].load_staged(stage + (tile0 + i) * Weights::kGroupBytes);
    const uint8_t* rows = stage + kWeightBytes + (row_half * 64 + (lane >> 2)) * 64 + (lane & 3) * 16;
    const auto half = [&](auto which) {
      constexpr int kHalfGroup = decltype(which)::value;
      uint32_t f[2][2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        w[i].template fragment<2 * kHalfGroup>(f[i][0]);
        w[i].template fragment<2 * kHalfGroup + 1>(f[i][1]);
      }
#pragma unroll
      for (int t = 0; t < NT; ++t) {
        const uint4 b = *reinterpret_cast<const uint4*>(rows + kHalfGroup * kWideRows * 64 + t * 512);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma<Weights::kHalf>(acc[i][t], f[i][0], b.x, b.y);
          mma<Weights::kHalf>(acc[i][t], f[i][1], b.z, b.w);
        }
      }
    };
    half(Half<0>());
    half(Half<1>());
    if ((g + 1) % kUnitGroups == 0 || g + 1 == n_groups) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float scale = Weights::kFactor;
        if constexpr (Weights::kBlockScales) {
          const int channel = min(work.first_channel + (tile0 + i) * kTileN, m.n - 1);
          scale = m.scale[channel / 128 * k_blocks + (k_begin + g * kGroupK) / 128];
        }
#pragma unroll
        for (int t = 0; t < NT; ++t)
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            total[i][t][r] =
                Weights::kScaled ? fmaf(scale, acc[i][t][r], total[i][t][r]) : total[i][t][r] + acc[i][t][r];
            acc[i][t][r] = 0.0f;
          }
      }
    }
  }
  copy_async_wait<0>();
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = row_half * 64 + 8 * t + 2 * (lane & 3) + (r & 1);
        const int channel = work.first_channel + (tile0 + i) * kTileN + (lane >> 2) + 8 * (r >> 1);
        if (row < work.rows && channel < m.n) {
          store_out(p, work, slice, row, channel - work.first_channel, total[i][t][r]);
        }
      }
}

}  // namespace firesteel::cuda
