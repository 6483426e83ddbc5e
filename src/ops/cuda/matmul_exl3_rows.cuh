// The product kernel of EXL3 weights for prompts; see matmul.cuh for the arithmetic it shares with the
// others.
//
// Decoding a weight costs five instructions and a multiprocessor issues four a clock: a decoded fragment is
// used for all rows of a block, up to 72, and what else a product needs is kept small. A warp takes 32
// channels, so that an input read from shared memory feeds two fragments; a block 256 channels, so that
// inputs are staged once for both halves (gate and up of an expert, or neighbouring channels). The sums of a
// slice lie in shared memory, where the output Hadamard wants them: then two blocks fit a multiprocessor, and
// their warps hide each other's waits.
#pragma once

#include "ops/cuda/matmul_exl3_finish.cuh"

namespace firesteel::cuda {

inline constexpr int kExl3Warps = 8;

/// One block with at most 8·NT rows. Shared memory: two stages of 128 columns, then the sums of both halves.
template <typename Weights, int NT>
__device__ __forceinline__ void multiply_exl3(const MatmulParams& p, const BlockWork& work, uint8_t* shared) {
  // A stage: NT·8 rows of 128 columns (of 64 where there is no room for more), as planes of 32 columns.
  constexpr int kChunk = 128, kChunkBytes = 2 * Weights::kGroupBytes;
  constexpr int kPlane = NT * 512, kPlanes = NT > 8 ? 2 : 4, kStage = kPlanes * kPlane;
  constexpr bool kHalfStages = kPlanes == 2;
  constexpr int kHalfSums = 8 * NT * kBlockN * 4;
  static_assert(Weights::kUnitColumns % kChunk == 0 && 8 * NT <= kExl3ItemRows);
  static_assert(2 * kStage + 2 * kHalfSums <= static_cast<int>(kExl3RowsShared));
  uint8_t* const sums = shared + 2 * kStage;
  const MatrixRef& m = *work.matrix;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, half = warp >> 2;
  // A half without channels does the work of the other once more and stores nothing.
  const bool active = work.first_channel < m.n;
  const int channel = active ? work.first_channel : work.first_channel - kBlockN;
  const bool ordered = p.ordered.source != nullptr, by_slice = gridDim.z > 1 && !ordered;
  const int slices = max(1, p.slices), slice_from = by_slice ? static_cast<int>(blockIdx.z) : 0;
  const int slice_to = by_slice ? slice_from + 1 : slices;
  const auto begin_of = [&](int s) { return p.slices ? p.slice_begin[s] : 0; };
  const auto end_of = [&](int s) { return p.slices ? p.slice_end[s] : m.k; };
  const int k_begin = begin_of(slice_from);
  int to_multiply = (end_of(slice_to - 1) - k_begin) / kChunk;  // chunks left
  int to_stage = to_multiply * (4 / kPlanes);                   // stages left

  // Warp w copies row tile w, and 8 + w if there is one.
  const bool copies = NT >= kExl3Warps || warp < NT, copies_more = warp < NT - kExl3Warps;
  const auto source_of = [&](int tile) {
    return x_row(p, work, 8 * tile + (lane >> 2)) + k_begin + 8 * (lane & 3);
  };
  const Bits16* source = source_of(warp);
  const Bits16* more = copies_more ? source_of(kExl3Warps + warp) : nullptr;
  const uint32_t copy_to = static_cast<uint32_t>(warp * 512 + lane * 16);
  int slot = 0;  // of the stage to copy next
  const auto stage_in = [&] {
    if (to_stage > 0 && copies) {
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane)
        copy_async16(shared + slot + copy_to + plane * kPlane, source + plane * 32, true);
      if (copies_more) {
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane)
          copy_async16(shared + slot + copy_to + kExl3Warps * 512 + plane * kPlane, more + plane * 32, true);
      }
    }
    copy_async_commit();
    source += 32 * kPlanes;
    if (copies_more) more += 32 * kPlanes;
    slot ^= kStage;
    --to_stage;
  };
  stage_in();

  const int tile_bytes = group_count(m.k) * Weights::kGroupBytes;
  const uint8_t* weights = m.data + static_cast<int64_t>(channel / kTileN + (warp & 3) * 2) * tile_bytes +
                           k_begin / kGroupK * Weights::kGroupBytes;
  Weights w[2][2];
  const auto load = [&](Weights(&into)[2], int ahead) {
#pragma unroll
    for (int i = 0; i < 2; ++i) into[i].load(weights + i * tile_bytes + ahead * Weights::kGroupBytes);
  };
  const auto ready = [&](Weights(&of)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) of[i].ready();
  };
  // Memory is further away than one group: a lane asks for a cache line of the weights of two chunks ahead.
  constexpr int kLines = kChunkBytes / 128;  // of a tile
  const int prefetch =
      lane < 2 * kLines ? lane / kLines * tile_bytes + lane % kLines * 128 + 2 * kChunkBytes : -1;
  if (to_multiply > 0) load(w[0], 0);

  float acc[2][NT][4];
  for (int slice = slice_from; slice < slice_to; ++slice) {
    int left = (end_of(slice) - begin_of(slice)) / kChunk;
    bool first = true;
    do {  // an empty slice is zeros
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int t = 0; t < NT; ++t)
#pragma unroll
          for (int r = 0; r < 4; ++r) acc[i][t][r] = 0.0f;
      for (int c = min(left, Weights::kUnitColumns / kChunk); c > 0; --c) {
        const uint8_t* stage;
        const auto arrive = [&] {
          copy_async_wait<0>();
          __syncthreads();
          stage = shared + (slot ^ kStage) + lane * 16;
          stage_in();
        };
        arrive();
        --left;
        --to_multiply;
        const auto multiply = [&](const Weights(&of)[2], int plane0) {
          const auto plane = [&](auto which) {
            constexpr int kHalfGroup = decltype(which)::value;
            uint32_t f[2][2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              of[i].template fragment<2 * kHalfGroup>(f[i][0]);
              of[i].template fragment<2 * kHalfGroup + 1>(f[i][1]);
            }
#pragma unroll
            for (int t = 0; t < NT; ++t) {
              const uint4 b =
                  *reinterpret_cast<const uint4*>(stage + (plane0 + kHalfGroup) * kPlane + t * 512);
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                mma<true>(acc[i][t], f[i][0], b.x, b.y);
                mma<true>(acc[i][t], f[i][1], b.z, b.w);
              }
            }
          };
          plane(Half<0>());
          plane(Half<1>());
        };
        // The wait for a load also waits for those issued since: a group is exchanged before the next is
        // asked for.
        ready(w[0]);
        load(w[1], 1);
        if (prefetch >= 0 && to_multiply > 1) prefetch_l2(weights + prefetch);
        multiply(w[0], 0);
        ready(w[1]);
        if (kHalfStages) arrive();
        weights += kChunkBytes;
        if (to_multiply > 0) load(w[0], 0);
        multiply(w[1], kHalfStages ? 0 : 2);
      }
      // Sums between units lie as each thread wants them, those of the slice as the Hadamard does.
      float4* const mine = reinterpret_cast<float4*>(sums) + threadIdx.x;
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int t = 0; t < NT; ++t) {
          const float4 s = first ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : mine[(i * NT + t) * 256];
          float(&a)[4] = acc[i][t];
          a[0] += s.x, a[1] += s.y, a[2] += s.z, a[3] += s.w;
          if (left > 0) mine[(i * NT + t) * 256] = make_float4(a[0], a[1], a[2], a[3]);
        }
      if (left == 0 && !first) __syncthreads();
      first = false;
    } while (left > 0);

    uint8_t* const my_sums = sums + half * kHalfSums;
    const int at = sum_offset(2 * (lane & 3), (warp & 3) * 32 + (lane >> 2));
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int t = 0; t < NT; ++t)
#pragma unroll
        for (int r = 0; r < 4; ++r)
          *reinterpret_cast<float*>(my_sums + t * 4096 + (r & 1) * 512 +
                                    (at ^ sum_part(i * kTileN + 8 * (r >> 1)))) = acc[i][t][r];
    __syncthreads();
    if (p.pair) {
#pragma unroll 1
      for (int row = 8 * warp; row < min(8 * NT, work.rows); row += 64)
        finish_gate_up(p, work, work.matrix - half, sums, sums + kHalfSums, row);
    } else if (active) {
#pragma unroll 1
      for (int row = 8 * (warp & 3); row < min(8 * NT, work.rows); row += 32) {
        if (ordered) {
          finish_ordered(p, work, my_sums, row, slice, slices);
        } else {
          finish_rows(p, work, my_sums, row, slice);
        }
      }
    }
    if (slice + 1 < slice_to) __syncthreads();  // the sums of the next slice take their place
  }
}

template <typename Weights>
__device__ __forceinline__ void matmul_exl3_rows(const MatmulParams& p) {
  extern __shared__ float4 shared4[];
  uint8_t* shared = reinterpret_cast<uint8_t*>(shared4);
  begin_kernel<false>();
  const int half = threadIdx.x >> 7;
  BlockWork work = block_work<kExl3Rows>(p, p.pair ? kBlockN : 2 * kBlockN);
  if (!work.valid) return;
  if (p.pair) {
    work.matrix += half;
  } else {
    work.first_channel += half * kBlockN;
  }
  // A block does the work of its rows only.
  if (work.rows > 64) {
    multiply_exl3<Weights, 9>(p, work, shared);
  } else if (work.rows > 56) {
    multiply_exl3<Weights, 8>(p, work, shared);
  } else if (work.rows > 40) {
    multiply_exl3<Weights, 7>(p, work, shared);
  } else if (work.rows > 24) {
    multiply_exl3<Weights, 5>(p, work, shared);
  } else {
    multiply_exl3<Weights, 3>(p, work, shared);
  }
}

}  // namespace firesteel::cuda
