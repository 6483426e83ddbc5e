// What the product kernels share: which matrix, channels and rows a block owns, how inputs are read, how EXL3
// outputs are finished.
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

/// copy_async16, or nothing.
__device__ __forceinline__ void copy_async16_if(bool wanted, void* shared, const void* global) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile(
      "{\n"
      "  .reg .pred p;\n"
      "  setp.ne.u32 p, %2, 0;\n"
      "  @p cp.async.cg.shared.global [%0], [%1], 16;\n"
      "}" ::"r"(to),
      "l"(global), "r"(static_cast<uint32_t>(wanted))
      : "memory");
}

__device__ __forceinline__ void store_y(const MatmulParams& p, int64_t at, float v) {
  if (p.out_f32) {
    static_cast<float*>(p.y)[at] = v;
  } else {
    static_cast<Bits16*>(p.y)[at] = to_bf16(v);
  }
}

/// Where outputs go, four neighbouring channels at a time; whether one store may take them.
struct Output4 {
  void* y;
  int64_t ldy, column;  // column of channel 0
  bool f32, together;
  __device__ __forceinline__ Output4(void* base, int64_t pitch, int64_t first, bool is_f32)
      : y(base), ldy(pitch), column(first), f32(is_f32) {
    together = ((ldy | column) & 3) == 0 && (reinterpret_cast<uintptr_t>(y) & (f32 ? 15 : 7)) == 0;
  }
  /// `channel` is a multiple of 4; those from n on are not stored.
  __device__ __forceinline__ void store(int64_t row, int channel, int n, const float (&v)[4]) const {
    const int64_t at = row * ldy + column + channel;
    if (!together || channel + 3 >= n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (channel + i >= n) continue;
        if (f32) {
          static_cast<float*>(y)[at + i] = v[i];
        } else {
          static_cast<Bits16*>(y)[at + i] = to_bf16(v[i]);
        }
      }
    } else if (f32) {
      *reinterpret_cast<float4*>(static_cast<float*>(y) + at) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
      *reinterpret_cast<uint2*>(static_cast<Bits16*>(y) + at) =
          make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    }
  }
};

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
  int column_block = (p.rows_inner ? blockIdx.y : blockIdx.x) + p.block_offset;
  if (p.ordered.source != nullptr) column_block += blockIdx.z * gridDim.x;
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
    w.valid = w.matrix->kind == p.kind && (p.ordered.source == nullptr || w.first_channel < w.matrix->n);
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
  if (p.pair_row != nullptr) row = p.pair_row[row] / p.pair_div;
  if (p.apart) return p.io[w.part].x + row * p.io[w.part].ldx;
  return p.x + (static_cast<int64_t>(w.part) * p.x_part_stride + row) * p.ldx;
}

/// Stores one output; `row` and `channel` count from the block's first.
__device__ __forceinline__ void store_out(const MatmulParams& p, const BlockWork& w, int slice, int row,
                                          int channel, float v) {
  row += w.first_row;
  channel += w.first_channel;
  if (p.apart) {
    p.io[w.part].y[row * p.io[w.part].ldy + channel] = to_bf16(v);
  } else {
    store_y(p, slice * p.slice_stride + row * p.ldy + p.parts[w.part].column - p.column_shift + channel, v);
  }
}

__device__ __forceinline__ Output4 output_of(const MatmulParams& p, const BlockWork& w, int slice) {
  if (p.apart) return Output4(p.io[w.part].y, p.io[w.part].ldy, 0, false);
  return Output4(p.y, p.ldy, slice * p.slice_stride + p.parts[w.part].column - p.column_shift,
                 p.out_f32 != 0);
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

}  // namespace firesteel::cuda
