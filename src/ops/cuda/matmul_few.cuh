// The product kernel for few rows; see matmul.cuh for the arithmetic it shares with the prompt kernels.
#pragma once

#include "ops/cuda/matmul_common.cuh"

namespace firesteel::cuda {

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
  const auto units_of = [](int begin, int end) { return (end - begin + kUnitColumns - 1) / kUnitColumns; };
  // The groups of a unit: the first, and how many.
  const auto unit_groups = [&](int unit, int& group0) {
    int begin = k_begin, end = k_end;
    if (p.fold) {
      for (int s = 0; s < p.slices; ++s) {
        begin = p.slice_begin[s];
        end = p.slice_end[s];
        if (unit < units_of(begin, end)) break;
        unit -= units_of(begin, end);
      }
    }
    const int column0 = begin + unit * kUnitColumns;
    group0 = column0 / kGroupK;
    return (max(0, min(kUnitColumns, end - column0)) + kGroupK - 1) / kGroupK;
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
  int units = units_of(k_begin, k_end);
  if (p.fold) {
    units = 0;
    for (int s = 0; s < p.slices; ++s) units += units_of(p.slice_begin[s], p.slice_end[s]);
  }

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
    if constexpr (!Weights::kBlockScales && !Weights::kExl3) {
      if (p.fold) {  // all units at once; the slices as combine adds them
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
          const int e = i * kThreads + threadIdx.x;
          if (e >= elements) continue;
          float of[4] = {};
          const float* part = shared + e;
#pragma unroll
          for (int s = 0; s < 4; ++s) {
            if (s >= p.slices) break;
            for (int u = units_of(p.slice_begin[s], p.slice_end[s]); u > 0; --u) {
              of[s] = Weights::kScaled ? fmaf(Weights::kFactor, *part, of[s]) : of[s] + *part;
              part += elements;
            }
          }
          const float low = p.slices > 1 ? of[0] + of[1] : of[0];
          total[i] = p.slices > 2 ? low + (of[2] + of[3]) : low;
        }
        break;
      }
    }
    const int here = min(ways, units - first);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int e = i * kThreads + threadIdx.x;
      if (e < elements) {
        for (int u = 0; u < here; ++u) {
          float scale = Weights::kFactor;
          if constexpr (Weights::kBlockScales) {
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
      store_out(p, work, blockIdx.z, row, channel, total[i]);
    }
  }
  if (finish) {
    __syncthreads();
    finish_exl3<kBlockN + 4>(p, work, shared, blockIdx.z, kWarps);
  }
}

}  // namespace firesteel::cuda
