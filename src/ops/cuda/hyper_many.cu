// Hyper-connections of prompts at the published hidden size: the streams after a sublayer, the next site's
// mixing weights and its input in one launch, the streams read and written once.
//
// Sixteen blocks, 256 columns each, share 32 rows. A warp holds 64 columns (a unit) of all four streams of 16
// rows in registers from the update to the mixing. In between the blocks of the rows wait for each other
// twice: for the sums of the site's product, and for the squares that the norm takes. Every sum has the order
// of hyper_mix and hyper_finish, so the bits are theirs.
//
// Blocks begin in the order of their numbers, so only the last sixteen in flight can lack a neighbour, and
// the others end without them.
#include "ops/cuda/hyper.cuh"
#include "ops/cuda/weights.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kHidden = kHyperManyHidden, kRows = kHyperManyRows, kBlocks = kHyperManyBlocks;
constexpr int kThreads = 256, kColumns = kHidden / kBlocks, kUnits = kColumns / 64;
constexpr int kSums = kHyperManySums, kSquares = 4;  // the products for the input, the squares, the others
static_assert(kColumns == 256 && kUnits * 2 == kThreads / 32);

/// Where channel c < 24, or the squares (24), lies in a row's sums: what every block reads comes first.
__device__ __forceinline__ int place_of(int c) { return c < 4 ? c : c == 24 ? kSquares : c + 4; }

__device__ unsigned arrived[kHyperManyTiles];  // zero between launches

/// By one thread, after a barrier: what this block wrote is there for the others.
__device__ __forceinline__ void arrive(unsigned* at) {
  __threadfence();
  atomicInc(at, 3 * kBlocks - 1);  // the third time ends the launch's use of it
}
/// What the others wrote before they arrived is then read past L1.
__device__ __forceinline__ void wait_for(const unsigned* at, unsigned count) {
  unsigned now;
  do {
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(now) : "l"(at) : "memory");
  } while (now < count);
  __threadfence();
}

struct Update {  // before the products
  float y[kRows][kColumns + 4];
  float weights[kRows][20];  // comb, post
};
struct Sums {
  float unit[kUnits][kRows][kSums + 1];
  float squares[kRows][kColumns / 8 + 1];  // of eight columns
  float pre[kRows][4], norm[kRows];
};

__device__ __forceinline__ uint32_t& word(uint4& v, int r) {
  return r == 0 ? v.x : r == 1 ? v.y : r == 2 ? v.z : v.w;
}

/// One stream's fragments of the lane's products; neighbouring warps read the same.
__device__ __forceinline__ void load_matrix(uint4 (&w)[2][4], const uint8_t* fn, int stream, int unit) {
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const uint8_t* group = fn + static_cast<int64_t>(t * (kHidden / 16) + stream * (kHidden / 64) + unit) *
                                    Bf16Weights::kGroupBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      w[t][i] = __ldg(reinterpret_cast<const uint4*>(group + 512 * i) + (threadIdx.x & 31));
  }
}

}  // namespace

/// grid: 16 · ⌈rows / 32⌉.
extern "C" __global__ void __launch_bounds__(kThreads, 2)
    hyper_many(const __grid_constant__ HyperManyParams p) {
  __shared__ __align__(16) union {
    Update update;
    Sums sums;
  } at;
  const HyperMixParams& m = p.mix;
  const HyperFinishParams& f = p.finish;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int tile = blockIdx.x / kBlocks, part = blockIdx.x % kBlocks;
  const int unit = warp % kUnits, row0 = 16 * (warp / kUnits), q = lane & 3;
  const int first = kRows * tile, last = m.rows - 1;
  const int column = kColumns * part + 64 * unit + 8 * q;  // and 32 further
  begin_kernel<false>();

  if (m.y != nullptr) {
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      const int row = 4 * i + thread / 64, c = thread % 64 * 4;
      copy_async16(&at.update.y[row][c],
                   m.y + static_cast<int64_t>(min(first + row, last)) * kHidden + kColumns * part + c, true);
    }
    if (thread < 5 * kRows) {
      const int row = thread / 5, piece = thread % 5, from = min(first + row, last);
      copy_async16(&at.update.weights[row][4 * piece],
                   piece < 4 ? m.comb + from * 16 + 4 * piece : m.post + from * 4, true);
    }
    copy_async_commit();
  }
  // Streams of rows row0 + 8·t + lane/4: the B operand as it is.
  uint4 s[2][4][2];
  Bits16* x[2];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const int row = min(first + row0 + 8 * t + (lane >> 2), last);
    x[t] = m.streams + static_cast<int64_t>(row) * 4 * kHidden + column;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) s[t][j][i] = *reinterpret_cast<const uint4*>(x[t] + j * kHidden + 32 * i);
  }
  if (m.y != nullptr) {
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int row = row0 + 8 * t + (lane >> 2);
      const float4* weights = reinterpret_cast<const float4*>(at.update.weights[row]);
      const float4 post4 = weights[4];
      const float post[4] = {post4.x, post4.y, post4.z, post4.w};
      float comb[4][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 c = weights[j];
        comb[j][0] = c.x, comb[j][1] = c.y, comb[j][2] = c.z, comb[j][3] = c.w;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float4 y4 =
              *reinterpret_cast<const float4*>(&at.update.y[row][64 * unit + 8 * q + 32 * i + 4 * half]);
          const float y[4] = {y4.x, y4.y, y4.z, y4.w};
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float low[4], high[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              low[j] = bf16_low(word(s[t][j][i], 2 * half + r));
              high[j] = bf16_high(word(s[t][j][i], 2 * half + r));
            }
#pragma unroll
            for (int k = 0; k < 4; ++k) {
              float a = post[k] * y[2 * r], b = post[k] * y[2 * r + 1];
#pragma unroll
              for (int j = 0; j < 4; ++j) {
                a = fmaf(comb[j][k], low[j], a);
                b = fmaf(comb[j][k], high[j], b);
              }
              word(s[t][k][i], 2 * half + r) = pack_bf16(a, b);
            }
          }
        }
      if (first + row <= last) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
          for (int i = 0; i < 2; ++i) *reinterpret_cast<uint4*>(x[t] + k * kHidden + 32 * i) = s[t][k][i];
      }
    }
    __syncthreads();
  }

  // Products and squares of the unit: streams 0 and 1, 2 and 3, then both.
  {
    float total[2][6], squares[2];
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      float sum[2][6], of_pair[2];
#pragma unroll
      for (int in = 0; in < 2; ++in) {
        const int j = 2 * pair + in;
        uint4 w[2][4];
        load_matrix(w, m.fn, j, kUnits * part + unit);
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          float acc[2][4] = {};
#pragma unroll
          for (int c = 0; c < 2; ++c)
#pragma unroll
            for (int step = 0; step < 4; ++step) {
              const uint32_t a[4] = {w[c][step].x, w[c][step].y, w[c][step].z, w[c][step].w};
              mma<false>(acc[c], a, word(s[t][j][step / 2], step % 2 * 2),
                         word(s[t][j][step / 2], step % 2 * 2 + 1));
            }
          float square = 0.0f;
#pragma unroll
          for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              const uint32_t v = word(s[t][j][i], r);
              square = fmaf(bf16_low(v), bf16_low(v), square);
              square = fmaf(bf16_high(v), bf16_high(v), square);
            }
          square += __shfl_xor_sync(0xffffffffu, square, 1);
          square += __shfl_xor_sync(0xffffffffu, square, 2);
          of_pair[t] = in == 0 ? square : of_pair[t] + square;
#pragma unroll
          for (int r = 0; r < 6; ++r) {
            const float v = r < 4 ? acc[0][r] : acc[1][r - 4];
            sum[t][r] = in == 0 ? v : sum[t][r] + v;
          }
        }
      }
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        squares[t] = pair == 0 ? of_pair[t] : squares[t] + of_pair[t];
#pragma unroll
        for (int r = 0; r < 6; ++r) total[t][r] = pair == 0 ? sum[t][r] : total[t][r] + sum[t][r];
      }
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int r = 0; r < 6; ++r)
        at.sums.unit[unit][row0 + 8 * t + 2 * q + (r & 1)][place_of((lane >> 2) + 8 * (r >> 1))] =
            total[t][r];
      if (q == 0) at.sums.unit[unit][row0 + 8 * t + (lane >> 2)][kSquares] = squares[t];
    }
  }
  __syncthreads();
  float* all_sums = m.sums + static_cast<int64_t>(tile) * kBlocks * kRows * kSums;
#pragma unroll
  for (int i = 0; i < kRows * kSums / kThreads; ++i) {
    const int row = (i * kThreads + thread) / kSums, c = thread % kSums;
    float sum = 0.0f;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) sum += at.sums.unit[u][row][c];
    all_sums[(part * kRows + row) * kSums + c] = sum;
  }
  unsigned* const here = &arrived[tile];
  __syncthreads();
  if (thread == 0) {
    arrive(here);
    wait_for(here, kBlocks);
  }
  __syncthreads();

  const auto total_of = [&](int row, int c) {
    float v[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) v[b] = __ldcg(all_sums + (b * kRows + row) * kSums + c);
    return tree_sum<kBlocks>(v, 1);
  };
  const auto scaled = [&](float total, float squares, float scale, float base) {
    return total * rsqrtf(squares / (4 * kHidden) + f.rms_eps) * scale + base;
  };
  {
    const int row = thread / 8, c = thread % 8;
    const float total = c <= kSquares ? total_of(row, c) : 0.0f;
    const float squares = __shfl_sync(0xffffffffu, total, (lane & 24) + kSquares);
    if (c < 4) at.sums.pre[row][c] = sigmoid(scaled(total, squares, f.scale[0], f.base[c])) + f.out.hc_eps;
  }
  __syncthreads();
  float mixed[2][2][8];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const int row = row0 + 8 * t + (lane >> 2);
    const float4 pre4 = *reinterpret_cast<const float4*>(at.sums.pre[row]);
    const float pre[4] = {pre4.x, pre4.y, pre4.z, pre4.w};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = 0.0f;
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        float v = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t two = word(s[t][j][i], r / 2);
          v = fmaf(pre[j], r & 1 ? bf16_high(two) : bf16_low(two), v);
        }
        mixed[t][i][r] = v;
        sum = fmaf(v, v, sum);
      }
      at.sums.squares[row][8 * unit + 4 * i + q] = sum;
    }
  }
  __syncthreads();
  float* all_squares = p.squares + static_cast<int64_t>(tile) * kRows * kBlocks;
#pragma unroll
  for (int i = 0; i < kRows * 32 / kThreads; ++i) {
    const int row = kRows * 32 / kThreads * warp + i;
    const float sum = warp_sum(at.sums.squares[row][lane]);
    if (lane == 0) all_squares[row * kBlocks + part] = sum;
  }
  __syncthreads();
  if (thread == kThreads - 1) {
    arrive(here);
    wait_for(here, 2 * kBlocks);
    atomicInc(here, 3 * kBlocks - 1);
  }
  // The rest of a site's weights, two rows a block, meanwhile.
  if (const int row = kRows / kBlocks * part + warp; warp < kRows / kBlocks && first + row <= last) {
    const float total = lane < 25 ? total_of(row, place_of(lane)) : 0.0f;
    const float squares = __shfl_sync(0xffffffffu, total, 24);
    const float scale = lane < 24 ? f.scale[lane < 4 ? 0 : lane < 8 ? 1 : 2] : 0.0f;
    store_post_and_comb(f.out, first + row, scaled(total, squares, scale, lane < 24 ? f.base[lane] : 0.0f));
  }
  float4 weight[2][2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      weight[i][r] = __ldg(reinterpret_cast<const float4*>(f.norm + column + 32 * i + 4 * r));
  __syncthreads();
  end_kernel();
  if (thread < kRows) {
    float v[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) v[b] = __ldcg(all_squares + thread * kBlocks + b);
    at.sums.norm[thread] = rsqrtf(tree_sum<kBlocks>(v, 1) / kHidden + f.rms_eps);
  }
  __syncthreads();
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const int row = row0 + 8 * t + (lane >> 2);
    if (first + row > last) continue;
    const float norm = at.sums.norm[row];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 w0 = weight[i][0], w1 = weight[i][1];
      const float of[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
      float y[8];
#pragma unroll
      for (int r = 0; r < 8; ++r) y[r] = mixed[t][i][r] * norm * of[r];
      *reinterpret_cast<uint4*>(f.x + static_cast<int64_t>(first + row) * kHidden + column + 32 * i) =
          make_uint4(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]), pack_bf16(y[4], y[5]),
                     pack_bf16(y[6], y[7]));
    }
  }
}

}  // namespace firesteel::cuda
