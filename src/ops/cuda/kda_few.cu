// The linear-attention layer between its projections for few rows: one block a sequence and head does it all.
#include "ops/cuda/kda.cuh"

namespace firesteel::cuda {

namespace {

constexpr int kFewThreads = 512, kFewWarps = kFewThreads / 32;
static_assert(kFewWarps * kWarpColumns == kDim && kFewWarps == 2 * kKdaFewRows);

struct FewShared {
  float q[kKdaFewRows][kDim], k[kKdaFewRows][kDim], v[kKdaFewRows][kDim], decay[kKdaFewRows][kDim],
      b[kKdaFewRows][kDim], o[kKdaFewRows][kDim];
  Bits16 in[4][3 + kKdaFewRows][kDim];  // of q, k, v: history and rows; of the gates: rows
  Bits16 g[kKdaFewRows][kDim];
  float conv[3 * kDim][4], dt_bias[kDim], o_norm[kDim], beta[kKdaFewRows], rate;
};

}  // namespace

/// grid: (heads, segments). Heads of 128, four taps, at most kKdaFewRows rows a segment.
///
/// The state's registers leave few for the rest, so what a segment reads goes to shared memory.
extern "C" __global__ void __launch_bounds__(kFewThreads, 2) kda_few(const __grid_constant__ KdaParams p) {
  __shared__ __align__(16) FewShared at;
  const int head = blockIdx.x, all = p.heads * kDim, channels = 3 * all;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int part = thread / kDim, d = thread % kDim;  // q, k, v, the gates
  const int quad = lane / kGroups, column = warp * kWarpColumns + lane % kGroups * kPair;
  // The batch's tables are older than this forward's first kernel.
  const Segment s = segment_at(p.batch, blockIdx.y);
  float* state = state_of(p, s.slot, head);
  prefetch_l2(reinterpret_cast<const uint8_t*>(state) + 128 * thread);
  if (part < 3) copy_async16(at.conv[thread], p.conv + (part * all + head * kDim + d) * 4, true);
  if (thread >= kFewThreads - 64) {
    const bool norm = thread < kFewThreads - 32;
    copy_async16((norm ? at.o_norm : at.dt_bias) + 4 * lane,
                 (norm ? p.o_norm : p.dt_bias + head * kDim) + 4 * lane, true);
  }
  const float a_log = p.a_log[head];
  begin_kernel();

  Bits16* past = history(p, s.slot) + head * kDim;
  {
    const int t = thread / 64, from = thread / 16 % 4, piece = thread % 16 * 8;
    const int64_t row = s.first_row + min(t, s.rows - 1);
    copy_async16(&at.in[from][3 + t][piece],
                 (from < 3 ? p.qkv + row * channels + from * all : p.f + row * all) + head * kDim + piece,
                 t < s.rows);
  }
  if (thread < 3 * 3 * 16) {
    const int m = thread / 48, from = thread / 16 % 3, piece = thread % 16 * 8;
    copy_async16(&at.in[from][m][piece], past + static_cast<int64_t>(m) * channels + from * all + piece,
                 true);
  } else if (thread >= kFewThreads - 16 * kKdaFewRows) {
    const int t = thread / 16 % kKdaFewRows, piece = thread % 16 * 8;
    const int64_t row = s.first_row + min(t, s.rows - 1);
    copy_async16(&at.g[t][piece], p.g + row * all + head * kDim + piece, t < s.rows);
  }
  copy_async_commit();
  if (thread == 0) at.rate = expf(a_log);
  Keys w[kPair];
  state += column * kDim + 4 * quad;
#pragma unroll
  for (int c = 0; c < kPair; ++c) w[c] = load_keys(state + c * kDim);
  if (thread < s.rows) at.beta[thread] = gate_of(from_bf16(p.b[(s.first_row + thread) * p.heads + head]));
  copy_async_wait<0>();
  __syncthreads();

  if (part < 3) {
    const float4 weights = *reinterpret_cast<const float4*>(at.conv[thread]);
    float(&to)[kKdaFewRows][kDim] = part == 0 ? at.q : part == 1 ? at.k : at.v;
    for (int t = 0; t < s.rows; ++t) {
      float sum = fmaf(weights.x, from_bf16(at.in[part][t][d]), 0.0f);
      sum = fmaf(weights.y, from_bf16(at.in[part][t + 1][d]), sum);
      sum = fmaf(weights.z, from_bf16(at.in[part][t + 2][d]), sum);
      sum = fmaf(weights.w, from_bf16(at.in[part][t + 3][d]), sum);
      to[t][d] = silu_of(sum);
    }
    // Entry m of the history is row rows - 3 + m, of what was there before and the rows.
#pragma unroll
    for (int m = 0; m < 3; ++m) {
      past[static_cast<int64_t>(m) * channels + part * all + d] = at.in[part][s.rows + m][d];
    }
  }
  __syncthreads();
  if (const int t = warp / 2; t < s.rows) {
    float c[4];
    if (warp % 2 == 0) {
      load4(&at.q[t][4 * lane], c);
      const float scale = query_scale(sum_of_squares(c), p.dim);
#pragma unroll
      for (int r = 0; r < 4; ++r) c[r] *= scale;
      store4(&at.q[t][4 * lane], c);
    } else {
      const float beta = at.beta[t];
      float f[4], a[4], b[4], v[4];
      load4(&at.k[t][4 * lane], c);
      load4(&at.in[3][3 + t][4 * lane], 4, true, f);
      load4(&at.v[t][4 * lane], v);
      const float bound = p.lower_bound;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float dt = at.dt_bias[4 * lane + r];
        a[r] = isnan(bound) ? decay_of<false>(bound, f[r], dt, at.rate)
                            : decay_of<true>(bound, f[r], dt, at.rate);
      }
      const float scale = key_scale(sum_of_squares(c));
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        c[r] *= scale;
        b[r] = beta * (a[r] * c[r]);
        v[r] *= beta;
      }
      store4(&at.k[t][4 * lane], c);
      store4(&at.decay[t][4 * lane], a);
      store4(&at.b[t][4 * lane], b);
      store4(&at.v[t][4 * lane], v);
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int t = 0; t < s.rows; ++t) {
    float seen[kPair], out[kPair];
    const Keys b = load_keys(&at.b[t][4 * quad]);
#pragma unroll
    for (int c = 0; c < kPair; ++c) seen[c] = dot(b, w[c]);
    sum_lanes(seen);
    update(w, load_keys(&at.decay[t][4 * quad]), load_keys(&at.k[t][4 * quad]), seen,
           *reinterpret_cast<const float2*>(&at.v[t][column]));
    const Keys q = load_keys(&at.q[t][4 * quad]);
#pragma unroll
    for (int c = 0; c < kPair; ++c) out[c] = dot(q, w[c]);
    sum_lanes(out);
    if (quad == 0) *reinterpret_cast<float2*>(&at.o[t][column]) = make_float2(out[0], out[1]);
  }
#pragma unroll
  for (int c = 0; c < kPair; ++c)
#pragma unroll
    for (int i = 0; i < kQuads; ++i) *reinterpret_cast<float4*>(state + c * kDim + 32 * i) = w[c].v[i];
  __syncthreads();
  if (warp < s.rows) {
    float o[4], o_norm[4], g[4];
    load4(&at.o[warp][4 * lane], o);
    load4(&at.o_norm[4 * lane], o_norm);
    load4(&at.g[warp][4 * lane], 4, true, g);
    const int64_t to = static_cast<int64_t>(s.first_row + warp) * all + head * kDim + 4 * lane;
    *reinterpret_cast<uint2*>(p.out + to) = gated_outputs(p, o, o_norm, g);
  }
}

}  // namespace firesteel::cuda
