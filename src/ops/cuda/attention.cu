// Attention over selected latents in absorbed form.
//
// absorb: q̃ = W_Kᵀ q per head; attend: scores, softmax and mix over blocks of tokens, one block of threads a
// row and chunk of kChunk listed tokens; merge: the chunks in ascending order; expand: o = W_V õ per head. A
// row's chunks are cut by its own list, so its bits depend on nothing else.
#include "ops/cuda/common.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kPage = 256;
constexpr int kChunk = 128;   // listed tokens of a chunk
constexpr int kBlock = 32;    // tokens staged together
constexpr int kHeads = 32;    // heads of a thread block
constexpr int kLatent = 512;  // most latent columns
constexpr int kPitch =
    kLatent + 8;  // of a row in shared memory, elements: eight rows fall into distinct banks

__device__ __forceinline__ void load_matrix4(uint32_t (&r)[4], const Bits16* row) {
  const uint32_t a = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a));
}
__device__ __forceinline__ void load_matrix4_t(uint32_t (&r)[4], const Bits16* row) {
  const uint32_t a = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a));
}

}  // namespace

/// grid: (heads, ⌈latent / 256⌉, ⌈rows / 8·NT⌉), 4 warps of 64 latents each.
template <int NT>
__device__ __forceinline__ void absorb_rows(const AbsorbParams& p) {
  begin_kernel();
  const int head = blockIdx.x, lane = threadIdx.x & 31;
  const int group = blockIdx.y * 4 + (threadIdx.x >> 5), groups = (p.latent + 63) / 64;
  if (group >= groups) return;
  const Bits16* q[NT];
#pragma unroll
  for (int t = 0; t < NT; ++t) {
    const int row = min(static_cast<int>(blockIdx.z * NT + t) * 8 + (lane >> 2), p.rows - 1);
    q[t] = p.x + (static_cast<int64_t>(row) * p.heads + head) * p.qk_dim + 2 * (lane & 3);
  }
  const int first_tile = head * (p.qk_dim + p.v_dim) / 16;
  const uint8_t* tile = p.kv_b + (static_cast<int64_t>(first_tile) * groups + group) * 2048 + 16 * lane;
  float acc[4][NT][4] = {};
#pragma unroll 2
  for (int i = 0; i < p.qk_dim / 16; ++i) {
    uint4 w[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) w[j] = *reinterpret_cast<const uint4*>(tile + 512 * j);
    tile += static_cast<int64_t>(groups) * 2048;
    uint32_t b0[NT], b1[NT];
#pragma unroll
    for (int t = 0; t < NT; ++t) {
      b0[t] = *reinterpret_cast<const uint32_t*>(q[t] + 16 * i);
      b1[t] = *reinterpret_cast<const uint32_t*>(q[t] + 16 * i + 8);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t a[4] = {transpose8(w[j].x), transpose8(w[j].z), transpose8(w[j].y), transpose8(w[j].w)};
#pragma unroll
      for (int t = 0; t < NT; ++t) mma<false>(acc[j][t], a, b0[t], b1[t]);
    }
  }
  // Slot g of step j is latent 64·group + 32·(j/2) + 8·(g/2) + 4·(j%2) + g%2, slot g + 8 two further.
  const int g = lane >> 2;
#pragma unroll
  for (int t = 0; t < NT; ++t)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = (blockIdx.z * NT + t) * 8 + 2 * (lane & 3) + (r & 1);
        const int latent = 64 * group + 32 * (j >> 1) + 8 * (g >> 1) + 4 * (j & 1) + (g & 1) + 2 * (r >> 1);
        if (row < p.rows && latent < p.latent) {
          p.y[(static_cast<int64_t>(row) * p.heads + head) * p.latent + latent] = to_bf16(acc[j][t][r]);
        }
      }
}
extern "C" __global__ void __launch_bounds__(128) absorb_few(const __grid_constant__ AbsorbParams p) {
  absorb_rows<1>(p);
}
extern "C" __global__ void __launch_bounds__(128) absorb_many(const __grid_constant__ AbsorbParams p) {
  absorb_rows<4>(p);
}

/// grid: (heads, ⌈v_dim / 64⌉, ⌈rows / 8·NT⌉), 4 warps of 16 channels each.
template <int NT>
__device__ __forceinline__ void expand_rows(const AbsorbParams& p) {
  begin_kernel();
  const int head = blockIdx.x, lane = threadIdx.x & 31;
  const int channel0 = (blockIdx.y * 4 + (threadIdx.x >> 5)) * 16, groups = (p.latent + 63) / 64;
  if (channel0 >= p.v_dim) return;
  const Bits16* x[NT];
#pragma unroll
  for (int t = 0; t < NT; ++t) {
    const int row = min(static_cast<int>(blockIdx.z * NT + t) * 8 + (lane >> 2), p.rows - 1);
    x[t] = p.x + (static_cast<int64_t>(row) * p.heads + head) * p.latent + 8 * (lane & 3);
  }
  const int tile = (head * (p.qk_dim + p.v_dim) + p.qk_dim + channel0) / 16;
  const uint8_t* w = p.kv_b + static_cast<int64_t>(tile) * groups * 2048 + 16 * lane;
  float acc[NT][4] = {};
#pragma unroll 2
  for (int g = 0; g < groups; ++g) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = *reinterpret_cast<const uint4*>(w + g * 2048 + 512 * j);
#pragma unroll
    for (int t = 0; t < NT; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint4 b = *reinterpret_cast<const uint4*>(x[t] + 64 * g + 32 * h);
        const uint32_t a0[4] = {v[2 * h].x, v[2 * h].y, v[2 * h].z, v[2 * h].w};
        const uint32_t a1[4] = {v[2 * h + 1].x, v[2 * h + 1].y, v[2 * h + 1].z, v[2 * h + 1].w};
        mma<false>(acc[t], a0, b.x, b.y);
        mma<false>(acc[t], a1, b.z, b.w);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < NT; ++t)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = (blockIdx.z * NT + t) * 8 + 2 * (lane & 3) + (r & 1),
                channel = channel0 + (lane >> 2) + 8 * (r >> 1);
      if (row < p.rows && channel < p.v_dim) {
        p.y[(static_cast<int64_t>(row) * p.heads + head) * p.v_dim + channel] = to_bf16(acc[t][r]);
      }
    }
}
extern "C" __global__ void __launch_bounds__(128) expand_few(const __grid_constant__ AbsorbParams p) {
  expand_rows<1>(p);
}
extern "C" __global__ void __launch_bounds__(128) expand_many(const __grid_constant__ AbsorbParams p) {
  expand_rows<8>(p);
}

namespace {
struct AttendShared {
  Bits16 q[kHeads][kPitch];
  Bits16 c[kBlock][kPitch];
  float score[kHeads][kBlock + 1];
  Bits16 weight[kHeads][kBlock + 8];
  float rescale[kHeads];
  const Bits16* row[kChunk];  // the latent of each listed token
};
}  // namespace

/// grid: (chunks, rows of this pass, ⌈heads / 32⌉), 8 warps. Dynamic shared memory: AttendShared.
extern "C" __global__ void __launch_bounds__(256, 2) attend(const __grid_constant__ AttentionParams p) {
  begin_kernel();
  extern __shared__ __align__(16) uint8_t raw[];
  AttendShared& sh = *reinterpret_cast<AttendShared*>(raw);
  const int chunk = blockIdx.x, row = p.first_row + blockIdx.y, head0 = blockIdx.z * kHeads;
  const int heads = min(kHeads, p.heads - head0);
  const Segment s = segment_at(p.batch, p.batch.row_segment[row]);
  const int position = s.start + row - s.first_row;
  const int32_t* pools = p.pools + static_cast<int64_t>(row) * p.sel_stride;
  const int pooled = p.count[row] * p.kpool, tail = (position + 1) / p.kpool * p.kpool;
  const int total = pooled + position + 1 - tail;
  const int begin = chunk * kChunk, end = min(total, begin + kChunk);
  if (begin >= total) return;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int pieces = p.latent / 8;  // of a row, 16 bytes each

  for (int i = threadIdx.x; i < kHeads * pieces; i += 256) {
    const int h = i / pieces, c = i % pieces * 8;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (h < heads) {
      v = *reinterpret_cast<const uint4*>(p.q + (static_cast<int64_t>(row) * p.heads + head0 + h) * p.latent +
                                          c);
    }
    *reinterpret_cast<uint4*>(&sh.q[h][c]) = v;
  }
  for (int i = threadIdx.x; i < end - begin; i += 256) {
    const int at = begin + i;
    const int token = at < pooled ? pools[at / p.kpool] * p.kpool + at % p.kpool : tail + at - pooled;
    const int64_t page = p.batch.page_table[s.page_begin + token / kPage];
    sh.row[i] = reinterpret_cast<const Bits16*>(p.latents + page * p.page_stride) +
                static_cast<int64_t>(token % kPage) * p.latent;
  }
  float out[2][8][4] = {};
  float most[4], sum[4];  // of heads 4·warp + i
#pragma unroll
  for (int i = 0; i < 4; ++i) most[i] = -INFINITY, sum[i] = 0.0f;

  for (int block = begin; block < end; block += kBlock) {
    __syncthreads();
    for (int i = threadIdx.x; i < kBlock * pieces; i += 256) {
      const int at = block + i / pieces, c = i % pieces * 8;
      const bool valid = at < end;
      copy_async16(&sh.c[i / pieces][c], sh.row[(valid ? at : begin) - begin] + c, valid);
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();

    {  // Scores: warp w takes 16 heads (w % 2) and 8 tokens (w / 2).
      const int m = warp & 1, n = warp >> 1;
      float d[4] = {}, e[4] = {};  // two chains: even and odd steps
      const Bits16* a_row = &sh.q[16 * m + (lane & 15)][8 * (lane >> 4)];
      const Bits16* b_row = &sh.c[8 * n + (lane & 7)][8 * (lane >> 3)];
#pragma unroll 4
      for (int k = 0; k < p.latent; k += 32) {
        uint32_t a[4], b[4];
        load_matrix4(b, b_row + k);
        load_matrix4(a, a_row + k);
        mma<false>(d, a, b[0], b[1]);
        load_matrix4(a, a_row + k + 16);
        mma<false>(e, a, b[2], b[3]);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) d[r] += e[r];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int token = 8 * n + 2 * (lane & 3) + (r & 1);
        sh.score[16 * m + (lane >> 2) + 8 * (r >> 1)][token] =
            block + token < end ? d[r] * p.scale : -INFINITY;
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // softmax: a lane is a token
      const int h = 4 * warp + i;
      const float v = sh.score[h][lane];
      float top = v;
#pragma unroll
      for (int mask = 16; mask > 0; mask >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
      top = fmaxf(top, most[i]);
      const float e = expf(v - top), keep = expf(most[i] - top);
      most[i] = top;
      sum[i] = fmaf(sum[i], keep, warp_sum(e));
      sh.weight[h][lane] = to_bf16(e);
      if (lane == 0) sh.rescale[h] = keep;
    }
    __syncthreads();
    // Mix: warp w takes latents 64w to 64w + 63 of all heads.
    if (64 * warp < p.latent) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const float k0 = sh.rescale[16 * m + (lane >> 2)], k1 = sh.rescale[16 * m + (lane >> 2) + 8];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          out[m][n][0] *= k0;
          out[m][n][1] *= k0;
          out[m][n][2] *= k1;
          out[m][n][3] *= k1;
        }
      }
#pragma unroll
      for (int k = 0; k < kBlock; k += 16) {
        uint32_t a[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) load_matrix4(a[m], &sh.weight[16 * m + (lane & 15)][k + 8 * (lane >> 4)]);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
          uint32_t b[4];
          load_matrix4_t(b, &sh.c[k + (lane & 15)][64 * warp + 8 * n + 8 * (lane >> 4)]);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            mma<false>(out[m][n], a[m], b[0], b[1]);
            mma<false>(out[m][n + 1], a[m], b[2], b[3]);
          }
        }
      }
    }
  }

  const int64_t part = (static_cast<int64_t>(blockIdx.y) * p.chunks + chunk) * p.heads + head0;
  if (64 * warp < p.latent) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int r = 0; r < 4; r += 2) {
          const int h = 16 * m + (lane >> 2) + 4 * r;
          if (h < heads) {
            *reinterpret_cast<float2*>(p.part_o + (part + h) * p.latent + 64 * warp + 8 * n +
                                       2 * (lane & 3)) = make_float2(out[m][n][r], out[m][n][r + 1]);
          }
        }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int h = 4 * warp + i;
    if (lane == 0 && h < heads) {
      p.part_ml[(part + h) * 2] = most[i];
      p.part_ml[(part + h) * 2 + 1] = sum[i];
    }
  }
}

/// grid: (heads, rows of this pass).
extern "C" __global__ void __launch_bounds__(128) attend_merge(const __grid_constant__ AttentionParams p) {
  begin_kernel();
  const int head = blockIdx.x, row = p.first_row + blockIdx.y;
  const Segment s = segment_at(p.batch, p.batch.row_segment[row]);
  const int position = s.start + row - s.first_row;
  const int total = p.count[row] * p.kpool + (position + 1) % p.kpool;
  const int chunks = (total + kChunk - 1) / kChunk;
  const int64_t part = static_cast<int64_t>(blockIdx.y) * p.chunks * p.heads + head;
  float top = -INFINITY;
  for (int c = 0; c < chunks; ++c)
    top = fmaxf(top, p.part_ml[(part + static_cast<int64_t>(c) * p.heads) * 2]);
  float sum = 0.0f;
  for (int c = 0; c < chunks; ++c) {
    const float* ml = p.part_ml + (part + static_cast<int64_t>(c) * p.heads) * 2;
    sum = fmaf(expf(ml[0] - top), ml[1], sum);
  }
  for (int i = threadIdx.x; i < p.latent; i += 128) {
    float v = 0.0f;
    for (int c = 0; c < chunks; ++c) {
      const int64_t at = part + static_cast<int64_t>(c) * p.heads;
      v = fmaf(expf(p.part_ml[at * 2] - top), p.part_o[at * p.latent + i], v);
    }
    p.out[(static_cast<int64_t>(row) * p.heads + head) * p.latent + i] = to_bf16(v / sum);
  }
}

}  // namespace firesteel::cuda
