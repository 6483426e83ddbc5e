// What goes before the routed experts of few rows, in one launch: the router (products and choice), the items
// made of the choice, the rotation of the experts' inputs, and the shared expert's gate and up with the
// activation. None of these but the items needs another's result, so they share the machine. Blocks by index:
// router or items, shared expert, rotation.
//
// The sums are those of the product kernels: units of kUnit columns from zero, added in ascending order.
#include "ops/cuda/experts_few.cuh"
#include "ops/cuda/router_choice.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kWarps = 8, kUnitGroups = kUnit / kGroupK;

/// Waits for the kernels before. Where the choice is theirs, the next kernel may read it before it waits.
__device__ __forceinline__ void begin(const ExpertsBeginParams& p) {
  if (p.router_blocks > 0) {
    begin_kernel();
  } else {
    begin_kernel<false>();
    end_kernel();
  }
}

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

/// The lane's row of x at its columns of a unit.
__device__ __forceinline__ const Bits16* x_of(const ExpertsBeginParams& p, int first_row, int unit) {
  const int lane = threadIdx.x & 31, row = min(first_row + (lane >> 2), p.rows - 1);
  return p.x + static_cast<int64_t>(row) * p.k + unit * kUnit + 8 * (lane & 3);
}

/// The pairs of an expert in ascending order, eight an item; an item lies where its first pair does.
__device__ __forceinline__ void make_items(const ExpertsBeginParams& p) {
  __shared__ int expert[kMaxFewPairs], count[kMaxFewPairs];
  const int pairs = p.rows * p.top_k, threads = kWarps * 32;
  for (int i = threadIdx.x; i < pairs; i += threads) {
    expert[i] = p.idx[i];
    count[i] = 0;
  }
  for (int c = threadIdx.x; c < p.counter_count; c += threads) p.counters[c] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += threads) {
    int place = 0, first = i;
    for (int j = 0; j < i; ++j) {
      if (expert[j] == expert[i]) {
        if (place % 8 == 0) first = j;
        ++place;
      }
    }
    if (place % 8 == 0) first = i;
    atomicAdd(&count[first], 1);
    p.items[first].pair[place % 8] = i;
    p.items[first].row[place % 8] = i / p.top_k;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += threads) {
    FewItem& item = p.items[i];
    item.count = count[i];
    if (count[i] == 0) continue;
    const MatrixRef* refs = p.table + 3 * expert[i];
    item.gate = refs[0].data;
    item.up = refs[1].data;
    item.down = refs[2].data;
    item.svh_gate = refs[0].svh;
    item.svh_up = refs[1].svh;
    item.suh_down = refs[2].suh;
    item.svh_down = refs[2].svh;
    for (int n = count[i]; n < 8; ++n) {
      item.pair[n] = i;
      item.row[n] = i / p.top_k;
    }
  }
}

// Router blocks that have ended; the last one sets it back. One launch at a time uses it: ops are issued on
// one stream.
__device__ unsigned blocks_done;

/// 16 experts, a warp a unit; the last block to end chooses, a warp a row, and makes the items.
__device__ __forceinline__ void route(const ExpertsBeginParams& p, UnitSums (&sums)[2][kWarps]) {
  __shared__ float probs[kWarps][kMostPicks];
  __shared__ bool last;
  const RouterParams& r = p.router;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  OneUnit<Bf16Weights, 4> unit;
  if (warp < p.units) unit.start(p.router_weight, blockIdx.x, p.k, warp);
  if (static_cast<int>(threadIdx.x) * 32 < r.experts)
    prefetch_l2(reinterpret_cast<const uint8_t*>(r.bias + 32 * threadIdx.x));
  begin(p);
  if (warp < p.units) {
    float acc[1][4] = {};
    unit.multiply(x_of(p, 0, warp), acc);
    sums[0][warp].store(acc);
  }
  __syncthreads();
  const int row = threadIdx.x / kTileN, channel = threadIdx.x % kTileN,
            expert = blockIdx.x * kTileN + channel;
  if (row < p.rows && expert < r.experts) {
    float sum = 0.0f;
    for (int u = 0; u < p.units; ++u) sum += sums[0][u].of[row][channel];
    p.logits[row * r.experts + expert] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(&blocks_done, 1u) == static_cast<unsigned>(p.router_blocks) - 1;
    if (last) blocks_done = 0;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  if (warp < p.rows) {
    float logit[10];
#pragma unroll
    for (int i = 0; i < 10; ++i) {
      const int e = lane + 32 * i;
      logit[i] = e < r.experts ? __ldcg(p.logits + warp * r.experts + e) : 0.0f;
    }
    choose<10, false>(r, warp, logit, probs[warp]);
  }
  if (p.items == nullptr) return;
  __syncthreads();
  make_items(p);
}

/// 16 channels of the shared expert for up to eight rows: gate, up and activation.
template <typename Weights, int kDepth>
__device__ __forceinline__ void shared_gate_up(const ExpertsBeginParams& p, int index,
                                               UnitSums (&sums)[2][kWarps]) {
  const int warp = threadIdx.x >> 5, tiles = p.width / kTileN;
  const int tile = index % tiles, first_row = index / tiles * 8;
  OneUnit<Weights, kDepth> unit[2];
  if (warp < p.units) {
    unit[0].start(p.shared_gate, tile, p.k, warp);
    unit[1].start(p.shared_up, tile, p.k, warp);
  }
  begin(p);
  if (warp < p.units) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float acc[1][4] = {};
      unit[i].multiply(x_of(p, first_row, warp), acc);
      sums[i][warp].store(acc);
    }
  }
  __syncthreads();
  const int row = threadIdx.x / kTileN, channel = threadIdx.x % kTileN;
  if (row >= 8 || first_row + row >= p.rows) return;
  float v[2] = {};
  for (int u = 0; u < p.units; ++u)
#pragma unroll
    for (int i = 0; i < 2; ++i) v[i] = fmaf(Weights::kFactor, sums[i][u].of[row][channel], v[i]);
  p.shared_act[static_cast<int64_t>(first_row + row) * p.width + tile * kTileN + channel] =
      to_bf16(expert_glu(from_bf16(to_bf16(v[0])), from_bf16(to_bf16(v[1])), p.limit));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kWarps * 32, 2)
    experts_begin(const __grid_constant__ ExpertsBeginParams p) {
  __shared__ UnitSums sums[2][kWarps];
  int index = blockIdx.x;
  if (index < p.router_blocks) return route(p, sums);
  if (p.router_blocks == 0 && p.items != nullptr && index-- == 0) {
    begin(p);
    return make_items(p);
  }
  index -= p.router_blocks;
  if (index < p.shared_blocks) {
    if (p.shared_q4) return shared_gate_up<Q4Weights, 4>(p, index, sums);
    return shared_gate_up<Bf16Weights, 2>(p, index, sums);
  }
  index -= p.shared_blocks;
  begin(p);
  const int blocks = (p.k + 1023) / 1024, row = index / blocks,
            block = index % blocks * kWarps + (threadIdx.x >> 5), pairs = p.rows * p.top_k;
  if (block * 128 >= p.k) return;
  const bool up = p.by_pair && row >= pairs;
  const int pair = up ? row - pairs : row, source = p.by_pair ? pair / p.top_k : row;
  const Bits16* suh = p.by_pair ? p.table[3 * p.idx[pair] + (up ? 1 : 0)].suh : p.suh;
  rotate_128(p.x + static_cast<int64_t>(source) * p.k, suh, p.rotated + static_cast<int64_t>(row) * p.k,
             block);
}

}  // namespace firesteel::cuda
