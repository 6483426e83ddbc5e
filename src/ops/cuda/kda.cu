// The linear-attention layer between its projections, always as the serial recurrence.
//
// Few rows: kda_few, one block a sequence and head does it all. Prompts: three kernels: what does not depend
// on the state (convolution, norms, gates), one warp a head and a run of rows; the recurrence; the gated
// output norm. The state of a slot is stored [head, value column, key], so that a column is contiguous.
//
// Either way the state is in registers and every sum has one order, so the bits are the same. Keys go in
// quads 0 to 31. A lane holds quads l, l + 8, l + 16, l + 24 (l < 8) of two columns; a sum over the keys of a
// column is one chain over these, then l and l + 4 are added, l + 2, l + 1: three exchanges between lanes. A
// token brings its decay a, key k, query q, the product b = beta·(a·k) and its values times beta:
//   delta = beta·v - Σ b·S,   S = a·S + k·delta,   output = Σ q·S
// Σ b·S stands for beta·Σ k·(a·S): it need not wait for a·S, which is formed beside the exchanges.
#include "ops/cuda/common.cuh"
#include "ops/cuda/layer_params.h"

namespace firesteel::cuda {

namespace {

constexpr int kDim = kKdaWidth;  // most keys and values of a head
constexpr int kQuads = 4;        // of keys, of a lane
constexpr int kPair = 2;         // value columns of a lane
constexpr int kGroups = 4;       // column pairs of a warp: lane % 4; lane / 4 is l
constexpr int kWarpColumns = kGroups * kPair;

// The special-function unit's own exponential, reciprocal and root (one or two units in the last place): the
// rare cases that the library's handle, subnormal numbers, cost several times as many instructions.
__device__ __forceinline__ float exp_of(float v) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v * 1.4426950408889634f));
  return r;
}
__device__ __forceinline__ float reciprocal(float v) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
__device__ __forceinline__ float reciprocal_root(float v) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
__device__ __forceinline__ float gate_of(float v) { return reciprocal(1.0f + exp_of(-v)); }
__device__ __forceinline__ float silu_of(float v) { return v * gate_of(v); }
__device__ __forceinline__ float softplus(float v) { return v > 20.0f ? v : log1pf(expf(v)); }

__device__ __forceinline__ Bits16* history(const KdaParams& p, int slot) {
  return reinterpret_cast<Bits16*>(p.state + slot * p.slot_stride);
}
__device__ __forceinline__ int64_t history_bytes(const KdaParams& p) {
  const int64_t bytes = static_cast<int64_t>(p.taps - 1) * 3 * p.heads * p.dim * sizeof(Bits16);
  return (bytes + 255) / 256 * 256;
}
__device__ __forceinline__ float* state_of(const KdaParams& p, int slot, int head) {
  return reinterpret_cast<float*>(p.state + slot * p.slot_stride + history_bytes(p)) +
         static_cast<int64_t>(head) * p.dim * p.dim;
}

/// `rate`: exp(A_log). kBounded: the gate has a lower bound.
template <bool kBounded>
__device__ __forceinline__ float decay_of(float lower_bound, float f, float dt_bias, float rate) {
  const float x = f + dt_bias;
  if constexpr (kBounded) return exp_of(lower_bound * gate_of(rate * x));
  return exp_of(-rate * softplus(x));
}
/// The sums of squares that the norms take: a product of its own, never fused into the sum.
__device__ __forceinline__ float square(float v) { return __fmul_rn(v, v); }
__device__ __forceinline__ float sum_of_squares(const float (&v)[4]) {
  return warp_sum((square(v[0]) + square(v[1])) + (square(v[2]) + square(v[3])));
}
__device__ __forceinline__ float query_scale(float squares, int dim) {
  return reciprocal_root(squares + 1e-6f) * reciprocal_root(static_cast<float>(dim));
}
__device__ __forceinline__ float key_scale(float squares) { return reciprocal_root(squares + 1e-6f); }

/// The normalised, gated outputs of four channels a lane.
__device__ __forceinline__ uint2 gated_outputs(const KdaParams& p, const float (&o)[4],
                                               const float (&o_norm)[4], const float (&g)[4]) {
  const float mean = sum_of_squares(o) * reciprocal(static_cast<float>(p.dim));
  const float scale = reciprocal_root(mean + p.rms_eps);
  float v[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) v[r] = o[r] * scale * o_norm[r] * gate_of(g[r]);
  return make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
}

/// Four channels of a row; those from `count` on are zero.
__device__ __forceinline__ void load4(const Bits16* from, int count, bool vectors, float (&v)[4]) {
  if (vectors) {
    const uint2 raw = count > 0 ? *reinterpret_cast<const uint2*>(from) : make_uint2(0, 0);
    v[0] = bf16_low(raw.x), v[1] = bf16_high(raw.x), v[2] = bf16_low(raw.y), v[3] = bf16_high(raw.y);
  } else {
#pragma unroll
    for (int r = 0; r < 4; ++r) v[r] = r < count ? from_bf16(from[r]) : 0.0f;
  }
}
__device__ __forceinline__ void load4(const float* from, float (&v)[4]) {
  const float4 x = *reinterpret_cast<const float4*>(from);
  v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
}
__device__ __forceinline__ void store4(float* to, const float (&v)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
}

/// Convolution and SiLU of four channels a lane over rows that follow each other. kTaps 0: any number.
template <int kTaps>
struct Channels {
  int channel, count;
  float weight[kTaps > 0 ? kTaps : 1][4], window[kTaps > 1 ? kTaps - 1 : 1][4];

  __device__ __forceinline__ Channels(const KdaParams& p, int part, int head) {
    const int d = 4 * (threadIdx.x & 31);
    channel = (part * p.heads + head) * p.dim + d;
    count = p.dim - d;
    if constexpr (kTaps > 0) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int m = 0; m < kTaps; ++m) {
          weight[m][r] = r < count ? p.conv[static_cast<int64_t>(channel + r) * kTaps + m] : 0.0f;
        }
    }
  }
  __device__ __forceinline__ void row(const KdaParams& p, int row, float (&v)[4]) const {
    load4(p.qkv + static_cast<int64_t>(row) * 3 * p.heads * p.dim + channel, count, p.dim % 4 == 0, v);
  }
  /// Row t of a segment, or of what came before it.
  __device__ __forceinline__ void earlier(const KdaParams& p, const Segment& s, int t, float (&v)[4]) const {
    if (t >= 0) return row(p, s.first_row + t, v);
    const int64_t at = static_cast<int64_t>(t + p.taps - 1) * 3 * p.heads * p.dim + channel;
    load4(history(p, s.slot) + at, count, p.dim % 4 == 0, v);
  }
  /// Before row t, where it is the first of a run or of its segment.
  __device__ __forceinline__ void begin(const KdaParams& p, const Segment& s, int t) {
    if constexpr (kTaps > 0) {
#pragma unroll
      for (int m = 0; m < kTaps - 1; ++m) earlier(p, s, t - (kTaps - 1) + m, window[m]);
    }
  }
  __device__ __forceinline__ void next(const KdaParams& p, const Segment& s, int t, const float (&now)[4],
                                       float (&c)[4]) {
    float sum[4] = {};
    if constexpr (kTaps > 0) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int m = 0; m < kTaps - 1; ++m) sum[r] = fmaf(weight[m][r], window[m][r], sum[r]);
        sum[r] = fmaf(weight[kTaps - 1][r], now[r], sum[r]);
#pragma unroll
        for (int m = 0; m < kTaps - 2; ++m) window[m][r] = window[m + 1][r];
        window[kTaps - 2][r] = now[r];
      }
    } else {
      for (int m = 0; m < p.taps; ++m) {
        float u[4];
        earlier(p, s, t - (p.taps - 1) + m, u);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          if (r < count) sum[r] = fmaf(p.conv[static_cast<int64_t>(channel + r) * p.taps + m], u[r], sum[r]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) c[r] = silu_of(sum[r]);
  }
};

/// A warp's rows first .. last - 1 of a head: query and values, or key, decay and b.
template <int kTaps>
__device__ __forceinline__ void prepare(const KdaParams& p, int head, int first, int last, bool keys) {
  const int d = 4 * (threadIdx.x & 31), all = p.heads * p.dim;
  const bool vectors = p.dim % 4 == 0;
  Channels<kTaps> one(p, keys ? 1 : 0, head), other(p, 2, head);
  float dt_bias[4], rate = 0.0f;
  const Bits16* f = p.f + head * p.dim + d;
  if (keys) {
    rate = expf(p.a_log[head]);
#pragma unroll
    for (int r = 0; r < 4; ++r) dt_bias[r] = r < one.count ? p.dt_bias[head * p.dim + d + r] : 0.0f;
  }
  const auto load_other = [&](int row, float(&v)[4]) {
    if (keys) {
      load4(f + static_cast<int64_t>(row) * all, one.count, vectors, v);
    } else {
      other.row(p, row, v);
    }
  };
  float ahead[2][4];  // what the next row brings
  one.row(p, first, ahead[0]);
  load_other(first, ahead[1]);
  Segment s = segment_at(p.batch, p.batch.row_segment[first]);
  float* record = p.records + (static_cast<int64_t>(head) * p.rows + first) * kKdaRecord + d;
#pragma unroll 1
  for (int row = first; row < last; ++row, record += kKdaRecord) {
    if (row == s.first_row + s.rows) s = segment_at(p.batch, p.batch.row_segment[row]);
    const int t = row - s.first_row;
    if (row == first || t == 0) {
      one.begin(p, s, t);
      if (!keys) other.begin(p, s, t);
    }
    float now[2][4];
#pragma unroll
    for (int r = 0; r < 4; ++r) now[0][r] = ahead[0][r], now[1][r] = ahead[1][r];
    const float beta = gate_of(from_bf16(p.b[row * p.heads + head]));
    const int next = min(row + 1, last - 1);
    one.row(p, next, ahead[0]);
    load_other(next, ahead[1]);
    float c[4];
    one.next(p, s, t, now[0], c);
    const float squares = sum_of_squares(c);
    const float scale = keys ? key_scale(squares) : query_scale(squares, p.dim);
#pragma unroll
    for (int r = 0; r < 4; ++r) c[r] *= scale;
    if (keys) {
      float a[4], b[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        a[r] = isnan(p.lower_bound) ? decay_of<false>(p.lower_bound, now[1][r], dt_bias[r], rate)
                                    : decay_of<true>(p.lower_bound, now[1][r], dt_bias[r], rate);
        b[r] = beta * (a[r] * c[r]);
      }
      store4(record + kKdaDecay, a);
      store4(record + kKdaKey, c);
      store4(record + kKdaProduct, b);
    } else {
      store4(record + kKdaQuery, c);
      other.next(p, s, t, now[1], c);
#pragma unroll
      for (int r = 0; r < 4; ++r) c[r] *= beta;
      store4(record + kKdaValue, c);
    }
  }
}

constexpr int kRun = 8;  // rows of a warp

}  // namespace

/// grid: (⌈rows / 16⌉, heads). Warps 0 and 2: queries and values, 1 and 3: keys, of 8 rows each.
extern "C" __global__ void __launch_bounds__(128) kda_prepare(const __grid_constant__ KdaParams p) {
  begin_kernel();
  const int warp = threadIdx.x >> 5, first = (blockIdx.x * 2 + warp / 2) * kRun, head = blockIdx.y;
  const int last = min(first + kRun, p.rows);
  if (first >= last) return;
  if (p.taps == 4) {
    prepare<4>(p, head, first, last, warp & 1);
  } else {
    prepare<0>(p, head, first, last, warp & 1);
  }
}

namespace {

/// Of a lane: the values of its 16 keys.
struct Keys {
  float4 v[kQuads];
};
/// `from`: the lane's first quad.
__device__ __forceinline__ Keys load_keys(const float* from) {
  Keys k;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) k.v[i] = *reinterpret_cast<const float4*>(from + 32 * i);
  return k;
}
/// A lane's part of a sum over the keys of a column.
__device__ __forceinline__ float dot(const Keys& x, const Keys& y) {
  float s = __fmul_rn(x.v[0].x, y.v[0].x);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    if (i > 0) s = fmaf(x.v[i].x, y.v[i].x, s);
    s = fmaf(x.v[i].y, y.v[i].y, s);
    s = fmaf(x.v[i].z, y.v[i].z, s);
    s = fmaf(x.v[i].w, y.v[i].w, s);
  }
  return s;
}
/// The rest of two columns' sums: every lane gets them.
__device__ __forceinline__ void sum_lanes(float (&s)[kPair]) {
#pragma unroll
  for (int mask = 16; mask >= kGroups; mask /= 2)
#pragma unroll
    for (int c = 0; c < kPair; ++c) s[c] += __shfl_xor_sync(0xffffffffu, s[c], mask);
}
/// `beta_v`: beta · v of the columns.
__device__ __forceinline__ void update(Keys (&w)[kPair], const Keys& a, const Keys& k,
                                       const float (&seen)[kPair], const float2& beta_v) {
#pragma unroll
  for (int c = 0; c < kPair; ++c) {
    const float delta = (c == 0 ? beta_v.x : beta_v.y) - seen[c];
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      w[c].v[i].x = fmaf(k.v[i].x, delta, __fmul_rn(a.v[i].x, w[c].v[i].x));
      w[c].v[i].y = fmaf(k.v[i].y, delta, __fmul_rn(a.v[i].y, w[c].v[i].y));
      w[c].v[i].z = fmaf(k.v[i].z, delta, __fmul_rn(a.v[i].z, w[c].v[i].z));
      w[c].v[i].w = fmaf(k.v[i].w, delta, __fmul_rn(a.v[i].w, w[c].v[i].w));
    }
  }
}

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kColumns = kWarps * kWarpColumns;  // of a block
constexpr int kTokens = kKdaAhead / 2;           // staged together, twice
constexpr int kTokenFloats = kKdaValue + kColumns;
constexpr int kPartFloats = 32 / kGroups * kWarpColumns + 8;  // of a token's outputs; banks: 8 apart
static_assert(kKdaValue == 4 * kThreads, "a token's keys are one copy a thread");

struct Staged {
  float token[2 * kTokens][kTokenFloats];
  float part[kWarps][kTokens][kPartFloats];
};

/// Predicated, for a branch would end the stretch of code in which instructions are moved.
__device__ __forceinline__ void copy_async16_if(bool wanted, uint32_t shared, const void* global) {
  asm volatile(
      "{.reg .pred p;\n setp.ne.b32 p, %2, 0;\n @p cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(shared),
      "l"(global), "r"(static_cast<int>(wanted))
      : "memory");
}
__device__ __forceinline__ void store2_if(bool wanted, float* to, float x, float y) {
  asm volatile("{.reg .pred p;\n setp.ne.b32 p, %3, 0;\n @p st.global.v2.f32 [%0], {%1, %2};}" ::"l"(to),
               "f"(x), "f"(y), "r"(static_cast<int>(wanted))
               : "memory");
}

}  // namespace

/// grid: (heads · ⌈dim/32⌉, segments). Also advances the convolution history (kda_prepare has read it).
///
/// One warp a scheduler: what hides the latency of an exchange is the warp's own work that does not depend on
/// it, so a group of tokens is straight code: the output of the token before, a·S, and the next token's keys
/// are taken while the sums over b·S travel. The lanes' parts of a group's outputs are added together.
extern "C" __global__ void __launch_bounds__(kThreads, 3) kda_recur(const __grid_constant__ KdaParams p) {
  __shared__ __align__(16) Staged staged;
  begin_kernel<false>();
  int thread;  // not read again and again
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  const int lane = thread & 31, warp = thread >> 5;
  const int splits = (p.dim + kColumns - 1) / kColumns;
  const int head = blockIdx.x / splits, split = blockIdx.x % splits;
  const Segment s = segment_at(p.batch, blockIdx.y);
  const int quad = lane / kGroups, in_warp = lane % kGroups * kPair;
  const int column = split * kColumns + warp * kWarpColumns + in_warp;

  // Copies run up to kKdaAhead records past the segment: other rows, or the room that the host leaves.
  const float* record = p.records + (static_cast<int64_t>(head) * p.rows + s.first_row) * kKdaRecord;
  const float* keys_from = record + 4 * thread;
  const float* values_from = record + thread / 8 * kKdaRecord + kKdaValue + split * kColumns + thread % 8 * 4;
  const auto shared_address = [](const float* at) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(at));
  };
  const uint32_t keys_to = shared_address(&staged.token[0][4 * thread]);
  const uint32_t values_to = shared_address(&staged.token[thread / 8 % kTokens][kKdaValue + thread % 8 * 4]);
  const auto stage_in = [&](int place) {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      copy_async16_if(true, keys_to + (place + i) * kTokenFloats * 4, keys_from + i * kKdaRecord);
    }
    copy_async16_if(thread < 8 * kTokens, values_to + place * kTokenFloats * 4, values_from);
    copy_async_commit();
    keys_from += kTokens * kKdaRecord, values_from += kTokens * kKdaRecord;
  };
  stage_in(0);
  stage_in(kTokens);

  float* state = state_of(p, s.slot, head);
  const auto each_state = [&](auto&& use) {  // (value, address) of what is in the state
#pragma unroll
    for (int c = 0; c < kPair; ++c)
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const int key = 4 * quad + 32 * i;
        if (column + c < p.dim) use(c, i, key, state + static_cast<int64_t>(column + c) * p.dim + key);
      }
  };
  Keys w[kPair] = {};
  each_state([&](int c, int i, int key, const float* at) {
    float4& v = w[c].v[i];
    if (p.dim == kDim) {
      v = *reinterpret_cast<const float4*>(at);
    } else {
      if (key < p.dim) v.x = at[0];
      if (key + 1 < p.dim) v.y = at[1];
      if (key + 2 < p.dim) v.z = at[2];
      if (key + 3 < p.dim) v.w = at[3];
    }
  });

  // Outputs: a lane adds the parts of two columns of token `mine` of a group.
  const int mine = lane / kGroups;
  const float* parts = staged.part[warp][mine] + in_warp;
  const int64_t o_row = static_cast<int64_t>(p.heads) * kDim;
  float* o = p.o + (static_cast<int64_t>(s.first_row) + mine - 1) * o_row + head * kDim + column;
  const auto put_outputs = [&](int first, int count) {  // tokens from `first` on
    __syncwarp();
    float2 v[32 / kGroups];
#pragma unroll
    for (int l = 0; l < 32 / kGroups; ++l) {
      v[l] = *reinterpret_cast<const float2*>(parts + l * kWarpColumns);
    }
#pragma unroll
    for (int n = 4; n > 0; n /= 2)
#pragma unroll
      for (int l = 0; l < n; ++l) v[l].x += v[l + n].x, v[l].y += v[l + n].y;
    store2_if(mine < count && first + mine >= 0, o, v[0].x, v[0].y);
    o += kTokens * o_row;
    __syncwarp();
  };

  copy_async_wait<1>();
  __syncthreads();
  const float* keys = &staged.token[0][4 * quad];
  const float* values = &staged.token[0][kKdaValue + warp * kWarpColumns + in_warp];
  float* part = staged.part[warp][0] + quad * kWarpColumns + in_warp;
  Keys a = load_keys(keys + kKdaDecay), k = load_keys(keys + kKdaKey), b = load_keys(keys + kKdaProduct);
  Keys q = k;  // of the token before; there is none
  const auto take_output = [&](int place) {
    *reinterpret_cast<float2*>(part + place * kPartFloats) = make_float2(dot(q, w[0]), dot(q, w[1]));
  };
  // A token: its place, that of the next, and its number in the group. `between`: before the next is read.
  const auto step = [&](int at, int next, int number, auto&& between) {
    float seen[kPair];
#pragma unroll
    for (int c = 0; c < kPair; ++c) seen[c] = dot(b, w[c]);
    const float2 beta_v = *reinterpret_cast<const float2*>(values + at * kTokenFloats);
    sum_lanes(seen);
    take_output(number);
    q = load_keys(keys + at * kTokenFloats + kKdaQuery);
    between();
    const Keys next_a = load_keys(keys + next * kTokenFloats + kKdaDecay);
    const Keys next_k = load_keys(keys + next * kTokenFloats + kKdaKey);
    b = load_keys(keys + next * kTokenFloats + kKdaProduct);
    update(w, a, k, seen, beta_v);
    a = next_a, k = next_k;
  };

  int first = 0, place = 0;  // of a group: its first token, its place
#pragma unroll 1
  for (; first + kTokens <= s.rows; first += kTokens) {
    const int other = kTokens - place;
#pragma unroll
    for (int i = 0; i < kTokens - 1; ++i) step(place + i, place + i + 1, i, [] {});
    step(place + kTokens - 1, other, kTokens - 1, [&] {
      copy_async_wait<0>();
      __syncthreads();  // the next group is there, and this one is free
      stage_in(place);
      put_outputs(first - 1, kTokens);
    });
    place = other;
  }
  int number = 0;
#pragma unroll 1
  for (; first + number < s.rows; ++number) step(place + number, place + number + 1, number, [] {});
  take_output(number);
  put_outputs(first - 1, number + 1);
  copy_async_wait<0>();
  end_kernel();
  each_state([&](int c, int i, int key, float* at) {
    const float4 v = w[c].v[i];
    if (p.dim == kDim) {
      *reinterpret_cast<float4*>(at) = v;
    } else {
      if (key < p.dim) at[0] = v.x;
      if (key + 1 < p.dim) at[1] = v.y;
      if (key + 2 < p.dim) at[2] = v.z;
      if (key + 3 < p.dim) at[3] = v.w;
    }
  });

  if (split == 0) {
    const int past = p.taps - 1, channels = 3 * p.heads * p.dim;
    Bits16* h = history(p, s.slot);
    for (int i = thread; i < 3 * p.dim; i += kThreads) {
      const int channel = (i / p.dim * p.heads + head) * p.dim + i % p.dim;
      // Ascending: entry m takes an entry above it, which is still the old one.
      for (int m = 0; m < past; ++m) {
        const int at = s.rows - past + m;
        h[static_cast<int64_t>(m) * channels + channel] =
            at < 0 ? h[static_cast<int64_t>(at + past) * channels + channel]
                   : p.qkv[static_cast<int64_t>(s.first_row + at) * channels + channel];
      }
    }
  }
}

/// A warp a row and head.
extern "C" __global__ void __launch_bounds__(256) kda_out(const __grid_constant__ KdaParams p) {
  begin_kernel();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * 8 + (threadIdx.x >> 5);  // row · heads + head
  if (at >= static_cast<int64_t>(p.rows) * p.heads) return;
  const int d = 4 * (threadIdx.x & 31), count = p.dim - d;
  const bool vectors = p.dim % 4 == 0;
  float o[4], o_norm[4], g[4];
  load4(p.g + at * p.dim + d, count, vectors, g);
  load4(p.o + at * kDim + d, o);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    o_norm[r] = r < count ? p.o_norm[d + r] : 0.0f;
    o[r] = r < count ? o[r] : 0.0f;
  }
  const uint2 out = gated_outputs(p, o, o_norm, g);
  Bits16* to = p.out + at * p.dim + d;
  if (vectors) {
    if (count > 0) *reinterpret_cast<uint2*>(to) = out;
  } else {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (r < count) to[r] = static_cast<Bits16>((r < 2 ? out.x : out.y) >> 16 * (r % 2));
    }
  }
}

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

  if (part == 3) {
    for (int t = 0; t < s.rows; ++t) {
      const float f = from_bf16(at.in[3][3 + t][d]), dt = at.dt_bias[d], bound = p.lower_bound;
      at.decay[t][d] =
          isnan(bound) ? decay_of<false>(bound, f, dt, at.rate) : decay_of<true>(bound, f, dt, at.rate);
    }
  } else {
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
      float a[4], v[4];
      load4(&at.k[t][4 * lane], c);
      load4(&at.decay[t][4 * lane], a);
      load4(&at.v[t][4 * lane], v);
      const float scale = key_scale(sum_of_squares(c));
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        c[r] *= scale;
        a[r] = beta * (a[r] * c[r]);
        v[r] *= beta;
      }
      store4(&at.k[t][4 * lane], c);
      store4(&at.b[t][4 * lane], a);
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
