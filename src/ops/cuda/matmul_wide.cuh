// The product kernel for prompts of formats that need no decoding to speak of; see matmul.cuh for the
// arithmetic it shares with the others.
#pragma once

#include "ops/cuda/matmul_common.cuh"

namespace firesteel::cuda {

/// What is read of a staged group beside the products of step `s` of the group before it (s ≥ 2: of group
/// `next`) or of its own (s < 2: of `now`): the registers that the step before last was the last to use.
template <int s>
__device__ __forceinline__ void refill(Bf16Weights& w, const uint8_t* now, const uint8_t* next) {
  constexpr int kPart = (s + 2) & 3;
  w.r[kPart] = reinterpret_cast<const uint4*>(s < 2 ? now : next)[32 * kPart + (threadIdx.x & 31)];
}
template <int s>
__device__ __forceinline__ void refill(Fp8Weights& w, const uint8_t* now, const uint8_t* next) {
  if constexpr (s == 0) w.r[1] = reinterpret_cast<const uint4*>(now)[32 + (threadIdx.x & 31)];
  if constexpr (s == 2) w.r[0] = reinterpret_cast<const uint4*>(next)[threadIdx.x & 31];
}
template <int s>
__device__ __forceinline__ void refill(Fp8RowsWeights& w, const uint8_t* now, const uint8_t* next) {
  refill<s>(w.codes, now, next);
  if constexpr (s == 2) w.scales = *reinterpret_cast<const uint32_t*>(next + 1024 + (threadIdx.x & 28));
}
template <int s>
__device__ __forceinline__ void refill(Q4Weights& w, const uint8_t*, const uint8_t* next) {
  if constexpr (s == 2) w.load_staged(next);
}

/// p += bytes, where it is written: left to itself, the compiler does it beside the copies, which then wait.
template <typename T>
__device__ __forceinline__ void move_on(T*& p, int bytes) {
  asm volatile("add.u64 %0, %0, %1;" : "+l"(p) : "l"(static_cast<int64_t>(bytes)));
}

/// d = a·b in bf16, as mma() with d = 0.
__device__ __forceinline__ void mma_from_zero(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

/// A block takes 128 channels and kWideRows rows, a warp kTiles tiles of channels and NT of rows: its sums of
/// the unit and of the slice fill half the registers. Weights and rows are staged by asynchronous copies,
/// kWideStages groups of 64 columns.
///
/// A group is four steps of 16 columns. Registers are filled again as soon as a step has used them for the
/// last time, so no step waits for what it asked for itself; the barrier lies in the middle of a group, at
/// the end of a loop body, for products would otherwise be moved in front of it and leave nothing to run
/// while what it lets through arrives.
template <typename Weights, int kTiles, bool kFromZero = false>
__device__ __forceinline__ void matmul_wide(const MatmulParams& p) {
  extern __shared__ float4 shared4[];
  uint8_t* stages = reinterpret_cast<uint8_t*>(shared4);
  constexpr int kThreads = 256, kWarps = 8, kTilesOfBlock = kBlockN / kTileN, kStages = kWideStages;
  constexpr int kChannelWarps = kTilesOfBlock / kTiles, kRowWarps = kWarps / kChannelWarps;
  constexpr int NT = kWideRows / 8 / kRowWarps, kRowTiles = NT * kRowWarps;
  static_assert(kRowTiles * 8 == kWideRows && kRowTiles % kWarps == 0 && NT % kTiles == 0);
  constexpr int kWeightBytes = kTilesOfBlock * Weights::kGroupBytes, kPlane = kWideRows * 64;
  constexpr int kStage = kWeightBytes + 2 * kPlane;
  constexpr int kUnitGroups = Weights::kUnitColumns / kGroupK;
  begin_kernel<false>();
  const BlockWork work = block_work<kWideRows>(p, kBlockN);
  const MatrixRef& m = *work.matrix;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int tile0 = warp % kChannelWarps * kTiles, row_part = warp / kChannelWarps;
  const bool two_slices = p.stash != nullptr;
  const int slice = static_cast<int>(blockIdx.z) << two_slices;
  const int last_slice = two_slices ? min(slice + 1, p.slices - 1) : slice;
  const int k_begin = p.slices ? p.slice_begin[slice] : 0, k_end = p.slices ? p.slice_end[last_slice] : m.k;
  const int groups = group_count(m.k), n_groups = (k_end - k_begin + kGroupK - 1) / kGroupK;
  // Groups of the first of two slices, 0 if there is one; units begin anew with the second.
  const int first_end = last_slice > slice ? p.slice_end[slice] : k_end;
  const int first_groups = first_end < k_end ? (first_end - k_begin) / kGroupK : 0;
  const int last_tile = (m.n + kTileN - 1) / kTileN - 1;

  // A warp copies whole tiles of 8 rows, in two planes of 32 columns.
  constexpr int kRowCopies = kRowTiles / kWarps,
                kWeightPieces = (kWeightBytes / 16 + kThreads - 1) / kThreads;
  constexpr bool kUneven = kWeightBytes / 16 % kThreads != 0;  // not every thread has a last piece
  const Bits16* x[kRowCopies];
#pragma unroll
  for (int i = 0; i < kRowCopies; ++i)
    x[i] = x_row(p, work, 8 * (warp + kWarps * i) + (lane >> 2)) + k_begin + 8 * (lane & 3);
  const uint8_t* weights[kWeightPieces];
#pragma unroll
  for (int i = 0; i < kWeightPieces; ++i) {
    const int piece = i * kThreads + threadIdx.x, tile = piece / (Weights::kGroupBytes / 16);
    weights[i] = m.data +
                 (static_cast<int64_t>(min(work.first_channel / kTileN + tile, last_tile)) * groups +
                  k_begin / kGroupK) *
                     Weights::kGroupBytes +
                 piece % (Weights::kGroupBytes / 16) * 16;
  }
  // The next group to come. Copies need their addresses until they have left, so addresses move on later.
  const auto stage_in = [&](uint8_t* slot, bool wanted) {
    uint8_t* to = slot + threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < kWeightPieces; ++i) {
      const bool mine = !kUneven || i * kThreads + static_cast<int>(threadIdx.x) < kWeightBytes / 16;
      copy_async16_if(wanted && mine, to + i * kThreads * 16, weights[i]);
    }
#pragma unroll
    for (int i = 0; i < kRowCopies; ++i) {
      copy_async16_if(wanted, to + kWeightBytes + kWarps * i * 512, x[i]);
      copy_async16_if(wanted, to + kWeightBytes + kWarps * i * 512 + kPlane, x[i] + 32);
    }
    copy_async_commit();
  };
  const auto advance = [&] {
#pragma unroll
    for (int i = 0; i < kWeightPieces; ++i) move_on(weights[i], Weights::kGroupBytes);
#pragma unroll
    for (int i = 0; i < kRowCopies; ++i) move_on(x[i], 2 * kGroupK);
  };
#pragma unroll
  for (int s = 0; s < kStages; ++s) {
    if (s > 0) advance();
    stage_in(stages + s * kStage, s < n_groups);
  }

  float acc[kTiles][NT][4], total[kTiles][NT][4];
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
      for (int r = 0; r < 4; ++r) acc[i][t][r] = 0.0f, total[i][t][r] = 0.0f;
  const int k_blocks = (m.k + 127) / 128;
  uint8_t *now = stages, *next = stages + kStage, *const stages_end = stages + kStages * kStage;
  const int a_at = tile0 * Weights::kGroupBytes, b_at = kWeightBytes + row_part * NT * 512 + lane * 16;
  Weights w[kTiles];
  uint4 b[NT];               // of half a group, two steps
  uint32_t f[2][kTiles][4];  // fragments of this step and the next

  copy_async_wait<kStages - 1>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    refill<2>(w[i], nullptr, now + a_at + i * Weights::kGroupBytes);
    refill<3>(w[i], nullptr, now + a_at + i * Weights::kGroupBytes);
    w[i].template fragment<0>(f[0][i]);
  }
#pragma unroll
  for (int t = 0; t < NT; ++t) b[t] = *reinterpret_cast<const uint4*>(now + b_at + t * 512);

  const auto step = [&](auto which, auto first) {
    constexpr int s = decltype(which)::value;
#pragma unroll
    for (int t = 0; t < NT; ++t) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
        if constexpr (decltype(first)::value) {
          mma_from_zero(acc[i][t], f[s & 1][i], b[t].x, b[t].y);
        } else {
          mma<Weights::kHalf>(acc[i][t], f[s & 1][i], s & 1 ? b[t].z : b[t].x, s & 1 ? b[t].w : b[t].y);
        }
      if constexpr (s & 1)
        b[t] = *reinterpret_cast<const uint4*>((s == 1 ? now + kPlane : next) + b_at + t * 512);
      if (t % (NT / kTiles) == 0) {
        const int i = t / (NT / kTiles);
        w[i].template fragment<(s + 1) & 3>(f[(s + 1) & 1][i]);
        refill<s>(w[i], now + a_at + i * Weights::kGroupBytes, next + a_at + i * Weights::kGroupBytes);
      }
    }
  };
  const auto begins_unit = [&](int g) {
    return (g < first_groups ? g : g - first_groups) % kUnitGroups == 0;
  };
  const auto stash = [&](int i, int t) {
    const int64_t block =
        (static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    return reinterpret_cast<float4*>(p.stash) + (block * kTiles * NT + i * NT + t) * kThreads + threadIdx.x;
  };
  for (int g = -1; n_groups > 0;) {
    if (g >= 0) {
      advance();
      step(Half<2>(), Half<0>());
      step(Half<3>(), Half<0>());
      if (begins_unit(g + 1) || g + 1 == n_groups) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          float scale = Weights::kFactor;
          if constexpr (Weights::kBlockScales) {
            const int channel = min(work.first_channel + (tile0 + i) * kTileN, m.n - 1);
            scale = m.scale[channel / 128 * k_blocks + (k_begin + g * kGroupK) / 128];
          }
#pragma unroll
          for (int t = 0; t < NT; ++t)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              total[i][t][r] = Weights::kScaled ? fmaf(scale, acc[i][t][r], total[i][t][r])
                                                : total[i][t][r] + acc[i][t][r];
              if constexpr (!kFromZero) acc[i][t][r] = 0.0f;
            }
        }
        if (g + 1 == n_groups) break;
        if (g + 1 == first_groups) {
#pragma unroll
          for (int i = 0; i < kTiles; ++i)
#pragma unroll
            for (int t = 0; t < NT; ++t) {
              float(&v)[4] = total[i][t];
              *stash(i, t) = make_float4(v[0], v[1], v[2], v[3]);
              v[0] = v[1] = v[2] = v[3] = 0.0f;
            }
        }
      }
      // Since the barrier nobody reads this stage any more.
      stage_in(now, g + kStages < n_groups);
      now = next;
      next += kStage;
      if (next == stages_end) next = stages;
    }
    ++g;
    if constexpr (kFromZero) {
      if (begins_unit(g))
        step(Half<0>(), Half<1>());
      else
        step(Half<0>(), Half<0>());
    } else {
      step(Half<0>(), Half<0>());
    }
    step(Half<1>(), Half<0>());
    copy_async_wait<kStages - 2>();
    __syncthreads();
  }
  copy_async_wait<0>();
  __syncthreads();
  if (first_groups > 0) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int t = 0; t < NT; ++t) {
        const float4 s = *stash(i, t);
        float(&v)[4] = total[i][t];
        v[0] = s.x + v[0], v[1] = s.y + v[1], v[2] = s.z + v[2], v[3] = s.w + v[3];
      }
  }
  // Eight rows at a time through shared memory of the warp's own, so that stores are whole sectors.
  constexpr int kChannels = kTiles * kTileN, kPitch = kChannels + 4;
  float* tile = reinterpret_cast<float*>(shared4) + warp * 8 * kPitch;
  const Output4 out = output_of(p, work, blockIdx.z);
#pragma unroll
  for (int t = 0; t < NT; ++t) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
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
