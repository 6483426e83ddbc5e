// The routed experts of few rows, EXL3: the gate and up products with the activation, the down product with the
// combine, a launch each. The arithmetic is that of matmul.cuh: units of kUnit columns from zero, added in
// ascending order; experts added in ascending order within a slice.
//
// A block owns 128 channels of one item (an expert and up to 8 of its rows), a warp 16 of them. Blocks whose sums
// meet count themselves; the last of them adds, always in the same order, so it does not matter which that is.
// The code is kept short: at one row a block runs it once, and is bound by fetching it otherwise.
#pragma once

#include "ops/cuda/matmul_common.cuh"

namespace firesteel::cuda {

/// Sums of `groups` groups (an even number) of one tile; weights come two groups ahead, `more` of them lie behind.
template <typename Weights>
struct TileWalk {
  Weights ring[2];
  const uint8_t* at;  // the next group to load

  __device__ __forceinline__ void start(const uint8_t* data) {
    ring[0].load(data);
    ring[1].load(data + Weights::kGroupBytes);
    at = data + 2 * Weights::kGroupBytes;
  }
  /// x: the lane's row at its first column of the first group.
  __device__ __forceinline__ void walk(const Bits16* x, int groups, bool more, float (&acc)[1][4]) {
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

/// Counts a block that has stored its sums; true on all threads of the last of `blocks`. That block sees the sums
/// of all of them.
__device__ __forceinline__ bool last_block(int32_t* counter, int blocks) {
  __shared__ int last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(counter, 1) == blocks - 1;
  __syncthreads();
  if (!last) return false;
  __threadfence();
  return true;
}

__device__ __forceinline__ float4 load_shared_sum(const float* p) {
  return __ldcg(reinterpret_cast<const float4*>(p));
}

/// Grid: (gate blocks and up blocks, items, groups of units). Sums of a unit: [unit][pair][2·width].
template <typename Weights>
__device__ __forceinline__ void expert_gate_up(const ExpertFewParams& p) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int blocks = gridDim.x >> 1;
  const bool up = blockIdx.x >= blocks;
  const int block = blockIdx.x - (up ? blocks : 0);
  begin_kernel();
  const FewItem& item = p.items[blockIdx.y];
  const int count = item.count;
  const uint8_t* data = up ? item.up : item.gate;
  const int row = lane >> 2;
  const int x_row = p.by_pair ? item.pair[row] + (up ? p.pairs : 0) : item.row[row];
  if (count == 0) return;
  const int groups = p.k / kGroupK;
  const int unit0 = blockIdx.z * p.units_a_block, units = min(p.units - unit0, p.units_a_block);
  const int tile = block * 8 + warp;
  TileWalk<Weights> walk;
  walk.start(data + (static_cast<int64_t>(tile) * groups + unit0 * (kUnit / kGroupK)) * Weights::kGroupBytes);
  const Bits16* x = p.x + static_cast<int64_t>(x_row) * p.k + unit0 * kUnit + 8 * (lane & 3);
  // Register r: row 2·(lane%4) + r%2, channel lane/4 + 8·(r/2).
  const int row0 = 2 * (lane & 3);
  const int pair0 = item.pair[row0], pair1 = item.pair[row0 + 1];
  float* sums = p.sums + unit0 * p.unit_stride + (up ? p.width : 0) + tile * kTileN + (lane >> 2);
  float* y0 = sums + static_cast<int64_t>(pair0) * 2 * p.width;
  float* y1 = sums + static_cast<int64_t>(pair1) * 2 * p.width;
#pragma unroll 1
  for (int u = 0; u < units; ++u) {
    float acc[1][4];
    const int column = (unit0 + u) * kUnit;
    walk.walk(x, min(kUnit, p.k - column) / kGroupK, u + 1 < units, acc);
    if (row0 < count) {
      y0[0] = acc[0][0];
      y0[8] = acc[0][2];
    }
    if (row0 + 1 < count) {
      y1[0] = acc[0][1];
      y1[8] = acc[0][3];
    }
    x += kUnit;
    y0 += p.unit_stride;
    y1 += p.unit_stride;
  }
  if (!last_block(p.counters + blockIdx.y * blocks + block, 2 * gridDim.z)) return;

  // The activation of these 128 channels, a warp a pair.
  if (warp >= count) return;
  const int pair = item.pair[warp], c = block * 128 + 4 * lane;
  const float* from = p.sums + static_cast<int64_t>(pair) * 2 * p.width + c;
  float v[2][4] = {};
#pragma unroll 4
  for (int u = 0; u < p.units; ++u) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const float4 s = load_shared_sum(from + u * p.unit_stride + part * p.width);
      v[part][0] += s.x;
      v[part][1] += s.y;
      v[part][2] += s.z;
      v[part][3] += s.w;
    }
  }
  hadamard128(v[0]);
  hadamard128(v[1]);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float g = at_most(from_bf16(to_bf16(v[0][i] * from_f16(item.svh_gate[c + i]))), p.limit);
    const float u = from_bf16(to_bf16(v[1][i] * from_f16(item.svh_up[c + i])));
    v[0][i] = from_bf16(to_bf16(silu(g) * at_least(at_most(u, p.limit), -p.limit))) *
              from_f16(item.suh_down[c + i]);
  }
  hadamard128(v[0]);
  Bits16* y = p.act + static_cast<int64_t>(pair) * p.width;
#pragma unroll
  for (int i = 0; i < 4; ++i) y[exl3_slot(c + i)] = to_f16(v[0][i]);
}

/// Grid: (column blocks, items, slices). Slices: [slice][pair][hidden].
template <typename Weights>
__device__ __forceinline__ void expert_down(const ExpertFewParams& p) {
  __shared__ float tile_sums[8][kBlockN + 4];
  __shared__ int finished[8];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int block = blockIdx.x, slice = blockIdx.z;
  begin_kernel();
  const FewItem& item = p.items[blockIdx.y];
  const int count = item.count, pair_in = item.pair[lane >> 2];
  const uint8_t* data = item.down;
  if (count == 0) return;
  const int begin = p.slice_begin[slice], end = p.slice_end[slice];
  float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  if (begin < end) {
    TileWalk<Weights> walk;
    walk.start(data + (static_cast<int64_t>(block * 8 + warp) * (p.width / kGroupK) + begin / kGroupK) *
                          Weights::kGroupBytes);
    const Bits16* x = p.act + static_cast<int64_t>(pair_in) * p.width + begin + 8 * (lane & 3);
#pragma unroll 1
    for (int column = begin; column < end; column += kUnit) {
      float acc[1][4];
      walk.walk(x, min(kUnit, end - column) / kGroupK, column + kUnit < end, acc);
#pragma unroll
      for (int r = 0; r < 4; ++r) total[r] += acc[0][r];
      x += kUnit;
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r)
    tile_sums[2 * (lane & 3) + (r & 1)][warp * kTileN + (lane >> 2) + 8 * (r >> 1)] = total[r];
  __syncthreads();
  const int pair = item.pair[warp], row = item.row[warp], c = block * 128 + 4 * lane;
  if (warp < count) {
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = tile_sums[warp][4 * lane + i];
    hadamard128(v);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] *= from_f16(item.svh_down[c + i]);
    *reinterpret_cast<float4*>(p.slices + slice * p.slice_stride + static_cast<int64_t>(pair) * p.hidden + c) =
        make_float4(v[0], v[1], v[2], v[3]);
    __threadfence();
    __syncwarp();
    if (lane == 0)
      finished[warp] = atomicAdd(p.row_counters + row * gridDim.x + block, 1) == p.top_k * gridDim.z - 1;
    __syncwarp();
    if (!finished[warp]) return;
    __threadfence();
    // The last of the row's blocks of these columns: experts in ascending order per slice, then the shared
    // expert, then the slices.
    float s[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[i][e] = 0.0f;
      if (i >= gridDim.z) continue;
      const float* from = p.slices + i * p.slice_stride + static_cast<int64_t>(row) * p.top_k * p.hidden + c;
#pragma unroll 4
      for (int j = 0; j < p.top_k; ++j) {
        const float4 part = load_shared_sum(from + static_cast<int64_t>(j) * p.hidden);
        const float weight = p.weight[row * p.top_k + j];
        s[i][0] = fmaf(weight, part.x, s[i][0]);
        s[i][1] = fmaf(weight, part.y, s[i][1]);
        s[i][2] = fmaf(weight, part.z, s[i][2]);
        s[i][3] = fmaf(weight, part.w, s[i][3]);
      }
      if (p.shared != nullptr) {
        const float4 part = load_shared_sum(p.shared + i * p.shared_stride + static_cast<int64_t>(row) * p.hidden + c);
        s[i][0] += part.x;
        s[i][1] += part.y;
        s[i][2] += part.z;
        s[i][3] += part.w;
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float low = gridDim.z > 1 ? s[0][e] + s[1][e] : s[0][e];
      p.part[static_cast<int64_t>(row) * p.hidden + c + e] = gridDim.z > 2 ? low + (s[2][e] + s[3][e]) : low;
    }
  }
}

}  // namespace firesteel::cuda
