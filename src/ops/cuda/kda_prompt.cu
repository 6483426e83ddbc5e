// The linear-attention layer between its projections for prompts, before and after the recurrence
// (kda_recur.cu): what does not depend on the state (convolution, norms, gates), one warp a head and a run of
// rows; the gated output norm.
#include "ops/cuda/kda.cuh"

namespace firesteel::cuda {

namespace {

template <bool kValue>
struct Flag {
  static constexpr bool value = kValue;
};

/// Four channels of a row as they are stored; those from `count` on are zero.
__device__ __forceinline__ uint2 load_raw(const Bits16* from, int count, bool vectors) {
  if (vectors) return count > 0 ? *reinterpret_cast<const uint2*>(from) : make_uint2(0, 0);
  uint32_t v[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) v[r] = r < count ? from[r] : 0u;
  return make_uint2(v[0] | v[1] << 16, v[2] | v[3] << 16);
}
__device__ __forceinline__ void widen(uint2 raw, float (&v)[4]) {
  v[0] = bf16_low(raw.x), v[1] = bf16_high(raw.x), v[2] = bf16_low(raw.y), v[3] = bf16_high(raw.y);
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
    if constexpr (kTaps == 4) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float4 w =
            r < count ? *reinterpret_cast<const float4*>(p.conv + static_cast<int64_t>(channel + r) * 4)
                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        weight[0][r] = w.x, weight[1][r] = w.y, weight[2][r] = w.z, weight[3][r] = w.w;
      }
    }
  }
  __device__ __forceinline__ uint2 row(const KdaParams& p, int row, bool vectors) const {
    return load_raw(p.qkv + static_cast<int64_t>(row) * 3 * p.heads * p.dim + channel, count, vectors);
  }
  /// Row t of a segment, or of what came before it.
  __device__ __forceinline__ void earlier(const KdaParams& p, const Segment& s, int t, float (&v)[4]) const {
    const bool vectors = p.dim % 4 == 0;
    if (t >= 0) return widen(row(p, s.first_row + t, vectors), v);
    const int64_t at = static_cast<int64_t>(t + p.taps - 1) * 3 * p.heads * p.dim + channel;
    widen(load_raw(history(p, s.slot) + at, count, vectors), v);
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

constexpr int kTogether = 4;  // rows whose work a warp interleaves; the next ones are on their way

/// A warp's rows first .. last - 1 of a head, at most 32: query and values, or key, decay and b.
template <int kTaps, bool kKeys>
__device__ __forceinline__ void prepare(const KdaParams& p, int head, int first, int last) {
  const int lane = threadIdx.x & 31, d = 4 * lane, all = p.heads * p.dim;
  const bool vectors = p.dim % 4 == 0, bounded = !isnan(p.lower_bound);
  const Bits16* f = p.f + head * p.dim + d;
  Channels<kTaps> one(p, kKeys ? 1 : 0, head), other(p, 2, head);
  uint2 ahead[kTogether][2];
  const auto load = [&](int from, bool as_vectors) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int row = min(from + i, last - 1);
      ahead[i][0] = one.row(p, row, as_vectors);
      ahead[i][1] = kKeys ? load_raw(f + static_cast<int64_t>(row) * all, one.count, as_vectors)
                          : other.row(p, row, as_vectors);
    }
  };
  const auto load_ahead = [&](int from) {
    if (vectors) {
      load(from, true);
    } else {
      load(from, false);
    }
  };
  load_ahead(first);
  const float betas = gate_of(from_bf16(p.b[min(first + lane, last - 1) * p.heads + head]));
  float dt_bias[4] = {}, rate = 0.0f;
  if constexpr (kKeys) {
    rate = expf(p.a_log[head]);
#pragma unroll
    for (int r = 0; r < 4; ++r) dt_bias[r] = r < one.count ? p.dt_bias[head * p.dim + d + r] : 0.0f;
  }
  Segment s = segment_at(p.batch, p.batch.row_segment[first]);
  float* record = p.records + (static_cast<int64_t>(head) * p.rows + first - p.first) * kKdaRecord + d;
#pragma unroll 1
  for (int row = first; row < last;) {
    if (row == s.first_row + s.rows) s = segment_at(p.batch, p.batch.row_segment[row]);
    const int t = row - s.first_row, count = min(kTogether, min(s.rows - t, last - row));
    if (row == first || t == 0) {
      one.begin(p, s, t);
      if constexpr (!kKeys) other.begin(p, s, t);
    }
    float now[kTogether][2][4];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) widen(ahead[i][0], now[i][0]), widen(ahead[i][1], now[i][1]);
    load_ahead(row + count);
    // Rows from `count` on are not stored; where they end a segment, the next one begins anew.
    float c[kTogether][4], squares[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      one.next(p, s, min(t + i, s.rows - 1), now[i][0], c[i]);
      squares[i] = sum_of_squares(c[i]);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const float scale = kKeys ? key_scale(squares[i]) : query_scale(squares[i], p.dim);
#pragma unroll
      for (int r = 0; r < 4; ++r) c[i][r] *= scale;
    }
    if constexpr (kKeys) {
      float a[kTogether][4];
      const auto decays = [&](auto with_bound) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
#pragma unroll
          for (int r = 0; r < 4; ++r)
            a[i][r] = decay_of<decltype(with_bound)::value>(p.lower_bound, now[i][1][r], dt_bias[r], rate);
      };
      if (bounded) {
        decays(Flag<true>{});
      } else {
        decays(Flag<false>{});
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float beta = __shfl_sync(0xffffffffu, betas, row - first + i);
        float b[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) b[r] = beta * (a[i][r] * c[i][r]);
        if (i >= count) continue;
        store4(record + i * kKdaRecord + kKdaDecay, a[i]);
        store4(record + i * kKdaRecord + kKdaKey, c[i]);
        store4(record + i * kKdaRecord + kKdaProduct, b);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float beta = __shfl_sync(0xffffffffu, betas, row - first + i);
        float v[4];
        other.next(p, s, min(t + i, s.rows - 1), now[i][1], v);
#pragma unroll
        for (int r = 0; r < 4; ++r) v[r] *= beta;
        if (i >= count) continue;
        store4(record + i * kKdaRecord + kKdaQuery, c[i]);
        store4(record + i * kKdaRecord + kKdaValue, v);
      }
    }
    row += count, record += count * kKdaRecord;
  }
}

}  // namespace

/// grid: (⌈rows / (2 · run)⌉, heads). Warps 0 and 2: queries and values, 1 and 3: keys, of a run of rows
/// each.
extern "C" __global__ void __launch_bounds__(128) kda_prepare(const __grid_constant__ KdaParams p) {
  // Blocks of kda_recur that came before these have ended would not spread over all multiprocessors.
  begin_kernel<false>();
  const int warp = threadIdx.x >> 5, head = blockIdx.y;
  const int first = p.first + (blockIdx.x * 2 + warp / 2) * p.run,
            last = min(first + p.run, p.first + p.rows);
  if (first >= last) return;
  if (p.taps == 4) {
    if (warp & 1) {
      prepare<4, true>(p, head, first, last);
    } else {
      prepare<4, false>(p, head, first, last);
    }
  } else if (warp & 1) {
    prepare<0, true>(p, head, first, last);
  } else {
    prepare<0, false>(p, head, first, last);
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
  const int64_t in_batch = at + static_cast<int64_t>(p.first) * p.heads;
  load4(p.g + in_batch * p.dim + d, count, vectors, g);
  load4(p.o + at * kDim + d, o);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    o_norm[r] = r < count ? p.o_norm[d + r] : 0.0f;
    o[r] = r < count ? o[r] : 0.0f;
  }
  const uint2 out = gated_outputs(p, o, o_norm, g);
  Bits16* to = p.out + in_batch * p.dim + d;
  if (vectors) {
    if (count > 0) *reinterpret_cast<uint2*>(to) = out;
  } else {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (r < count) to[r] = static_cast<Bits16>((r < 2 ? out.x : out.y) >> 16 * (r % 2));
    }
  }
}

}  // namespace firesteel::cuda
