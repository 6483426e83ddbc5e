// The product kernel for prompts of formats that need no decoding to speak of; see matmul.cuh for the
// arithmetic it shares with the others.
#pragma once

#include "ops/cuda/matmul_common.cuh"

namespace firesteel::cuda {

/// What step pair kHalfGroup of a staged group needs, in registers.
template <int kHalfGroup, typename Weights>
__device__ __forceinline__ void load_half(Weights& w, const uint8_t* group) {
  w.load_staged(group);  // what the half does not use is never read
}
template <int kHalfGroup>
__device__ __forceinline__ void load_half(Bf16Weights& w, const uint8_t* group) {
  const uint4* from = reinterpret_cast<const uint4*>(group) + (threadIdx.x & 31);
  w.r[2 * kHalfGroup] = from[64 * kHalfGroup];
  w.r[2 * kHalfGroup + 1] = from[64 * kHalfGroup + 32];
}

/// A block takes 128 channels and kWideRows rows, a warp 32 channels and 64 rows: its sums of the unit and of
/// the slice fill half the registers. Weights and rows are staged by asynchronous copies, kWideStages groups
/// of 64 columns.
template <typename Weights>
__device__ __forceinline__ void matmul_wide(const MatmulParams& p) {
  extern __shared__ float4 shared4[];
  uint8_t* stages = reinterpret_cast<uint8_t*>(shared4);
  constexpr int kThreads = 256, kWarps = 8, kTilesOfBlock = kBlockN / kTileN, kStages = kWideStages;
  constexpr int kTilesOfWarp = 2, NT = 8;
  constexpr int kChannelWarps = kTilesOfBlock / kTilesOfWarp, kRowWarps = kWarps / kChannelWarps;
  constexpr int kRows = 8 * NT * kRowWarps, kRowTiles = NT * kRowWarps;
  static_assert(kRows == kWideRows && kRowTiles % kWarps == 0);
  constexpr int kWeightBytes = kTilesOfBlock * Weights::kGroupBytes, kPlane = kRows * 64;
  constexpr int kStage = kWeightBytes + 2 * kPlane;
  constexpr int kUnitGroups = Weights::kUnitColumns / kGroupK;
  begin_kernel<false>();
  const BlockWork work = block_work<kRows>(p, kBlockN);
  const MatrixRef& m = *work.matrix;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int tile0 = warp % kChannelWarps * kTilesOfWarp, row_part = warp / kChannelWarps;
  const int slice = blockIdx.z;
  const int k_begin = p.slices ? p.slice_begin[slice] : 0, k_end = p.slices ? p.slice_end[slice] : m.k;
  const int groups = group_count(m.k), n_groups = (k_end - k_begin + kGroupK - 1) / kGroupK;
  const int last_tile = (m.n + kTileN - 1) / kTileN - 1;

  // A warp copies whole tiles of 8 rows, in two planes of 32 columns.
  constexpr int kRowCopies = kRowTiles / kWarps,
                kWeightPieces = (kWeightBytes / 16 + kThreads - 1) / kThreads;
  constexpr bool kUneven = kWeightBytes / 16 % kThreads != 0;  // not every thread has a last piece
  const Bits16* source[kRowCopies];
#pragma unroll
  for (int i = 0; i < kRowCopies; ++i)
    source[i] = x_row(p, work, 8 * (warp + kWarps * i) + (lane >> 2)) + k_begin + 8 * (lane & 3);
  // Offsets of the weights' pieces fit 32 bits: a matrix has less than 4 GiB.
  const uint8_t* weights = m.data + static_cast<int64_t>(k_begin / kGroupK) * Weights::kGroupBytes;
  uint32_t piece_at[kWeightPieces];
#pragma unroll
  for (int i = 0; i < kWeightPieces; ++i) {
    const int piece = i * kThreads + threadIdx.x, tile = piece / (Weights::kGroupBytes / 16);
    piece_at[i] = static_cast<uint32_t>(min(work.first_channel / kTileN + tile, last_tile)) *
                      static_cast<uint32_t>(groups * Weights::kGroupBytes) +
                  piece % (Weights::kGroupBytes / 16) * 16;
  }
  int staged = 0;
  uint8_t *slot = stages + threadIdx.x * 16, *const slots_end = slot + kStages * kStage;
  const auto stage_in = [&] {
    // Addresses are made anew each time: a register that a copy reads must not change before the copy has
    // left.
    if (staged < n_groups) {
#pragma unroll
      for (int i = 0; i < kWeightPieces; ++i)
        if (!kUneven || i * kThreads + threadIdx.x < kWeightBytes / 16)
          copy_async16(slot + i * kThreads * 16, weights + staged * Weights::kGroupBytes + piece_at[i], true);
#pragma unroll
      for (int i = 0; i < kRowCopies; ++i) {
        uint8_t* to = slot + kWeightBytes + kWarps * i * 512;
        copy_async16(to, source[i] + staged * kGroupK, true);
        copy_async16(to + kPlane, source[i] + staged * kGroupK + 32, true);
      }
    }
    copy_async_commit();
    ++staged;
    slot += kStage;
    if (slot == slots_end) slot -= kStages * kStage;
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) stage_in();

  float acc[kTilesOfWarp][NT][4], total[kTilesOfWarp][NT][4];
#pragma unroll
  for (int i = 0; i < kTilesOfWarp; ++i)
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
      for (int r = 0; r < 4; ++r) acc[i][t][r] = 0.0f, total[i][t][r] = 0.0f;
  const int k_blocks = (m.k + 127) / 128;
  // Operands of the next half group are read while this one's products run: the wait for a stage and its
  // barrier lie in front of a half's products, not behind them.
  struct Operands {
    Weights w[kTilesOfWarp];
    uint4 b[NT];
  } now, next;
  const auto read = [&](Operands& o, const uint8_t* stage, auto which) {
    constexpr int kHalfGroup = decltype(which)::value;
    const uint8_t* rows = stage + kWeightBytes + row_part * NT * 512 + lane * 16 + kHalfGroup * kPlane;
#pragma unroll
    for (int i = 0; i < kTilesOfWarp; ++i)
      load_half<kHalfGroup>(o.w[i], stage + (tile0 + i) * Weights::kGroupBytes);
#pragma unroll
    for (int t = 0; t < NT; ++t) o.b[t] = *reinterpret_cast<const uint4*>(rows + t * 512);
  };
  const auto multiply = [&](const Operands& o, auto which) {
    constexpr int kHalfGroup = decltype(which)::value;
    uint32_t f[kTilesOfWarp][4];
#pragma unroll
    for (int i = 0; i < kTilesOfWarp; ++i) o.w[i].template fragment<2 * kHalfGroup>(f[i]);
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
      for (int i = 0; i < kTilesOfWarp; ++i) mma<Weights::kHalf>(acc[i][t], f[i], o.b[t].x, o.b[t].y);
#pragma unroll
    for (int i = 0; i < kTilesOfWarp; ++i) o.w[i].template fragment<2 * kHalfGroup + 1>(f[i]);
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
      for (int i = 0; i < kTilesOfWarp; ++i) mma<Weights::kHalf>(acc[i][t], f[i], o.b[t].z, o.b[t].w);
  };
  const uint8_t *stage = stages, *const stages_end = stages + kStages * kStage;
  const auto open = [&] {  // the next stage is there, and the one before it may be filled again
    copy_async_wait<kStages - 2>();
    __syncthreads();
    stage_in();
  };
  if (n_groups > 0) {
    open();
    read(now, stage, Half<0>());
  }
  for (int g = 0; g < n_groups; ++g) {
    read(next, stage, Half<1>());
    multiply(now, Half<0>());
    if (g + 1 < n_groups) {
      stage += kStage;
      if (stage == stages_end) stage = stages;
      open();
      read(now, stage, Half<0>());
    }
    multiply(next, Half<1>());
    if ((g + 1) % kUnitGroups == 0 || g + 1 == n_groups) {
#pragma unroll
      for (int i = 0; i < kTilesOfWarp; ++i) {
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
  __syncthreads();
  // Eight rows at a time through shared memory of the warp's own, so that stores are whole sectors.
  constexpr int kChannels = kTilesOfWarp * kTileN, kPitch = kChannels + 4;
  float* tile = reinterpret_cast<float*>(shared4) + warp * 8 * kPitch;
  const Output4 out = output_of(p, work, slice);
#pragma unroll
  for (int t = 0; t < NT; ++t) {
#pragma unroll
    for (int i = 0; i < kTilesOfWarp; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        tile[(2 * (lane & 3) + (r & 1)) * kPitch + i * kTileN + (lane >> 2) + 8 * (r >> 1)] = total[i][t][r];
    __syncwarp();
    const int row = row_part * 8 * NT + 8 * t + (lane >> 2);
#pragma unroll
    for (int j = 0; j < kChannels / 16; ++j) {
      const int c = 16 * j + 4 * (lane & 3), channel = work.first_channel + tile0 * kTileN + c;
      const float4 s = *reinterpret_cast<const float4*>(tile + (lane >> 2) * kPitch + c);
      const float v[4] = {s.x, s.y, s.z, s.w};
      if (row < work.rows) out.store(work.first_row + row, channel, m.n, v);
    }
    __syncwarp();
  }
}

}  // namespace firesteel::cuda
