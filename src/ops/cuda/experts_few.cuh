// The experts of few rows, EXL3: the gate and up products with the activation, and the down product, the
// shared expert's too, with the combine, a launch each (experts_begin.cu goes before). The arithmetic is that
// of matmul.cuh: units of kUnit columns from zero, added in ascending order; experts added in ascending order
// within a slice, the shared expert last.
//
// A block owns 128 channels of one item (an expert and up to 8 of its rows; for down also up to 8 rows of the
// shared expert), a warp 16 of them. Blocks whose sums meet count themselves; the last of them adds, always
// in the same order, so it does not matter which that is. The code is kept short: at one row a block runs it
// once, and is bound by fetching it otherwise. What does not depend on the kernel before is read before
// waiting for it.
#pragma once

#include "ops/cuda/layer_params.h"
#include "ops/cuda/matmul_common.cuh"
#include "ops/cuda/meeting.cuh"

namespace firesteel::cuda {

/// Walks K for one tile; weights come two groups ahead.
template <typename Weights>
struct TileWalk {
  Weights ring[2];
  const uint8_t* at;  // the next group to load

  __device__ __forceinline__ void start(const uint8_t* matrix, int tile, int k, int first_column) {
    const uint8_t* data =
        matrix + (static_cast<int64_t>(tile) * (k / kGroupK) + first_column / kGroupK) * Weights::kGroupBytes;
    ring[0].load(data);
    ring[1].load(data + Weights::kGroupBytes);
    at = data + 2 * Weights::kGroupBytes;
  }
  /// Sums of one unit from zero: `groups` groups (an even number), with `more` behind them. x: the lane's row
  /// at its first column of the unit.
  __device__ __forceinline__ void unit(const Bits16* x, int groups, bool more, float (&acc)[1][4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) acc[0][r] = 0.0f;
#pragma unroll 1
    for (int left = groups; left > 0; left -= 2) {
      const bool ahead = left > 2 || more;
#pragma unroll
      for (int d = 0; d < 2; ++d) {
        const uint4 b0[1] = {load_x(x, 64 * d)}, b1[1] = {load_x(x, 64 * d + 32)};
        ring[d].ready();
        multiply_half<0>(ring[d], b0, acc);
        multiply_half<1>(ring[d], b1, acc);
        if (ahead) ring[d].load(at + d * Weights::kGroupBytes);
      }
      at += 2 * Weights::kGroupBytes;
      x += 2 * kGroupK;
    }
  }
};

__device__ __forceinline__ void add4(float (&v)[4], const float4& s) {
  v[0] += s.x;
  v[1] += s.y;
  v[2] += s.z;
  v[3] += s.w;
}

/// The item of a block, into shared memory, by one warp: at one row an expert as the row chose them, of which
/// no items are made.
__device__ __forceinline__ void fetch_item(const ExpertFewParams& p, int index, const MatrixRef* refs,
                                           FewItem& item) {
  const int lane = threadIdx.x & 31;
  if (refs == nullptr) {
    if (lane < static_cast<int>(sizeof(FewItem) / 16))
      reinterpret_cast<uint4*>(&item)[lane] = __ldcg(reinterpret_cast<const uint4*>(p.items + index) + lane);
    return;
  }
  // As FewItem begins: data of gate, up and down, svh of gate and up, suh and svh of down.
  if (lane < 7) {
    const MatrixRef& ref = refs[lane < 3 ? lane : min(lane - 3, 2)];
    reinterpret_cast<const void**>(&item)[lane] = lane < 3    ? static_cast<const void*>(ref.data)
                                                  : lane == 5 ? static_cast<const void*>(ref.suh)
                                                              : static_cast<const void*>(ref.svh);
  } else if (lane < 15) {
    item.pair[lane - 7] = index;
  } else if (lane < 23) {
    item.row[lane - 15] = 0;
  } else if (lane == 23) {
    item.count = 1;
  }
}

/// The units of a block, each stored apart: register r is row 2·(lane%4) + r%2, channel lane/4 + 8·(r/2).
template <typename Weights>
__device__ __forceinline__ void store_units(TileWalk<Weights>& walk, const Bits16* x, int k, int unit0,
                                            int units, float* y0, float* y1, bool row0, bool row1,
                                            int64_t stride) {
#pragma unroll 1
  for (int u = 0; u < units; ++u) {
    float acc[1][4];
    walk.unit(x, min(kUnit, k - (unit0 + u) * kUnit) / kGroupK, u + 1 < units, acc);
    if (row0) {
      y0[0] = acc[0][0];
      y0[8] = acc[0][2];
    }
    if (row1) {
      y1[0] = acc[0][1];
      y1[8] = acc[0][3];
    }
    x += kUnit;
    y0 += stride;
    y1 += stride;
  }
}

/// Grid: (gate blocks and up blocks, groups of units, items). Sums of a unit: [unit][pair][2·width].
template <typename Weights>
__device__ __forceinline__ void expert_gate_up(const ExpertFewParams& p) {
  __shared__ FewItem item;
  __shared__ int expert;
  __shared__ bool last;
  __shared__ float up_of[4][kBlockN];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int blocks = gridDim.x >> 1, index = blockIdx.z;
  const bool up = blockIdx.x >= blocks;
  const int block = blockIdx.x - (up ? blocks : 0), tile = block * 8 + warp;
  const int unit0 = blockIdx.y * p.units_a_block, units = min(p.units - unit0, p.units_a_block);
  const int column = unit0 * kUnit + 8 * (lane & 3), row0 = 2 * (lane & 3);
  const int channel = (up ? p.width : 0) + tile * kTileN + (lane >> 2);
  TileWalk<Weights> walk;
  const MatrixRef* refs = nullptr;
  if (p.rows == 1) {
    if (threadIdx.x == 0) expert = p.picks != nullptr ? wait_for_pick(p.picks + index) : p.idx[index];
    __syncthreads();
    refs = p.table + 3 * expert;
    walk.start(refs[up ? 1 : 0].data, tile, p.k, unit0 * kUnit);
  }
  begin_kernel<false>();
  end_kernel();
  if (warp == 0) fetch_item(p, index, refs, item);
  __syncthreads();
  const int count = item.count;
  if (count == 0) return;
  const int x_row = p.by_pair ? item.pair[lane >> 2] + (up ? p.pairs : 0) : item.row[lane >> 2];
  const int pair0 = item.pair[row0], pair1 = item.pair[row0 + 1];
  if (p.rows > 1) walk.start(up ? item.up : item.gate, tile, p.k, unit0 * kUnit);
  // What the last block needs: 128 scales of each.
  if (threadIdx.x < 6) {
    const Bits16* scales = threadIdx.x < 2 ? item.svh_gate : threadIdx.x < 4 ? item.svh_up : item.suh_down;
    prefetch_l2(reinterpret_cast<const uint8_t*>(scales + block * 128 + 64 * (threadIdx.x & 1)));
  }
  float* sums = p.sums + unit0 * p.unit_stride + channel;
  store_units(walk, p.x + static_cast<int64_t>(x_row) * p.k + column, p.k, unit0, units,
              sums + static_cast<int64_t>(pair0) * 2 * p.width,
              sums + static_cast<int64_t>(pair1) * 2 * p.width, row0 < count, row0 + 1 < count,
              p.unit_stride);
  __syncthreads();
  if (threadIdx.x == 0) last = arrives_last(p.counters + index * blocks + block, 2 * gridDim.y);
  __syncthreads();
  if (!last) return;
  see_others();

  // The activation of these 128 channels, two warps a row: one has the gate, the other up.
  const int c = block * 128 + 4 * lane, side = warp & 1;
#pragma unroll 1
  for (int first = 0; first < count; first += 4) {
    const int r = first + (warp >> 1), pair = item.pair[min(r, 7)];
    float v[4] = {};
    if (r < count) {
      const float* from = p.sums + static_cast<int64_t>(pair) * 2 * p.width + side * p.width + c;
#pragma unroll 8
      for (int u = 0; u < p.units; ++u) add4(v, load_others(from + u * p.unit_stride));
      hadamard128(v);
      const Bits16* svh = side == 0 ? item.svh_gate : item.svh_up;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] = from_bf16(to_bf16(v[i] * from_f16(svh[c + i])));
        if (side == 1) up_of[warp >> 1][4 * lane + i] = v[i];
      }
    }
    __syncthreads();
    if (r < count && side == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] = from_bf16(to_bf16(expert_glu(v[i], up_of[warp >> 1][4 * lane + i], p.limit)));
        v[i] *= from_f16(item.suh_down[c + i]);
      }
      hadamard128(v);
      Bits16* y = p.act + static_cast<int64_t>(pair) * p.width;
#pragma unroll
      for (int i = 0; i < 4; ++i) y[exl3_slot(c + i)] = to_f16(v[i]);
      __syncwarp();
      if (lane == 0) arrives(p.ready + kReadyPitch * index);
    }
    __syncthreads();
  }
}

/// The units of a slice, added.
template <typename Weights>
__device__ __forceinline__ void add_units(TileWalk<Weights>& walk, const Bits16* x, int begin, int end,
                                          float (&total)[4]) {
#pragma unroll 1
  for (int column = begin; column < end; column += kUnit) {
    float acc[1][4];
    walk.unit(x + column, min(kUnit, end - column) / kGroupK, column + kUnit < end, acc);
#pragma unroll
    for (int r = 0; r < 4; ++r)
      total[r] = Weights::kScaled ? fmaf(Weights::kFactor, acc[0][r], total[r]) : total[r] + acc[0][r];
  }
}

/// The shared expert's part of expert_down: rows from `row` on. Its inputs were there before the gate and up
/// kernel let this one in, so it does not wait for that.
template <typename Weights>
__device__ __forceinline__ void shared_units(const ExpertFewParams& p, int tile, int row, int begin, int end,
                                             float (&total)[4]) {
  const int lane = threadIdx.x & 31;
  TileWalk<Weights> walk;
  if (begin < end) walk.start(p.shared_down, tile, p.width, begin);
  end_kernel();
  add_units(
      walk,
      p.shared_act + static_cast<int64_t>(min(row + (lane >> 2), p.rows - 1)) * p.width + 8 * (lane & 3),
      begin, end, total);
}

/// Grid: (column blocks, slices, items of the shared expert and of the others). Slices: [slice][pair, or row
/// of the shared expert][hidden]. A block waits for the activations of its item, not for all of the kernel
/// before: that one's blocks are all running or have ended when it lets this one in.
template <typename Weights>
__device__ __forceinline__ void expert_down(const ExpertFewParams& p) {
  __shared__ float tile_sums[8][kBlockN + 4];
  __shared__ FewItem item;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int block = blockIdx.x, slice = blockIdx.y, tile = block * 8 + warp;
  const bool dense = blockIdx.z < p.shared_items;
  const int begin = p.slice_begin[slice], end = p.slice_end[slice];
  const int shared_row = 8 * blockIdx.z, index = blockIdx.z - p.shared_items;
  int count;
  float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  if (dense) {
    count = min(8, p.rows - shared_row);
    if (p.shared_q4) {
      shared_units<Q4Weights>(p, tile, shared_row, begin, end, total);
    } else {
      shared_units<Bf16Weights>(p, tile, shared_row, begin, end, total);
    }
  } else {
    // The gate and up kernel has let this one in only after the items, or the row's choice, were there.
    const MatrixRef* refs = nullptr;
    if (p.rows == 1)
      refs = p.table + 3 * (p.picks != nullptr ? wait_for_pick(p.picks + index) : __ldcg(p.idx + index));
    const uint8_t* data =
        refs != nullptr ? refs[2].data
                        : reinterpret_cast<const uint8_t*>(
                              __ldcg(reinterpret_cast<const unsigned long long*>(&p.items[index].down)));
    TileWalk<Weights> walk;
    if (begin < end && (refs != nullptr || __ldcg(&p.items[index].count) > 0))
      walk.start(data, tile, p.width, begin);
    if (warp == 0) fetch_item(p, index, refs, item);
    if (threadIdx.x == 0 && p.rows == 1 && p.picks != nullptr)
      wait_for(p.picks + kMostPicks, 1);  // the weights
    __syncthreads();
    end_kernel();  // from here on the next router may clear its picks
    count = item.count;
    if (count == 0) return;
    if (threadIdx.x == 0) wait_for(p.ready + kReadyPitch * index, count * (p.width / kBlockN));
    if (warp == 1 && lane < 2)
      prefetch_l2(reinterpret_cast<const uint8_t*>(item.svh_down) + 256 * block + 128 * lane);
    __syncthreads();
    add_units(walk, p.act + static_cast<int64_t>(item.pair[lane >> 2]) * p.width + 8 * (lane & 3), begin, end,
              total);
  }
#pragma unroll
  for (int r = 0; r < 4; ++r)
    tile_sums[2 * (lane & 3) + (r & 1)][warp * kTileN + (lane >> 2) + 8 * (r >> 1)] = total[r];
  __syncthreads();
  if (warp >= count) return;
  const int row = dense ? shared_row + warp : item.row[warp], c = block * 128 + 4 * lane;
  float* y = dense ? p.shared + slice * p.shared_stride + static_cast<int64_t>(row) * p.hidden
                   : p.slices + slice * p.slice_stride + static_cast<int64_t>(item.pair[warp]) * p.hidden;
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = tile_sums[warp][4 * lane + i];
  if (!dense) {
    hadamard128(v);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] *= from_f16(item.svh_down[c + i]);
  }
  *reinterpret_cast<float4*>(y + c) = make_float4(v[0], v[1], v[2], v[3]);
  __syncwarp();
  const int slices = gridDim.y, arrivals = (p.top_k + (p.shared_items > 0 ? 1 : 0)) * slices;
  int last = 0;
  if (lane == 0) last = arrives_last(p.row_counters + row * gridDim.x + block, arrivals);
  if (!__shfl_sync(0xffffffffu, last, 0)) return;
  see_others();
  // The last of the row's blocks of these columns: experts in ascending order per slice, then the shared
  // expert, then the slices.
  float s[4][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= slices) continue;
    const float* from = p.slices + i * p.slice_stride + static_cast<int64_t>(row) * p.top_k * p.hidden + c;
#pragma unroll 8
    for (int j = 0; j < p.top_k; ++j) {
      const float4 part = load_others(from + static_cast<int64_t>(j) * p.hidden);
      const float weight = p.weight[row * p.top_k + j];
      s[i][0] = fmaf(weight, part.x, s[i][0]);
      s[i][1] = fmaf(weight, part.y, s[i][1]);
      s[i][2] = fmaf(weight, part.z, s[i][2]);
      s[i][3] = fmaf(weight, part.w, s[i][3]);
    }
    if (p.shared != nullptr)
      add4(s[i], load_others(p.shared + i * p.shared_stride + static_cast<int64_t>(row) * p.hidden + c));
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float low = slices > 1 ? s[0][e] + s[1][e] : s[0][e];
    p.part[static_cast<int64_t>(row) * p.hidden + c + e] = slices > 2 ? low + (s[2][e] + s[3][e]) : low;
  }
}

}  // namespace firesteel::cuda

// Four blocks a multiprocessor: at most 64 registers.
#define FS_EXPERT_KERNELS(NAME, ...)                                             \
  extern "C" __global__ void __launch_bounds__(256, 4)                           \
      experts_exl3_##NAME##_gate_up(const __grid_constant__ ExpertFewParams p) { \
    expert_gate_up<__VA_ARGS__>(p);                                              \
  }                                                                              \
  extern "C" __global__ void __launch_bounds__(256, 4)                           \
      experts_exl3_##NAME##_down(const __grid_constant__ ExpertFewParams p) {    \
    expert_down<__VA_ARGS__>(p);                                                 \
  }
