// y = W x for every weight format, one arithmetic for one row and for a prompt.
//
// W is the A operand (16 output channels × 16 columns), x the B operand (8 rows) of mma.m16n8k16. A slice of
// K is cut into units of kUnit columns; each unit is one chain of products from zero, units are added in
// ascending order. The two kernels differ in who computes a unit, never in that order:
//
// matmul_few, at most 8·NT rows: the warps of a block take the units of its channels in turn, the sums meet
// in shared memory; or every block takes one unit and stores its sums for whoever adds them (unit_span).
//
// matmul_many, tiles of 64 rows: a warp owns 16 channels over all of K; rows are staged by asynchronous
// copies.
//
// Formats differ in the Weights type: how a packed group (16 channels × 64 columns) is read and decoded.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/weights.cuh"

namespace firesteel::cuda {

__device__ __forceinline__ int group_count(int k) { return (k + kGroupK - 1) / kGroupK; }

/// 8 columns of a row of x for the B operand. Rows are 16-byte aligned and padded to whole groups with zeros.
__device__ __forceinline__ uint4 load_x(const Bits16* row, int column) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(row + column));
  return v;
}

__device__ __forceinline__ void store_y(const MatmulParams& p, int64_t at, float v) {
  if (p.out_f32) {
    static_cast<float*>(p.y)[at] = v;
  } else {
    static_cast<Bits16*>(p.y)[at] = to_bf16(v);
  }
}

/// The block's matrix, channels and rows.
struct BlockWork {
  const MatrixRef* matrix;
  int first_channel;    // multiple of 16·tiles
  int first_row, rows;  // rows of y
  int part;
  bool valid;
};

template <int kRows>
__device__ __forceinline__ BlockWork block_work(const MatmulParams& p, int channels) {
  const int column_block = (p.rows_inner ? blockIdx.y : blockIdx.x) + p.block_offset;
  const int row_block = p.rows_inner ? blockIdx.x : blockIdx.y;
  int part = 0;
  while (part + 1 < p.joined && column_block >= p.parts[part + 1].block_begin) ++part;
  BlockWork w;
  w.part = part;
  w.valid = true;
  w.first_channel = (column_block - p.parts[part].block_begin) * channels;
  if (p.items != nullptr) {
    if (row_block >= *p.item_count) return BlockWork{nullptr, 0, 0, 0, 0, false};
    const ExpertItem item = p.items[row_block];
    w.matrix = p.table + item.expert * p.table_stride + part;
    w.first_row = item.first;
    w.rows = item.count;
    w.valid = w.matrix->kind == p.kind;
  } else {
    w.matrix = &p.parts[part];
    w.first_row = row_block * kRows;
    w.rows = min(kRows, p.rows - w.first_row);
  }
  return w;
}

/// The row of x that feeds row `r` of y. Rows beyond the last repeat it: their columns of the product are not
/// stored.
__device__ __forceinline__ const Bits16* x_row(const MatmulParams& p, const BlockWork& w, int r) {
  int row = w.first_row + min(r, w.rows - 1);
  if (p.pair_row != nullptr) row = p.pair_row[row];
  return p.x + (static_cast<int64_t>(w.part) * p.x_part_stride + row) * p.ldx;
}

/// Applies the output Hadamard and svh to 128 channels of `rows` rows in shared memory (row pitch kPitch
/// floats) and stores them; one warp a row.
template <int kPitch>
__device__ __forceinline__ void finish_exl3(const MatmulParams& p, const BlockWork& w, const float* tile,
                                            int slice, int warps) {
  const int lane = threadIdx.x & 31;
  const MatrixRef& m = *w.matrix;
  for (int r = threadIdx.x >> 5; r < w.rows; r += warps) {
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = tile[r * kPitch + 4 * lane + i];
    hadamard128(v);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int c = w.first_channel + 4 * lane + i;
      if (c < m.n) {
        store_y(
            p,
            slice * p.slice_stride + (w.first_row + r) * p.ldy + p.parts[w.part].column - p.column_shift + c,
            v[i] * from_f16(m.svh[c]));
      }
    }
  }
}

/// Half kHalfGroup of a group: 32 columns, two k-steps, whose x values lie in one 16-byte piece a row.
template <int kHalfGroup, typename Weights, int NT>
__device__ __forceinline__ void multiply_half(const Weights& a, const uint4 (&b)[NT], float (&acc)[NT][4]) {
  uint32_t f[4];
  a.template fragment<2 * kHalfGroup>(f);
#pragma unroll
  for (int t = 0; t < NT; ++t) mma<Weights::kHalf>(acc[t], f, b[t].x, b[t].y);
  a.template fragment<2 * kHalfGroup + 1>(f);
#pragma unroll
  for (int t = 0; t < NT; ++t) mma<Weights::kHalf>(acc[t], f, b[t].z, b[t].w);
}

/// A block of kWarps warps owns p.split · kTiles tiles of channels; warp w takes the tiles of part w % split
/// and every (kWarps / split)-th unit, its weights and inputs kDepth groups ahead. Shared memory: kWarps ·
/// kTiles · NT fragments (fp32), then the tile of finish_exl3 in their place.
template <typename Weights, int kTiles, int kMaxSplit, int kDepth, int NT, int kWarps>
__device__ __forceinline__ void matmul_few(const MatmulParams& p) {
  extern __shared__ float4 shared4[];
  float* shared = reinterpret_cast<float*>(shared4);
  constexpr int kThreads = kWarps * 32, kUnitColumns = Weights::kUnitColumns;
  constexpr int kPerThread = (kMaxSplit * kTiles * NT * 128 + kThreads - 1) / kThreads;
  const int split = p.split, ways = kWarps / split, channels = split * kTiles * kTileN;
  const int elements = split * kTiles * NT * 128;  // of a unit
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int way = warp / split, part0 = warp % split * kTiles;  // first tile of this warp

  BlockWork work;
  const MatrixRef* m = nullptr;
  int k_begin = 0, k_end = 0, groups = 0, tiles = 0;
  Weights ring[kDepth][kTiles];
  const auto place = [&] {
    work = block_work<8 * NT>(p, channels);
    if (!work.valid) return false;
    m = work.matrix;
    const int slice =
        p.unit_span > 0 ? static_cast<int>(blockIdx.z) / p.unit_span : static_cast<int>(blockIdx.z);
    k_begin = p.slices ? p.slice_begin[slice] : 0;
    k_end = p.slices ? p.slice_end[slice] : m->k;
    if (p.unit_span > 0) {
      k_begin = min(k_end, k_begin + static_cast<int>(blockIdx.z) % p.unit_span * kUnitColumns);
      k_end = min(k_end, k_begin + kUnitColumns);
    }
    groups = group_count(m->k);
    // Tiles beyond the last channel read the last one again (it may lie before this warp's first); nothing of
    // them is stored.
    tiles = min(kTiles, (m->n - work.first_channel + kTileN - 1) / kTileN - part0);
    return true;
  };
  const auto load_weights = [&](Weights(&w)[kTiles], int group) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int tile = work.first_channel / kTileN + part0 + min(i, tiles - 1);
      w[i].load(m->data + (static_cast<int64_t>(tile) * groups + group) * Weights::kGroupBytes);
    }
  };
  // The groups of a unit: the first, and how many.
  const auto unit_groups = [&](int unit, int& group0) {
    const int column0 = k_begin + unit * kUnitColumns;
    group0 = column0 / kGroupK;
    return (max(0, min(kUnitColumns, k_end - column0)) + kGroupK - 1) / kGroupK;
  };
  const auto fill = [&](int unit) {
    int group0;
    const int n_groups = unit_groups(unit, group0);
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
      if (d < n_groups) load_weights(ring[d], group0 + d);
  };
  // Without experts the launch alone says which weights: they come while earlier kernels end.
  if (p.items == nullptr) {
    place();
    fill(way);
    begin_kernel();
  } else {
    begin_kernel();
    if (!place()) return;
    fill(way);
  }
  const int units = (k_end - k_begin + kUnitColumns - 1) / kUnitColumns;

  const Bits16* rows[NT];
#pragma unroll
  for (int t = 0; t < NT; ++t) rows[t] = x_row(p, work, 8 * t + (lane >> 2));

  float total[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) total[i] = 0.0f;

  for (int first = 0; first < units; first += ways) {
    const int unit = first + way;
    if (unit < units) {
      int group0;
      const int n_groups = unit_groups(unit, group0);
      if (first > 0) fill(unit);
      uint4 b0[kDepth][NT], b1[kDepth][NT];
      const auto load_inputs = [&](int d, int group) {
        const int column = group * kGroupK + 8 * (lane & 3);
#pragma unroll
        for (int t = 0; t < NT; ++t) {
          b0[d][t] = load_x(rows[t], column);
          b1[d][t] = load_x(rows[t], column + 32);
        }
      };
#pragma unroll
      for (int d = 0; d < kDepth; ++d)
        if (d < n_groups) load_inputs(d, group0 + d);
      float acc[kTiles][NT][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int t = 0; t < NT; ++t)
#pragma unroll
          for (int r = 0; r < 4; ++r) acc[i][t][r] = 0.0f;
      for (int g0 = 0; g0 < n_groups; g0 += kDepth) {
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
          const int g = g0 + d;
          if (g < n_groups) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
              ring[d][i].ready();
              multiply_half<0>(ring[d][i], b0[d], acc[i]);
              multiply_half<1>(ring[d][i], b1[d], acc[i]);
            }
            if (g + kDepth < n_groups) {
              load_weights(ring[d], group0 + g + kDepth);
              load_inputs(d, group0 + g + kDepth);
            }
          }
        }
      }
      if constexpr (Weights::kExl3) {
        if (p.raw) {  // one unit a block: its sums go out as they are
          float* y = static_cast<float*>(p.y) + blockIdx.z * p.slice_stride + p.parts[work.part].column -
                     p.column_shift + work.first_channel + part0 * kTileN + (lane >> 2);
#pragma unroll
          for (int i = 0; i < kTiles; ++i)
#pragma unroll
            for (int t = 0; t < NT; ++t)
#pragma unroll
              for (int r = 0; r < 4; ++r) {
                const int row = 8 * t + 2 * (lane & 3) + (r & 1);
                if (row < work.rows)
                  y[(work.first_row + row) * p.ldy + i * kTileN + 8 * (r >> 1)] = acc[i][t][r];
              }
          return;
        }
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int t = 0; t < NT; ++t)
          shared4[((way * split * kTiles + part0 + i) * NT + t) * 32 + lane] =
              make_float4(acc[i][t][0], acc[i][t][1], acc[i][t][2], acc[i][t][3]);
    }
    __syncthreads();
    const int here = min(ways, units - first);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int e = i * kThreads + threadIdx.x;
      if (e < elements) {
        for (int u = 0; u < here; ++u) {
          float scale = 1.0f;
          if constexpr (Weights::kScaled) {
            const int channel = work.first_channel + e / (NT * 128) * kTileN;
            const int k_blocks = (m->k + 127) / 128;
            scale =
                m->scale[min(channel, m->n - 1) / 128 * k_blocks + (k_begin + (first + u) * kFp8Unit) / 128];
          }
          total[i] = Weights::kScaled ? fmaf(scale, shared[u * elements + e], total[i])
                                      : total[i] + shared[u * elements + e];
        }
      }
    }
    __syncthreads();
  }

  const bool finish = Weights::kExl3 && !p.raw;
  // Element e: fragment e/128, lane (e/4)%32, register e%4 -> channel and row.
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int e = i * kThreads + threadIdx.x;
    if (e >= elements) continue;
    const int fragment = e / 128, l = (e / 4) & 31, r = e & 3;
    const int channel = fragment / NT * kTileN + (l >> 2) + 8 * (r >> 1);
    const int row = fragment % NT * 8 + 2 * (l & 3) + (r & 1);
    if (finish) {
      shared[row * (kBlockN + 4) + channel] = total[i];
    } else if (row < work.rows && work.first_channel + channel < m->n) {
      store_y(p,
              blockIdx.z * p.slice_stride + (work.first_row + row) * p.ldy + p.parts[work.part].column -
                  p.column_shift + work.first_channel + channel,
              total[i]);
    }
  }
  if (finish) {
    __syncthreads();
    finish_exl3<kBlockN + 4>(p, work, shared, blockIdx.z, kWarps);
  }
}

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
      float scale = 1.0f;
      if constexpr (Weights::kScaled) {
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
          store_y(p,
                  slice * p.slice_stride + (work.first_row + row) * p.ldy + p.parts[work.part].column -
                      p.column_shift + channel,
                  total[t][r]);
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

  constexpr int kRowPieces = kRowBytes / 16 / kThreads, kWeightPieces = kWeightBytes / 16 / kThreads;
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
        float scale = 1.0f;
        if constexpr (Weights::kScaled) {
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
          store_y(p,
                  slice * p.slice_stride + (work.first_row + row) * p.ldy + p.parts[work.part].column -
                      p.column_shift + channel,
                  total[i][t][r]);
        }
      }
}

}  // namespace firesteel::cuda

// Two blocks a multiprocessor: at most 128 registers.
#define FS_KERNEL(NAME) \
  extern "C" __global__ void __launch_bounds__(256, 2) NAME(const __grid_constant__ MatmulParams p)
// One block a multiprocessor.
#define FS_KERNEL_WIDE(NAME) \
  extern "C" __global__ void __launch_bounds__(256, 1) NAME(const __grid_constant__ MatmulParams p)
// Three blocks a multiprocessor.
#define FS_KERNEL_NARROW(NAME) \
  extern "C" __global__ void __launch_bounds__(256, 3) NAME(const __grid_constant__ MatmulParams p)
