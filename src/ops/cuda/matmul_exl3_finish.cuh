// How the prompt kernel of EXL3 weights (matmul_exl3_rows.cuh) finishes a slice: its sums, in shared memory,
// through the output Hadamard and scales, or through the activation to the input of an expert's down product,
// or into the sums over experts.
//
// A Hadamard over 128 channels done by shuffles costs five of them a value, and they bind. Here a lane takes
// 16 neighbouring channels of a row for the first four of the seven steps and, after an exchange through
// shared memory, the channels that the last three combine: the same additions in the same order.
#pragma once

#include "ops/cuda/matmul_common.cuh"
#include "ops/cuda/meeting.cuh"

namespace firesteel::cuda {

/// Four fp16 scales of channels c to c + 3, c a multiple of 4.
__device__ __forceinline__ void load_scales(const Bits16* from, int c, float (&scale)[4]) {
  const uint2 v = *reinterpret_cast<const uint2*>(from + c);
  scale[0] = from_f16(static_cast<Bits16>(v.x));
  scale[1] = from_f16(static_cast<Bits16>(v.x >> 16));
  scale[2] = from_f16(static_cast<Bits16>(v.y));
  scale[3] = from_f16(static_cast<Bits16>(v.y >> 16));
}

/// Byte offset of channel c of a row of 128 sums. Pieces of 16 bytes are permuted so that products are
/// stored, and both halves of the Hadamard read, without two lanes meeting in a bank. `c` may be split into
/// parts without common bits, whose offsets combine by exclusive or; the row's belongs to one of them.
__device__ __forceinline__ int sum_offset(int row, int c) {
  return row * 512 + ((((c >> 2) ^ (c >> 5) ^ (row & 6)) << 4) | (c & 3) << 2);
}
__device__ constexpr int sum_part(int c) { return (((c >> 2) ^ (c >> 5)) << 4) | (c & 3) << 2; }

/// The lane, in a form that keeps the addresses made from it out of the loops around: they would take the
/// registers of the products.
__device__ __forceinline__ int lane_here() {
  int lane = threadIdx.x & 31;
  asm volatile("" : "+r"(lane));
  return lane;
}

/// A step of the butterfly between values whose index differs in kBit.
template <int kBit, int kCount>
__device__ __forceinline__ void butterfly(float (&v)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if ((i & kBit) != 0) continue;
    const float a = v[i], b = v[i + kBit];
    v[i] = a + b;
    v[i + kBit] = a - b;
  }
}

/// The first four steps for eight rows; one warp, in place.
__device__ __forceinline__ void hadamard_begin(uint8_t* sums, int first_row) {
  const int lane = lane_here();
#pragma unroll
  for (int a = 0; a < 8; a += 4) {
    uint8_t* const row = sums + (first_row + a) * 512;
    const int at = sum_offset(lane >> 3, 16 * (lane & 7)) ^ (a & 6) << 4;
    float v[16];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float4 s = *reinterpret_cast<const float4*>(row + (at ^ 16 * q));
      v[4 * q] = s.x, v[4 * q + 1] = s.y, v[4 * q + 2] = s.z, v[4 * q + 3] = s.w;
    }
    butterfly<1>(v);
    butterfly<2>(v);
    butterfly<4>(v);
    butterfly<8>(v);
#pragma unroll
    for (int q = 0; q < 4; ++q)
      *reinterpret_cast<float4*>(row + (at ^ 16 * q)) =
          make_float4(v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3]);
  }
}

/// Where a lane stands in the second half: row of eight (lanes that read together are four apart), and its
/// channels 16·i + channel to 16·i + channel + 3 for i = 0 to 7.
struct FinishLane {
  int row, channel;
  __device__ FinishLane() {
    const int lane = lane_here();
    row = (lane >> 3) | (lane & 4);
    channel = 4 * (lane & 3);
  }
};

/// The last three steps of what hadamard_begin left; v[4·i + j] is channel 16·i + channel + j.
__device__ __forceinline__ void hadamard_end(const uint8_t* sums, int first_row, const FinishLane& at,
                                             float (&v)[32]) {
  const uint8_t* const row = sums + first_row * 512;
  const int offset = sum_offset(at.row, at.channel);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 s = *reinterpret_cast<const float4*>(row + (offset ^ sum_part(16 * i)));
    v[4 * i] = s.x, v[4 * i + 1] = s.y, v[4 * i + 2] = s.z, v[4 * i + 3] = s.w;
  }
  butterfly<4>(v);
  butterfly<8>(v);
  butterfly<16>(v);
#pragma unroll
  for (int i = 0; i < 32; ++i) v[i] *= 0.08838834764831845f;
}

/// Eight rows of a half's sums: output Hadamard, svh, store. One warp.
__device__ __forceinline__ void finish_rows(const MatmulParams& p, const BlockWork& w, uint8_t* sums,
                                            int first_row, int slice) {
  hadamard_begin(sums, first_row);
  __syncwarp();
  const FinishLane at;
  float v[32];
  hadamard_end(sums, first_row, at, v);
  const int row = first_row + at.row;
  if (row >= w.rows) return;
  const Output4 out = output_of(p, w, slice);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int c = w.first_channel + 16 * i + at.channel;
    float scale[4];
    load_scales(w.matrix->svh, c, scale);
    const float y[4] = {v[4 * i] * scale[0], v[4 * i + 1] * scale[1], v[4 * i + 2] * scale[2],
                        v[4 * i + 3] * scale[3]};
    out.store(w.first_row + row, c, w.matrix->n, y);
  }
}

/// The same for an expert's down product, which is added to the sums of its rows (OrderedSum): experts in
/// ascending order within a slice, then the shared expert, then the slices, as combine_columns adds them.
__device__ __forceinline__ void finish_ordered(const MatmulParams& p, const BlockWork& w, uint8_t* sums,
                                               int first_row, int slice, int slices) {
  const OrderedSum& o = p.ordered;
  const FinishLane at;
  const int row = first_row + at.row, n = w.matrix->n;
  const bool real = row < w.rows;
  const int source = o.source[w.first_row + min(row, w.rows - 1)];
  const int token = source / o.top_k, place = source % o.top_k;
  const float weight = o.weight[source];
  int32_t* const done =
      o.done + (static_cast<int64_t>(slice) * (n / kBlockN) + w.first_channel / kBlockN) * o.rows + token;
  hadamard_begin(sums, first_row);
  __syncwarp();
  float v[32];
  hadamard_end(sums, first_row, at, v);
  const int64_t stride = static_cast<int64_t>(o.rows) * n;
  const int64_t first = static_cast<int64_t>(token) * n + w.first_channel + at.channel;
  const Bits16* const svh = w.matrix->svh + w.first_channel + at.channel;
  const bool last = place + 1 == o.top_k;
  if (real) {
    while (load_acquire(done) != place) {
    }
    float* const acc = o.acc + slice * stride + first;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float scale[4];
      load_scales(svh, 16 * i, scale);
      const float4 before = place == 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f)
                                       : __ldcg(reinterpret_cast<const float4*>(acc + 16 * i));
      v[4 * i] = fmaf(weight, v[4 * i] * scale[0], before.x);
      v[4 * i + 1] = fmaf(weight, v[4 * i + 1] * scale[1], before.y);
      v[4 * i + 2] = fmaf(weight, v[4 * i + 2] * scale[2], before.z);
      v[4 * i + 3] = fmaf(weight, v[4 * i + 3] * scale[3], before.w);
    }
    if (last && o.shared != nullptr) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 s = *reinterpret_cast<const float4*>(o.shared + slice * stride + first + 16 * i);
        v[4 * i] += s.x, v[4 * i + 1] += s.y, v[4 * i + 2] += s.z, v[4 * i + 3] += s.w;
      }
    }
    if (last && slice + 1 == slices) {
      // The sums of the slices before are this lane's own.
      const auto add_slices = [&](int i) {
        const auto of = [&](int s) {
          return s == slice  ? make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3])
                 : s < slice ? __ldcg(reinterpret_cast<const float4*>(o.acc + s * stride + first + 16 * i))
                             : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        };
        float4 low = of(0);
        if (slices > 1) {
          const float4 b = of(1);
          low.x += b.x, low.y += b.y, low.z += b.z, low.w += b.w;
        }
        if (slices > 2) {
          const float4 c = of(2), d = of(3);
          low.x += c.x + d.x, low.y += c.y + d.y, low.z += c.z + d.z, low.w += c.w + d.w;
        }
        *reinterpret_cast<float4*>(o.part + first + 16 * i) = low;
      };
#pragma unroll
      for (int i = 0; i < 8; ++i) add_slices(i);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        *reinterpret_cast<float4*>(acc + 16 * i) =
            make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    }
  }
  __syncwarp();
  if (real && !last && (threadIdx.x & 3) == 0) publish(done, place + 1);
}

/// The same for gate and up of an expert (refs: gate, up, down): what expert_act does follows at once, and
/// the input of its down product is stored.
__device__ __forceinline__ void finish_gate_up(const MatmulParams& p, const BlockWork& w,
                                               const MatrixRef* refs, uint8_t* gate, uint8_t* up,
                                               int first_row) {
  const int lane = lane_here();
  hadamard_begin(gate, first_row);
  hadamard_begin(up, first_row);
  __syncwarp();
  const FinishLane at;
  const int c0 = w.first_channel + at.channel;
  uint32_t u[16];  // pairs of bf16, which they are rounded to
  {
    float v[32];
    hadamard_end(up, first_row, at, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float scale[4];
      load_scales(refs[1].svh, c0 + 16 * i, scale);
      u[2 * i] = pack_bf16(v[4 * i] * scale[0], v[4 * i + 1] * scale[1]);
      u[2 * i + 1] = pack_bf16(v[4 * i + 2] * scale[2], v[4 * i + 3] * scale[3]);
    }
  }
  float g[32];
  hadamard_end(gate, first_row, at, g);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float gate_scale[4], down_scale[4];
    load_scales(refs[0].svh, c0 + 16 * i, gate_scale);
    load_scales(refs[2].suh, c0 + 16 * i, down_scale);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t two = u[2 * i + j / 2];
      const float v = expert_glu(from_bf16(to_bf16(g[4 * i + j] * gate_scale[j])),
                                 j & 1 ? bf16_high(two) : bf16_low(two), p.limit);
      g[4 * i + j] = from_bf16(to_bf16(v)) * down_scale[j];
    }
  }
  // Channel bits 2 and 3 are those of the lane.
  butterfly<1>(g);
  butterfly<2>(g);
#pragma unroll
  for (int mask = 1; mask < 4; mask <<= 1) {
    const float sign = (lane & mask) ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < 32; ++i) g[i] = fmaf(sign, g[i], __shfl_xor_sync(0xffffffffu, g[i], mask));
  }
  butterfly<4>(g);
  butterfly<8>(g);
  butterfly<16>(g);
  const int row = first_row + at.row;
  if (row >= w.rows) return;
  Bits16* const y = static_cast<Bits16*>(p.y) + (w.first_row + row) * p.ldy;
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    const uint32_t low = to_f16(g[i] * 0.08838834764831845f), high = to_f16(g[i + 1] * 0.08838834764831845f);
    *reinterpret_cast<uint32_t*>(y + exl3_slot(c0 + 16 * (i / 4) + (i & 3))) = low | high << 16;
  }
}

}  // namespace firesteel::cuda
