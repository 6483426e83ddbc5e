// What goes before the routed experts of few rows, in one launch: items made of the choice, the inputs
// rotated, and the shared expert's gate and up with the activation. Only the items need the router's choice.
// So where router_few comes before (after_router), this launch runs beside it: it lets this one in when the
// kernels before it have ended, and its choice is waited for where it is needed. Nothing is written here that
// it reads.
//
// The sums are those of the product kernels: units of kUnit columns from zero, added in ascending order.
#include "ops/cuda/layer_params.h"
#include "ops/cuda/meeting.cuh"
#include "ops/cuda/one_unit.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kWarps = 8;

__device__ __forceinline__ void begin(const ExpertsBeginParams& p) {
  if (!p.after_router) begin_kernel<false>();
  end_kernel();
}

/// The pairs of an expert in ascending order, eight an item; an item lies where its first pair does.
__device__ __forceinline__ void make_items(const ExpertsBeginParams& p) {
  __shared__ int expert[kMaxFewPairs], count[kMaxFewPairs];
  const int pairs = p.rows * p.top_k, threads = kWarps * 32;
  for (int c = threadIdx.x; c < p.counter_count; c += threads) p.counters[c] = 0;
  if (p.items == nullptr) return;
  for (int i = threadIdx.x; i < pairs; i += threads) {
    if (p.after_router) wait_for(p.picks + kMostPicks + i / p.top_k, 1);
    expert[i] = p.idx[i];
    count[i] = 0;
  }
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
      unit[i].multiply(unit_row(p.x, p.k, p.rows, first_row, warp), acc);
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
  if (blockIdx.x == 0) {
    begin(p);
    return make_items(p);
  }
  int index = blockIdx.x - 1;
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
