// The product kernel for up to eight rows; see matmul.cuh for the arithmetic it shares with the others.
//
// As many blocks as the GPU holds share all tiles of 16 channels of a launch. A block's work is (tile, unit)
// by (tile, unit), eight warps in turn; a warp's weights stream through its own ring of asynchronous copies
// in shared memory, filled while the kernels before still run. The units' sums of some tiles, a round, meet
// in shared memory.
#pragma once

#include "ops/cuda/matmul_common.cuh"

namespace firesteel::cuda {

inline constexpr int kRingThreads = kRingWarps * 32;

/// Where a warp stands in its walk over a block's (tile, unit).
struct RingPlace {
  int tile, unit;      // tile of the block
  int chunk;           // of the unit
  int part;            // the tile's matrix
  int group0, groups;  // the unit's
};

/// Waits until at most `pending` (below kRingStages) of the thread's groups of copies have not arrived.
__device__ __forceinline__ void copy_async_wait_for(int pending) {
  switch (pending) {
    case 0:
      return copy_async_wait<0>();
    case 1:
      return copy_async_wait<1>();
    case 2:
      return copy_async_wait<2>();
    case 3:
      return copy_async_wait<3>();
    default:
      return copy_async_wait<4>();
  }
}

/// kChunk groups are copied together; a warp has p.ring_stages such chunks.
template <typename Weights, int kChunk>
__device__ __forceinline__ void matmul_ring(const MatmulParams& p) {
  extern __shared__ float4 shared4[];
  constexpr int kUnitColumns = Weights::kUnitColumns, kStage = kChunk * Weights::kGroupBytes;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  uint8_t* const ring = reinterpret_cast<uint8_t*>(shared4) + warp * p.ring_stages * kStage;
  float* const sums =
      reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(shared4) + kRingWarps * p.ring_stages * kStage);
  const int first_tile = blockIdx.x * p.tiles / gridDim.x;
  const int tiles = (blockIdx.x + 1) * p.tiles / gridDim.x - first_tile;
  const int k = p.parts[0].k, all_groups = group_count(k);

  const auto units_of = [](int begin, int end) { return (end - begin + kUnitColumns - 1) / kUnitColumns; };
  int k_begin = 0, k_end = k, units;
  if (p.fold) {
    units = 0;
    for (int s = 0; s < p.slices; ++s) units += units_of(p.slice_begin[s], p.slice_end[s]);
  } else {
    const int z = blockIdx.z, slice = p.unit_span > 0 ? z / p.unit_span : z;
    if (p.slices) k_begin = p.slice_begin[slice], k_end = p.slice_end[slice];
    if (p.unit_span > 0) {
      k_begin = min(k_end, k_begin + z % p.unit_span * kUnitColumns);
      k_end = min(k_end, k_begin + kUnitColumns);
    }
    units = units_of(k_begin, k_end);
  }
  const auto settle = [&](RingPlace& at) {  // the rest of a place, from its tile and unit
    int begin = k_begin, end = k_end, unit = at.unit;
    if (p.fold) {
      for (int s = 0; s < p.slices; ++s) {
        begin = p.slice_begin[s], end = p.slice_end[s];
        if (unit < units_of(begin, end)) break;
        unit -= units_of(begin, end);
      }
    }
    const int column = begin + unit * kUnitColumns;
    at.group0 = column / kGroupK;
    at.groups = (min(kUnitColumns, end - column) + kGroupK - 1) / kGroupK;
    at.chunk = 0;
    while (at.part + 1 < p.joined && first_tile + at.tile >= p.parts[at.part + 1].block_begin) ++at.part;
  };
  const int tile_step = units > 0 ? kRingWarps / units : 0, unit_step = kRingWarps - tile_step * units;
  const auto next_unit = [&](RingPlace& at) {
    at.tile += tile_step;
    at.unit += unit_step;
    if (at.unit >= units) {
      at.unit -= units;
      ++at.tile;
    }
    settle(at);
  };
  RingPlace load{units > 0 ? warp / units : tiles, units > 0 ? warp % units : 0, 0, 0, 0, 0};
  settle(load);
  RingPlace at = load;

  int load_stage = 0;
  const uint8_t* from = nullptr;  // the lane's first bytes of the chunk to copy
  const auto place_load = [&] {
    if (load.tile >= tiles) return;
    const MatrixRef& m = p.parts[load.part];
    const int64_t group =
        static_cast<int64_t>(first_tile + load.tile - m.block_begin) * all_groups + load.group0;
    from = m.data + group * Weights::kGroupBytes + 16 * lane;
  };
  place_load();
  const auto copy_chunk = [&] {
    if (load.tile < tiles) {
      const int left = (load.groups - load.chunk * kChunk) * Weights::kGroupBytes - 16 * lane;
      uint8_t* const to = ring + load_stage * kStage + 16 * lane;
#pragma unroll
      for (int i = 0; i < (kStage + 511) / 512; ++i)
        copy_async16_if(512 * i < left && (512 * i + 512 <= kStage || 512 * i + 16 * lane < kStage),
                        to + 512 * i, from + 512 * i);
      from += kStage;
      if (++load.chunk * kChunk >= load.groups) {
        next_unit(load);
        place_load();
      }
    }
    copy_async_commit();
    load_stage = load_stage + 1 == p.ring_stages ? 0 : load_stage + 1;
  };
  // The launch alone says which weights: they come while earlier kernels end.
#pragma unroll 1
  for (int i = 0; i < p.ring_stages; ++i) copy_chunk();
  begin_kernel();

  const int row = min(lane >> 2, p.rows - 1);
  const int of_row = p.rows * kTileN;  // sums of a unit
  constexpr int kGroups = kUnitColumns / kGroupK;
  uint4 x[kGroups][2];  // of the unit x_unit (and matrix x_part)
  int x_unit = -1, x_part = -1;
  int stage = 0, buffer = 0;
#pragma unroll 1
  for (int round0 = 0; round0 < tiles; round0 += p.round_tiles) {
    const int round1 = min(tiles, round0 + p.round_tiles);
    float* const mine = sums + buffer * p.round_tiles * units * of_row;
#pragma unroll 1
    while (at.tile < round1) {
      if (at.unit != x_unit || (p.apart && at.part != x_part)) {
        x_unit = at.unit, x_part = at.part;
        const Bits16* from_x = (p.apart ? p.io[at.part].x + row * p.io[at.part].ldx : p.x + row * p.ldx) +
                               at.group0 * kGroupK + 8 * (lane & 3);
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
          if (g < at.groups) {
            x[g][0] = load_x(from_x, g * kGroupK);
            x[g][1] = load_x(from_x, g * kGroupK + 32);
          }
      }
      float acc[1][4] = {};
#pragma unroll
      for (int g0 = 0; g0 < kGroups; g0 += kChunk) {
        if (g0 >= at.groups) break;
        copy_async_wait_for(p.ring_stages - 1);
        __syncwarp();
        Weights w[kChunk];
#pragma unroll
        for (int g = 0; g < kChunk; ++g) w[g].load_staged(ring + stage * kStage + g * Weights::kGroupBytes);
        __syncwarp();
        copy_chunk();
        stage = stage + 1 == p.ring_stages ? 0 : stage + 1;
#pragma unroll
        for (int g = 0; g < kChunk; ++g) {
          if (g0 + g >= at.groups) break;
          const uint4 low[1] = {x[g0 + g][0]}, high[1] = {x[g0 + g][1]};
          multiply_half<0>(w[g], low, acc);
          multiply_half<1>(w[g], high, acc);
        }
      }
      float* const to = mine + ((at.tile - round0) * units + at.unit) * of_row;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int of = 2 * (lane & 3) + (r & 1);
        if (of < p.rows) to[of * kTileN + (lane >> 2) + 8 * (r >> 1)] = acc[0][r];
      }
      next_unit(at);
    }
    __syncthreads();
    // The next round has the other buffer, the one after it comes behind the next round's barrier.
    for (int e = threadIdx.x; e < (round1 - round0) * of_row; e += kRingThreads) {
      const int tile = e / of_row, in = e - tile * of_row;
      const float* from = mine + tile * units * of_row + in;
      const auto add = [&](float sum) {
        const float v = Weights::kScaled ? fmaf(Weights::kFactor, *from, sum) : sum + *from;
        from += of_row;
        return v;
      };
      float total = 0.0f;
      if (p.fold) {  // the slices as combine adds them
        float of[4] = {};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          if (s >= p.slices) break;
          for (int u = units_of(p.slice_begin[s], p.slice_end[s]); u > 0; --u) of[s] = add(of[s]);
        }
        total = p.slices > 1 ? of[0] + of[1] : of[0];
        if (p.slices > 2) total += of[2] + of[3];
      } else {
#pragma unroll 4
        for (int u = 0; u < units; ++u) total = add(total);
      }
      BlockWork work{};
      const int channel = first_tile + round0 + tile;
      while (work.part + 1 < p.joined && channel >= p.parts[work.part + 1].block_begin) ++work.part;
      const MatrixRef& m = p.parts[work.part];
      work.first_channel = (channel - m.block_begin) * kTileN;
      if (work.first_channel + in % kTileN < m.n)
        store_out(p, work, blockIdx.z, in / kTileN, in % kTileN, total);
    }
    buffer ^= 1;
  }
}

}  // namespace firesteel::cuda
