// Hyper-connections: the streams after a sublayer, the next site's mixing weights and input.
//
// hyper_mix: a block owns 64 columns of all four streams (a unit), updates them where a sublayer has ended,
// and multiplies them with the site's matrix; a warp takes a stream. hyper_finish: one block a row adds the
// units' sums in a fixed order, mixes and norms, while a warp of its own does the Sinkhorn steps. The bits
// depend on the hidden size alone. Prompts of the published size: hyper_many.cu. Other shapes and formats: a
// product and hyper_finish_any.
#include "ops/cuda/hyper.cuh"
#include "ops/cuda/weights.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMixers = 512, kMixWarps = kMixers / 32;

}  // namespace

/// grid: (hidden / 64, row tiles of 8 or fewer: a block then takes several).
extern "C" __global__ void __launch_bounds__(128) hyper_mix(const __grid_constant__ HyperMixParams p) {
  __shared__ float part[4][8][33];
  const int lane = threadIdx.x & 31, stream = threadIdx.x >> 5, unit = blockIdx.x, h = p.hidden;
  Bf16Weights w[2];  // 24 channels and 8 of padding
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    w[t].load(p.fn +
              static_cast<int64_t>(t * (h / 16) + stream * (h / 64) + unit) * Bf16Weights::kGroupBytes);
  }
  begin_kernel();
  const int tiles = (p.rows + 7) / 8;
#pragma unroll 1
  for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int row = 8 * tile + (lane >> 2), read = min(row, p.rows - 1);
    Bits16* x = p.streams + static_cast<int64_t>(read) * 4 * h + 64 * unit + 8 * (lane & 3);
    uint4 mine[2];  // the lane's two pieces of its warp's stream: the B operand as it is
    if (p.y == nullptr) {
#pragma unroll
      for (int i = 0; i < 2; ++i) mine[i] = *reinterpret_cast<const uint4*>(x + stream * h + 32 * i);
      __syncthreads();
    } else {
      uint4 in[2][4];
      float4 y[2][2];
      const float* from = p.y + static_cast<int64_t>(read) * h + 64 * unit + 8 * (lane & 3);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) in[i][j] = *reinterpret_cast<const uint4*>(x + j * h + 32 * i);
#pragma unroll
        for (int r = 0; r < 2; ++r) y[i][r] = *reinterpret_cast<const float4*>(from + 32 * i + 4 * r);
      }
      const float post = p.post[read * 4 + stream];
      float comb[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) comb[j] = p.comb[read * 16 + 4 * j + stream];
      __syncthreads();  // every warp has read what the others write
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float of[8] = {y[i][0].x, y[i][0].y, y[i][0].z, y[i][0].w,
                             y[i][1].x, y[i][1].y, y[i][1].z, y[i][1].w};
        uint32_t out[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          float a = post * of[2 * r], b = post * of[2 * r + 1];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const uint32_t v = r == 0 ? in[i][j].x : r == 1 ? in[i][j].y : r == 2 ? in[i][j].z : in[i][j].w;
            a = fmaf(comb[j], bf16_low(v), a);
            b = fmaf(comb[j], bf16_high(v), b);
          }
          out[r] = pack_bf16(a, b);
        }
        mine[i] = make_uint4(out[0], out[1], out[2], out[3]);
        if (row < p.rows) *reinterpret_cast<uint4*>(x + stream * h + 32 * i) = mine[i];
      }
    }
    float acc[2][4] = {}, squares = 0.0f;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      uint32_t f[4];
      w[t].fragment<0>(f);
      mma<false>(acc[t], f, mine[0].x, mine[0].y);
      w[t].fragment<1>(f);
      mma<false>(acc[t], f, mine[0].z, mine[0].w);
      w[t].fragment<2>(f);
      mma<false>(acc[t], f, mine[1].x, mine[1].y);
      w[t].fragment<3>(f);
      mma<false>(acc[t], f, mine[1].z, mine[1].w);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t v[4] = {mine[i].x, mine[i].y, mine[i].z, mine[i].w};
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        squares = fmaf(bf16_low(v[r]), bf16_low(v[r]), squares);
        squares = fmaf(bf16_high(v[r]), bf16_high(v[r]), squares);
      }
    }
    squares += __shfl_xor_sync(0xffffffffu, squares, 1);
    squares += __shfl_xor_sync(0xffffffffu, squares, 2);
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int r = 0; r < (t == 0 ? 4 : 2); ++r)
        part[stream][2 * (lane & 3) + (r & 1)][16 * t + (lane >> 2) + 8 * (r >> 1)] = acc[t][r];
    if ((lane & 3) == 0) part[stream][lane >> 2][24] = squares;
    __syncthreads();
    // The next tile's parts are written after the barrier that follows its reads.
    const int real = min(8, p.rows - 8 * tile);
    for (int r = stream; r < real; r += 4) {
      if (lane < 25) {
        p.sums[(static_cast<int64_t>(unit) * p.rows + 8 * tile + r) * kHyperSumPitch + lane] =
            (part[0][r][lane] + part[1][r][lane]) + (part[2][r][lane] + part[3][r][lane]);
      }
    }
  }
}

namespace {

/// A thread of the first 512 holds kPieces pieces of 8 columns of all streams.
template <int kPieces>
__device__ __forceinline__ void finish_rows(const HyperFinishParams& p) {
  __shared__ float group[kMixWarps][32], squares_of[kMixWarps];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = blockIdx.x, h = p.hidden;
  const bool mixer = warp < kMixWarps;
  float norm_weight[kPieces][8];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int c = 8 * (i * kMixers + threadIdx.x);
#pragma unroll
    for (int r = 0; r < 8; ++r) norm_weight[i][r] = mixer && c < h ? p.norm[c + r] : 0.0f;
  }
  const float scale = lane < 24 ? p.scale[lane < 4 ? 0 : lane < 8 ? 1 : 2] : 0.0f;
  const float base = lane < 24 ? p.base[lane] : 0.0f;
  begin_kernel();
  uint4 in[kPieces][4];
  if (mixer) {
    const Bits16* x = p.streams + static_cast<int64_t>(row) * 4 * h;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int c = 8 * (i * kMixers + threadIdx.x);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        in[i][j] = c < h ? *reinterpret_cast<const uint4*>(x + j * h + c) : make_uint4(0, 0, 0, 0);
      }
    }
    // A warp adds neighbouring units in ascending order, then the warps' sums meet by halves.
    constexpr int kMost = 4 * kPieces;
    const int units = h / 64, each = (units + kMixWarps - 1) / kMixWarps;
    const float* from = p.z + static_cast<int64_t>(row) * kHyperSumPitch + lane;
    float v[kMost], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int unit = warp * each + i;
      v[i] = i < each && unit < units && lane < 25
                 ? from[static_cast<int64_t>(unit) * p.rows * kHyperSumPitch]
                 : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kMost; ++i) sum += v[i];
    group[warp][lane] = sum;
  }
  __syncthreads();
  const float total = tree_sum<kMixWarps>(&group[0][lane], 32);
  const float squares = __shfl_sync(0xffffffffu, total, 24);
  const float z = total * rsqrtf(squares / (4 * h) + p.rms_eps) * scale + base;
  if (!mixer) {
    store_post_and_comb(p.out, row, z);
    return;
  }
  const float weight = sigmoid(z) + p.out.hc_eps;
  float pre[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) pre[j] = __shfl_sync(0xffffffffu, weight, j);
  float mixed[kPieces][8], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      float v = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t word = r / 2 == 0   ? in[i][j].x
                              : r / 2 == 1 ? in[i][j].y
                              : r / 2 == 2 ? in[i][j].z
                                           : in[i][j].w;
        v = fmaf(pre[j], r & 1 ? bf16_high(word) : bf16_low(word), v);
      }
      mixed[i][r] = v;
      sum = fmaf(v, v, sum);
    }
  sum = warp_sum(sum);
  if (lane == 0) squares_of[warp] = sum;
  asm volatile("bar.sync 1, %0;" ::"n"(kMixers) : "memory");  // the Sinkhorn warp goes its own way
  const float norm = rsqrtf(tree_sum<kMixWarps>(squares_of, 1) / h + p.rms_eps);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int c = 8 * (i * kMixers + threadIdx.x);
    if (c >= h) continue;
    float y[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) y[r] = mixed[i][r] * norm * norm_weight[i][r];
    *reinterpret_cast<uint4*>(p.x + static_cast<int64_t>(row) * h + c) = make_uint4(
        pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]), pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7]));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kMixers + 32)
    hyper_finish_4k(const __grid_constant__ HyperFinishParams p) {
  finish_rows<1>(p);
}
extern "C" __global__ void __launch_bounds__(kMixers + 32)
    hyper_finish_8k(const __grid_constant__ HyperFinishParams p) {
  finish_rows<2>(p);
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
