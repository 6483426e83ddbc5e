// The product kernel of EXL3 weights for prompts; see matmul.cuh for the arithmetic it shares with the
// others.
//
// Decoding a weight costs five instructions and a multiprocessor issues four a clock: a decoded fragment is
// used for all rows of a block, up to 64, and what else a product needs is kept small. A warp takes 32
// channels, so that an input read from shared memory feeds two fragments; a block 256 channels, so that
// inputs are staged once for both halves (gate and up of an expert, or neighbouring channels). The sums of a
// slice lie in shared memory, where the output Hadamard wants them: then two blocks fit a multiprocessor, and
// their warps hide each other's waits.
#pragma once

#include "ops/cuda/matmul_common.cuh"

namespace firesteel::cuda {

inline constexpr int kExl3Warps = 8;
inline constexpr int kExl3TilePitch = kBlockN + 4;

/// hadamard128 of kCount rows at once: the exchanges of one hide behind those of the others.
template <int kCount>
__device__ __forceinline__ void hadamard128_rows(float (&v)[kCount][4]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float a = v[j][0] + v[j][1], b = v[j][0] - v[j][1], c = v[j][2] + v[j][3], d = v[j][2] - v[j][3];
    v[j][0] = a + c;
    v[j][1] = b + d;
    v[j][2] = a - c;
    v[j][3] = b - d;
  }
#pragma unroll
  for (int mask = 1; mask < 32; mask <<= 1) {
    const float sign = (lane & mask) ? -1.0f : 1.0f;
    float other[kCount][4];
#pragma unroll
    for (int j = 0; j < kCount; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) other[j][i] = __shfl_xor_sync(0xffffffffu, v[j][i], mask);
#pragma unroll
    for (int j = 0; j < kCount; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) v[j][i] = fmaf(sign, v[j][i], other[j][i]);
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) v[j][i] *= 0.08838834764831845f;
}

/// Four fp16 scales of channels c to c + 3, c a multiple of 4.
__device__ __forceinline__ void load_scales(const Bits16* from, int c, float (&scale)[4]) {
  const uint2 v = *reinterpret_cast<const uint2*>(from + c);
  scale[0] = from_f16(static_cast<Bits16>(v.x));
  scale[1] = from_f16(static_cast<Bits16>(v.x >> 16));
  scale[2] = from_f16(static_cast<Bits16>(v.y));
  scale[3] = from_f16(static_cast<Bits16>(v.y >> 16));
}

/// Rows `first` to `first` + kCount - 1 of a half's sums: output Hadamard, svh, store.
template <int kCount>
__device__ __forceinline__ void finish_rows(const MatmulParams& p, const BlockWork& w, const float* sums,
                                            const float (&scale)[4], int first, int slice) {
  const int c = 4 * (threadIdx.x & 31);
  float v[kCount][4];
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float4 s = *reinterpret_cast<const float4*>(sums + (first + j) * kExl3TilePitch + c);
    v[j][0] = s.x, v[j][1] = s.y, v[j][2] = s.z, v[j][3] = s.w;
  }
  hadamard128_rows(v);
  const Output4 out = output_of(p, w, slice);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (first + j >= w.rows) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) v[j][i] *= scale[i];
    out.store(w.first_row + first + j, w.first_channel + c, w.matrix->n, v[j]);
  }
}

/// The same for gate and up of an expert: what expert_act does follows at once, and the input of its down
/// product is stored. `scale`: svh of gate, svh of up, suh of down.
template <int kCount>
__device__ __forceinline__ void finish_gate_up(const MatmulParams& p, const BlockWork& w, const float* gate,
                                               const float* up, const float (&scale)[3][4], int first) {
  const int lane = threadIdx.x & 31, c = w.first_channel + 4 * lane;
  float g[kCount][4], u[kCount][4];
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const int at = (first + j) * kExl3TilePitch + 4 * lane;
    const float4 a = *reinterpret_cast<const float4*>(gate + at),
                 b = *reinterpret_cast<const float4*>(up + at);
    g[j][0] = a.x, g[j][1] = a.y, g[j][2] = a.z, g[j][3] = a.w;
    u[j][0] = b.x, u[j][1] = b.y, u[j][2] = b.z, u[j][3] = b.w;
  }
  hadamard128_rows(g);
  hadamard128_rows(u);
#pragma unroll
  for (int j = 0; j < kCount; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float v = expert_glu(from_bf16(to_bf16(g[j][i] * scale[0][i])),
                                 from_bf16(to_bf16(u[j][i] * scale[1][i])), p.limit);
      g[j][i] = from_bf16(to_bf16(v)) * scale[2][i];
    }
  hadamard128_rows(g);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (first + j >= w.rows) continue;
    Bits16* y = static_cast<Bits16*>(p.y) + (w.first_row + first + j) * p.ldy;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      *reinterpret_cast<uint32_t*>(y + exl3_slot(c + i)) =
          static_cast<uint32_t>(to_f16(g[j][i])) | static_cast<uint32_t>(to_f16(g[j][i + 1])) << 16;
    }
  }
}

/// One block with at most 8·NT rows. Shared memory: two stages of 128 columns, then the sums of both halves.
template <typename Weights, int NT>
__device__ __forceinline__ void multiply_exl3(const MatmulParams& p, const BlockWork& work, uint8_t* shared) {
  // A stage: NT·8 rows of 128 columns, as four planes of 32 columns.
  constexpr int kPlane = NT * 512, kStage = 4 * kPlane, kChunk = 128, kChunkBytes = 2 * Weights::kGroupBytes;
  constexpr int kHalfSums = 8 * NT * kExl3TilePitch;
  static_assert(Weights::kUnitColumns % kChunk == 0 && NT <= kExl3Warps);
  float* const sums = reinterpret_cast<float*>(shared + 2 * kStage);
  const MatrixRef& m = *work.matrix;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, half = warp >> 2;
  const bool active = work.first_channel < m.n;
  const int slices = max(1, p.slices), slice_from = gridDim.z > 1 ? static_cast<int>(blockIdx.z) : 0;
  const int slice_to = gridDim.z > 1 ? slice_from + 1 : slices;
  const auto begin_of = [&](int s) { return p.slices ? p.slice_begin[s] : 0; };
  const auto end_of = [&](int s) { return p.slices ? p.slice_end[s] : m.k; };
  const int k_begin = begin_of(slice_from);
  int to_stage = (end_of(slice_to - 1) - k_begin) / kChunk, to_multiply = to_stage;  // chunks left

  // Warp w copies row tile w.
  const bool copies = NT == kExl3Warps || warp < NT;
  const Bits16* source = x_row(p, work, 8 * warp + (lane >> 2)) + k_begin + 8 * (lane & 3);
  const uint32_t copy_to = static_cast<uint32_t>(warp * 512 + lane * 16);
  int slot = 0;  // of the chunk to stage next
  const auto stage_in = [&] {
    if (to_stage > 0 && copies) {
#pragma unroll
      for (int plane = 0; plane < 4; ++plane)
        copy_async16(shared + slot + copy_to + plane * kPlane, source + plane * 32, true);
    }
    copy_async_commit();
    source += kChunk;
    slot ^= kStage;
    --to_stage;
  };
  stage_in();

  const int tile_bytes = group_count(m.k) * Weights::kGroupBytes;
  const uint8_t* weights = m.data +
                           static_cast<int64_t>(work.first_channel / kTileN + (warp & 3) * 2) * tile_bytes +
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
  if (active && to_multiply > 0) load(w[0], 0);

  float acc[2][NT][4];
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
      for (int r = 0; r < 4; ++r) acc[i][t][r] = 0.0f;
  float* const mine =
      sums + half * kHalfSums + 2 * (lane & 3) * kExl3TilePitch + (warp & 3) * 32 + (lane >> 2);

  for (int slice = slice_from; slice < slice_to; ++slice) {
    int left = (end_of(slice) - begin_of(slice)) / kChunk;
    bool first = true;
    do {  // an empty slice is zeros
      for (int c = min(left, Weights::kUnitColumns / kChunk); c > 0; --c) {
        copy_async_wait<0>();
        __syncthreads();
        const uint8_t* stage = shared + (slot ^ kStage) + lane * 16;
        stage_in();
        --left;
        --to_multiply;
        if (!active) continue;
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
        weights += kChunkBytes;
        if (to_multiply > 0) load(w[0], 0);
        multiply(w[1], 2);
      }
#pragma unroll
      for (int t = 0; t < NT; ++t)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            float& sum = mine[(8 * t + (r & 1)) * kExl3TilePitch + i * kTileN + 8 * (r >> 1)];
            sum = (first ? 0.0f : sum) + acc[i][t][r];
            acc[i][t][r] = 0.0f;
          }
      first = false;
    } while (left > 0);

    __syncthreads();
    const int c = work.first_channel + 4 * lane;
    if (p.pair) {
      const MatrixRef* refs = work.matrix - half;
      float scale[3][4];
      load_scales(refs[0].svh, c, scale[0]);
      load_scales(refs[1].svh, c, scale[1]);
      load_scales(refs[2].suh, c, scale[2]);
#pragma unroll 1
      for (int r = 2 * warp; r < 8 * NT && r < work.rows; r += 2 * kExl3Warps)
        finish_gate_up<2>(p, work, sums, sums + kHalfSums, scale, r);
    } else if (active) {
      float scale[4];
      load_scales(m.svh, c, scale);
#pragma unroll 1
      for (int r = 4 * (warp & 3); r < 8 * NT && r < work.rows; r += 16)
        finish_rows<4>(p, work, sums + half * kHalfSums, scale, r, slice);
    }
    __syncthreads();  // the sums of the next slice take their place
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
  if (work.rows > 56) {
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
