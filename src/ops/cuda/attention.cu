// Attention over selected latents in absorbed form: absorb, q̃ = W_Kᵀ q per head, and expand, o = W_V õ per
// head; what lies between is in attend.cu.
#include "ops/cuda/attend.cuh"

namespace firesteel::cuda {

/// What lane's slot r of part j of a group of 64 latents is: slot g of part j is latent 32·(j/2) + 8·(g/2) +
/// 4·(j%2) + g%2 of the group, slot g + 8 two further.
__device__ __forceinline__ int absorbed_latent(int j, int r) {
  const int g = (threadIdx.x & 31) >> 2;
  return 32 * (j >> 1) + 8 * (g >> 1) + 4 * (j & 1) + (g & 1) + 2 * (r >> 1);
}

/// grid: (heads, ⌈latent / 64⌉, ⌈rows / 8⌉), 4 warps of 16 latents each: many warps read weights at once.
extern "C" __global__ void __launch_bounds__(128) absorb_few(const __grid_constant__ AbsorbParams p) {
  begin_kernel();
  constexpr int kAhead = 16;  // steps whose loads are issued together
  const int head = blockIdx.x, lane = threadIdx.x & 31, part = threadIdx.x >> 5;
  const int group = blockIdx.y, groups = (p.latent + 63) / 64, steps = p.qk_dim / 16;
  const int from = min(static_cast<int>(blockIdx.z) * 8 + (lane >> 2), p.rows - 1);
  const Bits16* q = p.x + (static_cast<int64_t>(from) * p.heads + head) * p.qk_dim + 2 * (lane & 3);
  const int first_tile = head * (p.qk_dim + p.v_dim) / 16;
  const uint8_t* tile =
      p.kv_b + (static_cast<int64_t>(first_tile) * groups + group) * 2048 + 16 * lane + 512 * part;
  float acc[4] = {};
  for (int i0 = 0; i0 < steps; i0 += kAhead) {
    uint4 w[kAhead];
    uint32_t b0[kAhead], b1[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i0 + i >= steps) break;
      w[i] = *reinterpret_cast<const uint4*>(tile);
      tile += static_cast<int64_t>(groups) * 2048;
      b0[i] = *reinterpret_cast<const uint32_t*>(q + 16 * (i0 + i));
      b1[i] = *reinterpret_cast<const uint32_t*>(q + 16 * (i0 + i) + 8);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i0 + i >= steps) break;
      const uint32_t a[4] = {transpose8(w[i].x), transpose8(w[i].z), transpose8(w[i].y), transpose8(w[i].w)};
      mma<false>(acc, a, b0[i], b1[i]);
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int row = blockIdx.z * 8 + 2 * (lane & 3) + (r & 1), latent = 64 * group + absorbed_latent(part, r);
    if (row < p.rows && latent < p.latent)
      p.y[(static_cast<int64_t>(row) * p.heads + head) * p.latent + latent] = to_bf16(acc[r]);
  }
}

/// As absorb_few for prompts: grid (heads, ⌈latent / 256⌉, ⌈rows / 64⌉), 4 warps of 64 latents each; the
/// rows' queries are staged, 128 columns at a time.
extern "C" __global__ void __launch_bounds__(128) absorb_many(const __grid_constant__ AbsorbParams p) {
  begin_kernel();
  constexpr int kStaged = 128;
  __shared__ __align__(16) Bits16 x[64][kStaged + 8];
  const int head = blockIdx.x, lane = threadIdx.x & 31, row0 = blockIdx.z * 64;
  const int groups = (p.latent + 63) / 64,
            group = min(static_cast<int>(blockIdx.y * 4 + (threadIdx.x >> 5)), groups - 1);
  const int first_tile = head * (p.qk_dim + p.v_dim) / 16;
  const uint8_t* tile = p.kv_b + (static_cast<int64_t>(first_tile) * groups + group) * 2048 + 16 * lane;
  float acc[4][8][4] = {};
  for (int k0 = 0; k0 < p.qk_dim; k0 += kStaged) {
    const int columns = min(kStaged, p.qk_dim - k0), pieces = columns / 8;
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * pieces; i += 128) {
      const int r = i / pieces, c = i % pieces * 8, row = min(row0 + r, p.rows - 1);
      copy_async16(&x[r][c], p.x + (static_cast<int64_t>(row) * p.heads + head) * p.qk_dim + k0 + c, true);
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll 2
    for (int k = 0; k < columns; k += 16) {
      uint4 w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = *reinterpret_cast<const uint4*>(tile + 512 * j);
      tile += static_cast<int64_t>(groups) * 2048;
      uint32_t b[4][4];  // of rows 16t to 16t + 15
#pragma unroll
      for (int t = 0; t < 4; ++t)
        load_matrix4(b[t], &x[16 * t + (lane & 7) + 8 * (lane >> 4)][k + 8 * ((lane >> 3) & 1)]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t a[4] = {transpose8(w[j].x), transpose8(w[j].z), transpose8(w[j].y),
                               transpose8(w[j].w)};
#pragma unroll
        for (int t = 0; t < 8; ++t)
          mma<false>(acc[j][t], a, b[t / 2][2 * (t & 1)], b[t / 2][2 * (t & 1) + 1]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < 8; ++t)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = row0 + 8 * t + 2 * (lane & 3) + (r & 1), latent = 64 * group + absorbed_latent(j, r);
        if (row < p.rows && latent < p.latent)
          p.y[(static_cast<int64_t>(row) * p.heads + head) * p.latent + latent] = to_bf16(acc[j][t][r]);
      }
}

/// grid: (heads, ⌈v_dim / 64·C⌉, ⌈rows / 8·NT⌉), 4 warps of 16·C channels each.
template <int NT, int C>
__device__ __forceinline__ void expand_rows(const AbsorbParams& p) {
  begin_kernel();
  const int head = blockIdx.x, lane = threadIdx.x & 31;
  const int channel0 = (blockIdx.y * 4 + (threadIdx.x >> 5)) * 16 * C, groups = (p.latent + 63) / 64;
  if (channel0 >= p.v_dim) return;
  const Bits16* x[NT];
#pragma unroll
  for (int t = 0; t < NT; ++t) {
    const int row = min(static_cast<int>(blockIdx.z * NT + t) * 8 + (lane >> 2), p.rows - 1);
    x[t] = p.x + (static_cast<int64_t>(row) * p.heads + head) * p.latent + 8 * (lane & 3);
  }
  const uint8_t* w[C];
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const int channel = min(channel0 + 16 * c, p.v_dim - 16);
    w[c] = p.kv_b +
           static_cast<int64_t>((head * (p.qk_dim + p.v_dim) + p.qk_dim + channel) / 16) * groups * 2048 +
           16 * lane;
  }
  float acc[C][NT][4] = {};
  constexpr int kAhead = NT == 1 ? 4 : 1;  // groups whose loads are issued together
  for (int g0 = 0; g0 < groups; g0 += kAhead) {
    uint4 v[kAhead][C][4], b[kAhead][NT][2];
#pragma unroll
    for (int g = 0; g < kAhead; ++g) {
      if (g0 + g >= groups) break;
#pragma unroll
      for (int c = 0; c < C; ++c)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          v[g][c][j] = *reinterpret_cast<const uint4*>(w[c] + (g0 + g) * 2048 + 512 * j);
#pragma unroll
      for (int t = 0; t < NT; ++t) {
        b[g][t][0] = *reinterpret_cast<const uint4*>(x[t] + 64 * (g0 + g));
        b[g][t][1] = *reinterpret_cast<const uint4*>(x[t] + 64 * (g0 + g) + 32);
      }
    }
#pragma unroll
    for (int g = 0; g < kAhead; ++g) {
      if (g0 + g >= groups) break;
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int c = 0; c < C; ++c) {
          const uint4 lo = v[g][c][2 * h], hi = v[g][c][2 * h + 1];
          const uint32_t a0[4] = {lo.x, lo.y, lo.z, lo.w}, a1[4] = {hi.x, hi.y, hi.z, hi.w};
#pragma unroll
          for (int t = 0; t < NT; ++t) {
            mma<false>(acc[c][t], a0, b[g][t][h].x, b[g][t][h].y);
            mma<false>(acc[c][t], a1, b[g][t][h].z, b[g][t][h].w);
          }
        }
    }
  }
#pragma unroll
  for (int t = 0; t < NT; ++t)
#pragma unroll
    for (int c = 0; c < C; ++c)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = (blockIdx.z * NT + t) * 8 + 2 * (lane & 3) + (r & 1),
                  channel = channel0 + 16 * c + (lane >> 2) + 8 * (r >> 1);
        if (row < p.rows && channel < p.v_dim)
          p.y[(static_cast<int64_t>(row) * p.heads + head) * p.v_dim + channel] = to_bf16(acc[c][t][r]);
      }
}
extern "C" __global__ void __launch_bounds__(128) expand_few(const __grid_constant__ AbsorbParams p) {
  expand_rows<1, 1>(p);
}
extern "C" __global__ void __launch_bounds__(128) expand_many(const __grid_constant__ AbsorbParams p) {
  expand_rows<8, 2>(p);
}

}  // namespace firesteel::cuda
