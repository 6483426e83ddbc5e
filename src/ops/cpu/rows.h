// Arithmetic on single rows shared by several operations. Pure functions, any thread.
#pragma once

#include "ops/cpu/math.h"

namespace firesteel::cpu {

/// y = x·(1/√(mean(x²) + ε))·w; y may be x.
inline void rms_row(const float* w, float eps, int32_t n, const float* x, float* y) {
  const float mean = sum_squares(x, static_cast<size_t>(n)) / static_cast<float>(n);
  const V16 r = set16(rsqrt1(mean + eps));
  for16(static_cast<size_t>(n),
        [&](size_t i, size_t c) { store16(mul(mul(load16(x + i, c), r), load16(w + i, c)), y + i, c); });
}

/// True LayerNorm: y = (x - mean)/√(variance + ε)·w + b; y may be x.
inline void layer_norm_row(const float* w, const float* b, float eps, int32_t n, const float* x, float* y) {
  const size_t size = static_cast<size_t>(n);
  const V16 mean = set16(sum(x, size) / static_cast<float>(n));
  V16 acc = zero16();
  for16(size, [&](size_t i, size_t c) {
    // Lanes past the tail must add nothing: they hold 0 - mean otherwise.
    alignas(64) float t[kLanes] = {};
    store16(sub(load16(x + i, c), mean), t, c);
    const V16 d = load16(t);
    acc = fma(d, d, acc);
  });
  const V16 r = set16(rsqrt1(sum16(acc) / static_cast<float>(n) + eps));
  for16(size, [&](size_t i, size_t c) {
    store16(fma(mul(sub(load16(x + i, c), mean), r), load16(w + i, c), load16(b + i, c)), y + i, c);
  });
}

/// SiLU(min(g, limit))·clamp(u, ±limit); NaN stays NaN. out may be gate.
inline void glu_row(const float* gate, const float* up, int32_t n, float limit, float* out) {
  const V top = hn::Set(D(), limit), bottom = hn::Set(D(), -limit);
  for16(static_cast<size_t>(n), [&](size_t i, size_t c) {
    const V16 g = map(load16(gate + i, c), [&](V v) { return silu_v(at_most(v, top)); });
    const V16 u = map(load16(up + i, c), [&](V v) { return at_least(at_most(v, top), bottom); });
    store16(mul(g, u), out + i, c);
  });
}

}  // namespace firesteel::cpu
