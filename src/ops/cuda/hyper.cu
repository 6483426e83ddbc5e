// Hyper-connections: the streams after a sublayer, the next site's mixing weights and input.
//
// hyper_site does both in one launch; what its blocks must tell each other goes through the shared memory of
// a cluster. The bits depend on the hidden size alone. Other shapes, formats and GPUs without clusters:
// hyper_post, a product and hyper_finish_any.
#include "ops/cuda/common.cuh"
#include "ops/cuda/layer_params.h"
#include "ops/cuda/weights.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kThreads = 256;

/// s := 1/s, with one reciprocal: the four are far from the ends of fp32's range.
__device__ __forceinline__ void invert(float (&s)[4]) {
  const float ab = s[0] * s[1], cd = s[2] * s[3];
  const float r = __fdividef(1.0f, ab * cd);
  const float of_ab = r * cd, of_cd = r * ab;
  const float a = of_ab * s[1], b = of_ab * s[0], c = of_cd * s[3], d = of_cd * s[2];
  s[0] = a, s[1] = b, s[2] = c, s[3] = d;
}

/// One warp, lane c < 24 with z of channel c: post and the doubly normalised comb of a row.
__device__ __forceinline__ void store_post_and_comb(const HyperOut& p, int row, float z) {
  const int lane = threadIdx.x & 31;
  if (lane >= 4 && lane < 8) p.post[row * 4 + lane - 4] = 2.0f * sigmoid(z);
  // Every lane holds the whole matrix M[i][j]: no lane waits for another in the 20 rounds.
  float m[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) m[i][j] = __shfl_sync(0xffffffffu, z, 8 + 4 * i + j);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float top = fmaxf(fmaxf(m[i][0], m[i][1]), fmaxf(m[i][2], m[i][3]));
#pragma unroll
    for (int j = 0; j < 4; ++j) m[i][j] = expf(m[i][j] - top);
  }
  const auto scale_rows = [&](float eps) {
    float s[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = ((m[i][0] + m[i][1]) + (m[i][2] + m[i][3])) + eps;
    invert(s);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) m[i][j] *= s[i];
  };
  const auto scale_columns = [&](float eps) {
    float s[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) s[j] = ((m[0][j] + m[1][j]) + (m[2][j] + m[3][j])) + eps;
    invert(s);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) m[i][j] *= s[j];
  };
  scale_rows(0.0f);
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) m[i][j] += p.hc_eps;
  scale_columns(p.hc_eps);
#pragma unroll 1
  for (int i = 1; i < p.iters; ++i) {
    // The steps converge: where the rows' sums are all one (less eps) to rounding, so are those that would
    // follow.
    float off = 0.0f;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float sum = (m[r][0] + m[r][1]) + (m[r][2] + m[r][3]);
      off = fmaxf(off, fabsf(sum - (1.0f - p.hc_eps)));
    }
    if (off < 0x1p-22f) break;
    scale_rows(p.hc_eps);
    scale_columns(p.hc_eps);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (lane == 4 * i + j) p.comb[row * 16 + lane] = m[i][j];
}

// Cluster barriers and stores to another block's shared memory.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void store_to_rank(float* shared, int rank, float v) {
#if __CUDA_ARCH__ >= 900
  const uint32_t mine = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  uint32_t theirs;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(theirs), "f"(v) : "memory");
#endif
}

__device__ __forceinline__ float sum_of_eight(const float* v, int stride) {
  return ((v[0] + v[stride]) + (v[2 * stride] + v[3 * stride])) +
         ((v[4 * stride] + v[5 * stride]) + (v[6 * stride] + v[7 * stride]));
}

/// 16 columns of a stream as a lane holds them: columns 8·(lane % 4) and 32 further of its warp's 64.
struct Pieces {
  uint4 v[2];
};
__device__ __forceinline__ uint32_t word(const Pieces& p, int i) {
  const uint4& v = p.v[i / 4];
  return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
}

}  // namespace

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
#define FS_CLUSTER __cluster_dims__(kHyperCluster, 1, 1)
#else
#define FS_CLUSTER  // never launched there
#endif

/// grid: (8, clusters). A cluster takes eight rows at a time, a block an eighth of the columns of all
/// streams, a warp 64 of them; the ninth warp does the Sinkhorn steps of the row whose number is the block's.
extern "C" __global__ void FS_CLUSTER __launch_bounds__(kHyperThreads, 1)
    hyper_site(const __grid_constant__ HyperSiteParams p) {
  constexpr int kRanks = kHyperCluster, kPitch = 36;
  __shared__ float part[8][8][33];           // [warp][row][channel], of this block
  __shared__ float sums[kRanks][8][kPitch];  // [rank][row][channel]: 24 products, the squares
  __shared__ __align__(
      16) float mixed_of[8][kRanks * 8 + 4];  // [row][rank, warp]: squares of the mixed input
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rank = blockIdx.x, h = p.hidden;
  const int units = h / (64 * kRanks);  // of a block: at most its eight warps
  const int column = (rank * units + warp) * 64 + 8 * (lane & 3);
  const bool active = warp < units;
  Bf16Weights w[4][2];  // 24 channels and 8 of padding
  if (active) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        w[j][t].load(p.fn + (static_cast<int64_t>(t) * (h / 16) + j * (h / 64) + column / 64) *
                                Bf16Weights::kGroupBytes);
      }
  }
  const float scale = lane < 24 ? p.scale[lane < 4 ? 0 : lane < 8 ? 1 : 2] : 0.0f;
  const float base = lane < 24 ? p.base[lane] : 0.0f;
  const float pre_scale = p.scale[0], pre_base = p.base[lane & 3];
  if (active && lane < 2)
    prefetch_l2(reinterpret_cast<const uint8_t*>(p.norm + column / 64 * 64 + 32 * lane));
  for (int i = threadIdx.x; i < 8 * (kRanks * 8 + 4); i += kHyperThreads) (&mixed_of[0][0])[i] = 0.0f;
  __syncthreads();
  cluster_arrive();
  begin_kernel();
  const int tiles = (p.rows + 7) / 8;
  bool started = false;
#pragma unroll 1
  for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int row = 8 * tile + (lane >> 2), read = min(row, p.rows - 1);
    Pieces x[4];
    if (active) {
      Bits16* from = p.streams + static_cast<int64_t>(read) * 4 * h + column;
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) x[j].v[i] = *reinterpret_cast<const uint4*>(from + j * h + 32 * i);
      if (p.y != nullptr) {
        const float* y = p.y + static_cast<int64_t>(read) * h + column;
        float4 of[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) of[i] = *reinterpret_cast<const float4*>(y + i / 2 * 32 + i % 2 * 4);
        const float4 post = *reinterpret_cast<const float4*>(p.out.post + read * 4);
        float4 comb[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
          comb[j] = *reinterpret_cast<const float4*>(p.out.comb + read * 16 + 4 * j);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float y0 = i % 2 ? of[i / 2].z : of[i / 2].x, y1 = i % 2 ? of[i / 2].w : of[i / 2].y;
          uint32_t out[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const auto pick = [&](const float4& v) {
              return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
            };
            float a = pick(post) * y0, b = pick(post) * y1;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              a = fmaf(pick(comb[j]), bf16_low(word(x[j], i)), a);
              b = fmaf(pick(comb[j]), bf16_high(word(x[j], i)), b);
            }
            out[k] = pack_bf16(a, b);
          }
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            uint4& v = x[k].v[i / 4];
            (i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w) = out[k];
          }
        }
        if (row < p.rows) {
#pragma unroll
          for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i) *reinterpret_cast<uint4*>(from + j * h + 32 * i) = x[j].v[i];
        }
      }
      // A chain of four products a stream; the streams are added by halves.
      float acc[4][2][4] = {}, squares = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          uint32_t f[4];
          w[j][t].fragment<0>(f);
          mma<false>(acc[j][t], f, x[j].v[0].x, x[j].v[0].y);
          w[j][t].fragment<1>(f);
          mma<false>(acc[j][t], f, x[j].v[0].z, x[j].v[0].w);
          w[j][t].fragment<2>(f);
          mma<false>(acc[j][t], f, x[j].v[1].x, x[j].v[1].y);
          w[j][t].fragment<3>(f);
          mma<false>(acc[j][t], f, x[j].v[1].z, x[j].v[1].w);
        }
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const uint32_t v = word(x[j], i);
          squares = fmaf(bf16_low(v), bf16_low(v), squares);
          squares = fmaf(bf16_high(v), bf16_high(v), squares);
        }
      squares += __shfl_xor_sync(0xffffffffu, squares, 1);
      squares += __shfl_xor_sync(0xffffffffu, squares, 2);
#pragma unroll
      for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int r = 0; r < (t == 0 ? 4 : 2); ++r)
          part[warp][2 * (lane & 3) + (r & 1)][16 * t + (lane >> 2) + 8 * (r >> 1)] =
              (acc[0][t][r] + acc[1][t][r]) + (acc[2][t][r] + acc[3][t][r]);
      if ((lane & 3) == 0) part[warp][lane >> 2][24] = squares;
    }
    __syncthreads();
    if (!started) cluster_wait();  // every block of the cluster runs
    started = true;
    if (lane < 25) {
      float sum = part[0][warp][lane];
      for (int u = 1; u < units; ++u) sum += part[u][warp][lane];
#pragma unroll
      for (int r = 0; r < kRanks; ++r) store_to_rank(&sums[rank][warp][lane], r, sum);
    }
    cluster_arrive();
    cluster_wait();
    // Lane t of a row's quad has its weight t.
    const float* const of_row = &sums[0][lane >> 2][0];
    const float squares = sum_of_eight(of_row + 24, 8 * kPitch);
    const float z = sum_of_eight(of_row + (lane & 3), 8 * kPitch) * rsqrtf(squares / (4 * h) + p.rms_eps);
    const float weight = sigmoid(z * pre_scale + pre_base) + p.out.hc_eps;
    float pre[4], mixed[16], sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) pre[j] = __shfl_sync(0xffffffffu, weight, (lane & ~3) | j);
    if (active) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float a = 0.0f, b = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          a = fmaf(pre[j], bf16_low(word(x[j], i)), a);
          b = fmaf(pre[j], bf16_high(word(x[j], i)), b);
        }
        mixed[2 * i] = a, mixed[2 * i + 1] = b;
        sum = fmaf(a, a, sum);
        sum = fmaf(b, b, sum);
      }
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        store_to_rank(&mixed_of[lane >> 2][rank * 8 + warp], (lane & 3) + 4 * i, sum);
    }
    cluster_arrive();
    if (warp == 0) {  // the row whose number is the block's: nothing waits for it
      const int own = 8 * tile + rank;
      const float total = sum_of_eight(&sums[0][rank][min(lane, 24)], 8 * kPitch);
      const float of_own = __shfl_sync(0xffffffffu, total, 24);
      if (own < p.rows) {
        store_post_and_comb(p.out, own, total * rsqrtf(of_own / (4 * h) + p.rms_eps) * scale + base);
      }
    }
    float4 norm_weight[4];
    if (active) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        norm_weight[i] = *reinterpret_cast<const float4*>(p.norm + column + i / 2 * 32 + i % 2 * 4);
    }
    __syncwarp();
    cluster_wait();
    const float* const squares_of = &mixed_of[lane >> 2][16 * (lane & 3)];
    float all = sum_of_eight(squares_of, 1) + sum_of_eight(squares_of + 8, 1);
    all += __shfl_xor_sync(0xffffffffu, all, 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    const float norm = rsqrtf(all / h + p.rms_eps);
    if (active && row < p.rows) {
      uint32_t out[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float w0 = i % 2 ? norm_weight[i / 2].z : norm_weight[i / 2].x;
        const float w1 = i % 2 ? norm_weight[i / 2].w : norm_weight[i / 2].y;
        out[i] = pack_bf16(mixed[2 * i] * norm * w0, mixed[2 * i + 1] * norm * w1);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<uint4*>(p.x + static_cast<int64_t>(row) * h + column + 32 * i) =
            make_uint4(out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]);
      }
    }
  }
}

/// Any hidden size, from the unit sums of a product. Dynamic shared memory: hidden floats.
extern "C" __global__ void __launch_bounds__(kThreads)
    hyper_finish_any(const __grid_constant__ HyperFinishParams p) {
  extern __shared__ float mixed[];
  begin_kernel();
  __shared__ float shared[32], pre_of[4];
  const int row = blockIdx.x, h = p.hidden;
  const Bits16* x = p.streams + static_cast<int64_t>(row) * 4 * h;
  float squares = 0.0f;
  for (int c = threadIdx.x; c < 4 * h; c += kThreads)
    squares = fmaf(from_bf16(x[c]), from_bf16(x[c]), squares);
  squares = block_sum<kThreads>(squares, shared);
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    float z = 0.0f;
    if (lane < 24) {
      for (int s = 0; s < p.slices; ++s) {
        float sum = 0.0f;
        for (int u = 0; u < p.unit_span; ++u)
          sum += p.z[(s * p.unit_span + u) * p.unit_stride + row * 24 + lane];
        z += sum;
      }
      z = z * rsqrtf(squares / (4 * h) + p.rms_eps) * p.scale[lane < 4 ? 0 : lane < 8 ? 1 : 2] + p.base[lane];
    }
    if (lane < 4) pre_of[lane] = sigmoid(z) + p.out.hc_eps;
    store_post_and_comb(p.out, row, z);
  }
  __syncthreads();
  float sum = 0.0f;
  for (int c = threadIdx.x; c < h; c += kThreads) {
    float v = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) v = fmaf(pre_of[j], from_bf16(x[j * h + c]), v);
    mixed[c] = v;
    sum = fmaf(v, v, sum);
  }
  sum = block_sum<kThreads>(sum, shared);
  const float norm = rsqrtf(sum / h + p.rms_eps);
  for (int c = threadIdx.x; c < h; c += kThreads) {
    p.x[static_cast<int64_t>(row) * h + c] = to_bf16(mixed[c] * norm * p.norm[c]);
  }
}

/// A thread takes two columns; an odd hidden size goes column by column.
extern "C" __global__ void __launch_bounds__(kThreads) hyper_post(const __grid_constant__ HyperPostParams p) {
  begin_kernel();
  const int row = blockIdx.y, h = p.hidden;
  const int c = 2 * (blockIdx.x * kThreads + threadIdx.x);
  if (c >= h) return;
  Bits16* x = p.streams + static_cast<int64_t>(row) * 4 * h + c;
  const float* y = p.y + static_cast<int64_t>(row) * h + c;
  const bool pairs = (h & 1) == 0;
  const int width = pairs || c + 1 < h ? 2 : 1;
  float in[4][2];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (pairs) {
      const uint32_t v = *reinterpret_cast<const uint32_t*>(x + j * h);
      in[j][0] = bf16_low(v);
      in[j][1] = bf16_high(v);
    } else {
      in[j][0] = from_bf16(x[j * h]);
      in[j][1] = width == 2 ? from_bf16(x[j * h + 1]) : 0.0f;
    }
  }
  const float y0 = y[0], y1 = width == 2 ? y[1] : 0.0f;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float post = p.post[row * 4 + k];
    float a = post * y0, b = post * y1;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float comb = p.comb[row * 16 + 4 * j + k];
      a = fmaf(comb, in[j][0], a);
      b = fmaf(comb, in[j][1], b);
    }
    if (pairs) {
      *reinterpret_cast<uint32_t*>(x + k * h) = pack_bf16(a, b);
    } else {
      x[k * h] = to_bf16(a);
      if (width == 2) x[k * h + 1] = to_bf16(b);
    }
  }
}

}  // namespace firesteel::cuda
