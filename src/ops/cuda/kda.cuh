// What the KDA kernels for few rows and for prompts share: the arithmetic of a row.
//
// The state is in registers and every sum has one order, so the bits are the same. Keys go in quads 0 to 31.
// A lane holds quads l, l + 8, l + 16, l + 24 (l < 8) of two columns; a sum over the keys of a column is one
// chain over these, then l and l + 4 are added, l + 2, l + 1: three exchanges between lanes. A token brings
// its decay a, key k, query q, the product b = beta·(a·k) and its values times beta:
//   delta = beta·v - Σ b·S,   S = a·S + k·delta,   output = Σ q·S
// Σ b·S stands for beta·Σ k·(a·S): it need not wait for a·S, which is formed beside the exchanges.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/layer_params.h"

namespace firesteel::cuda {

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

}  // namespace firesteel::cuda
