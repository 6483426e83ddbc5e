// Around the grouped products: grouping by expert, EXL3 input rotation, the expert activation, the combine.
#include "ops/cuda/common.cuh"

namespace firesteel::cuda {

namespace {
constexpr int kMaxExperts = 1024;
}

namespace {

/// Calls of(i, idx[i]) for every i below count, eight loads of a thread under way at a time. 1,024 threads.
template <typename Of>
__device__ __forceinline__ void each_pair(const int32_t* idx, int count, const Of& of) {
  for (int first = threadIdx.x; first < count; first += 8 * 1024) {
    int expert[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) expert[j] = idx[min(first + j * 1024, count - 1)];
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (first + j * 1024 < count) of(first + j * 1024, expert[j]);
  }
}

/// One block: counting sort of the pairs by expert, and the items of at most rows_per_item pairs.
__device__ __forceinline__ void group(const GroupParams& p) {
  __shared__ int count[kMaxExperts], first[kMaxExperts], item[kMaxExperts], cursor[kMaxExperts];
  const int e = threadIdx.x, pairs = p.rows * p.top_k;
  count[e] = 0;
  __syncthreads();
  each_pair(p.idx, pairs, [&](int, int expert) { atomicAdd(&count[expert], 1); });
  __syncthreads();
  // The rows of an expert that needs several items are shared out evenly, in whole tiles of 8.
  const int mine = count[e], least = (mine + p.rows_per_item - 1) / p.rows_per_item;
  const int step =
      least > 1 ? min(p.rows_per_item, ((mine + least - 1) / least + 7) / 8 * 8) : p.rows_per_item;
  const int mine_items = (mine + step - 1) / step;
  first[e] = mine;
  item[e] = mine_items;
  __syncthreads();
  for (int step = 1; step < kMaxExperts; step <<= 1) {
    const int a = e >= step ? first[e - step] : 0, b = e >= step ? item[e - step] : 0;
    __syncthreads();
    first[e] += a;
    item[e] += b;
    __syncthreads();
  }
  const int begin = first[e] - mine, item_begin = item[e] - mine_items;
  cursor[e] = begin;
  for (int i = 0; i < mine_items; ++i) {
    p.items[item_begin + i] = ExpertItem{e, begin + i * step, min(step, mine - i * step), 0};
  }
  if (e == kMaxExperts - 1) *p.item_count = item[e];
  __syncthreads();
  each_pair(p.idx, pairs, [&](int i, int expert) {
    const int at = atomicAdd(&cursor[expert], 1);
    p.pair_source[at] = i;
    p.pair_of[i] = at;
    if (p.pair_row == nullptr) return;
    p.pair_row[at] = i / p.top_k;
    p.pair_expert[at] = expert;
  });
}

/// One warp a 128-block of a row.
__device__ __forceinline__ void rotate_block(const RotateParams& p, int block, int row) {
  if (block * 128 >= p.k) return;
  const Bits16* suh = p.suh;
  int source = row;
  if (p.pair_row != nullptr) source = p.pair_row[row];
  if (p.pair_expert != nullptr) suh = p.table[p.pair_expert[row] * p.table_stride + p.part].suh;
  rotate_128(p.x + source * p.ldx, suh, p.y + row * p.ldy, block);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(1024) group_pairs(const __grid_constant__ GroupParams p) {
  begin_kernel();
  group(p);
}

extern "C" __global__ void __launch_bounds__(256) rotate(const __grid_constant__ RotateParams p) {
  begin_kernel();
  rotate_block(p, blockIdx.x * 8 + (threadIdx.x >> 5), blockIdx.y);
}

/// One warp a 128-block of a pair.
extern "C" __global__ void __launch_bounds__(256) expert_act(const __grid_constant__ ExpertActParams p) {
  begin_kernel();
  const int lane = threadIdx.x & 31;
  const int block = blockIdx.x * 8 + (threadIdx.x >> 5), pair = blockIdx.y;
  if (block * 128 >= p.ld) return;
  const MatrixRef* refs = p.table + p.pair_expert[pair] * p.table_stride;
  const int c = block * 128 + 4 * lane;
  const int64_t row = static_cast<int64_t>(pair) * 2 * p.width;
  float gu[2][4];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    if (p.sums != nullptr) {
      float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      for (int u0 = 0; u0 < p.units; u0 += 8) {
        float4 s[8];
#pragma unroll
        for (int u = 0; u < 8; ++u) {
          const int at = min(u0 + u, p.units - 1);
          s[u] = *reinterpret_cast<const float4*>(p.sums + at * p.unit_stride + row + part * p.width + c);
        }
#pragma unroll
        for (int u = 0; u < 8; ++u) {
          if (u0 + u < p.units) {
            v[0] += s[u].x;
            v[1] += s[u].y;
            v[2] += s[u].z;
            v[3] += s[u].w;
          }
        }
      }
      hadamard128(v);
#pragma unroll
      for (int i = 0; i < 4; ++i) gu[part][i] = from_bf16(to_bf16(v[i] * from_f16(refs[part].svh[c + i])));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        gu[part][i] = c + i < p.width ? from_bf16(p.gate_up[row + part * p.width + c + i]) : 0.0f;
      }
    }
  }
  Bits16* y = p.out + static_cast<int64_t>(pair) * p.ld;
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = expert_glu(gu[0][i], gu[1][i], p.limit);
  }
  if (!p.down_exl3) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (c + i < p.ld) y[c + i] = to_bf16(v[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = from_bf16(to_bf16(v[i])) * from_f16(refs[2].suh[c + i]);
  hadamard128(v);
#pragma unroll
  for (int i = 0; i < 4; ++i) y[exl3_slot(c + i)] = to_f16(v[i]);
}

/// One warp a 128-block of a row and slice: blockIdx.x · 8 + warp = block, blockIdx.y = row, blockIdx.z =
/// slice.
extern "C" __global__ void __launch_bounds__(256) exl3_finish(const __grid_constant__ FinishParams p) {
  begin_kernel();
  const int lane = threadIdx.x & 31, block = blockIdx.x * 8 + (threadIdx.x >> 5);
  const int row = blockIdx.y, slice = blockIdx.z;
  if (block >= p.blocks) return;
  int part = 0;
  while (part + 1 < p.joined && block >= p.parts[part + 1].block_begin) ++part;
  const MatrixRef& m = p.parts[part];
  const int c = (block - m.block_begin) * 128 + 4 * lane, column = m.column + c;
  float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int u = 0; u < p.unit_span; ++u) {
    const float4 s = *reinterpret_cast<const float4*>(p.sums + (slice * p.unit_span + u) * p.unit_stride +
                                                      row * p.ld + column - p.column0);
    v[0] += s.x;
    v[1] += s.y;
    v[2] += s.z;
    v[3] += s.w;
  }
  hadamard128(v);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float y = v[i] * from_f16(m.svh[c + i]);
    const int64_t at = slice * p.slice_stride + row * p.ldy + column + i;
    if (p.out_f32) {
      static_cast<float*>(p.y)[at] = y;
    } else {
      static_cast<Bits16*>(p.y)[at] = to_bf16(y);
    }
  }
}

namespace {

/// Experts in ascending id per slice, then the shared expert, then the slices; or slices alone (top_k = 0).
/// Columns c to c + kWidth - 1 of a row.
template <int kWidth>
__device__ __forceinline__ void combine_columns(const CombineParams& p) {
  begin_kernel();
  const int row = blockIdx.y, c = (blockIdx.x * 256 + threadIdx.x) * kWidth;
  if (c >= p.n) return;
  const auto read = [](const float* from, float(&v)[kWidth]) {
    if constexpr (kWidth == 4) {
      const float4 q = *reinterpret_cast<const float4*>(from);
      v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
    } else {
      v[0] = *from;
    }
  };
  float s[4][kWidth] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= p.local_slices) continue;
    const float* slice = p.slices + i * p.slice_stride + c;
    if (p.top_k > 0) {
      for (int j0 = 0; j0 < p.top_k; j0 += 8) {
        float part[8][kWidth], weight[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int at = row * p.top_k + min(j0 + j, p.top_k - 1);
          read(slice + static_cast<int64_t>(p.pair_of[at]) * p.n, part[j]);
          weight[j] = p.weight[at];
        }
#pragma unroll
        for (int j = 0; j < 8; ++j)
          if (j0 + j < p.top_k) {
#pragma unroll
            for (int q = 0; q < kWidth; ++q) s[i][q] = fmaf(weight[j], part[j][q], s[i][q]);
          }
      }
      if (p.shared != nullptr) {
        float shared[kWidth];
        read(p.shared + i * p.shared_stride + static_cast<int64_t>(row) * p.full_n + p.column0 + c, shared);
#pragma unroll
        for (int q = 0; q < kWidth; ++q) s[i][q] += shared[q];
      }
    } else {
      read(slice + static_cast<int64_t>(row) * p.n, s[i]);
    }
  }
  float* const out = p.part + static_cast<int64_t>(row) * p.full_n + p.column0 + c;
  float sum[kWidth];
#pragma unroll
  for (int q = 0; q < kWidth; ++q) {
    const float low = p.local_slices > 1 ? s[0][q] + s[1][q] : s[0][q];
    sum[q] = p.local_slices > 2 ? low + (s[2][q] + s[3][q]) : low;
  }
  if constexpr (kWidth == 4) {
    *reinterpret_cast<float4*>(out) = make_float4(sum[0], sum[1], sum[2], sum[3]);
  } else {
    *out = sum[0];
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) combine(const __grid_constant__ CombineParams p) {
  combine_columns<1>(p);
}
/// For prompts: rows and slices begin at multiples of 16 bytes.
extern "C" __global__ void __launch_bounds__(256) combine_4(const __grid_constant__ CombineParams p) {
  combine_columns<4>(p);
}

}  // namespace firesteel::cuda
