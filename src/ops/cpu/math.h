// exp, log, sigmoid and their kin in fp32, the same bits on every machine.
//
// Built from IEEE add, multiply, fused multiply-add, divide, square root and bit operations only, so no
// library and no instruction set has a say. A few ulp over the whole range, subnormal results included; NaN
// stays NaN; the scalar forms give the bits of the vector forms. Pure functions, any thread.
#pragma once

#include <cmath>

#include "ops/cpu/vec.h"

namespace firesteel::cpu {

/// a where a > limit does not hold, else limit: a NaN stays a NaN on every machine (max/min instructions
/// differ there).
template <class V>
HWY_INLINE V at_most(V a, V limit) {
  return hn::IfThenElse(hn::Gt(a, limit), limit, a);
}
template <class V>
HWY_INLINE V at_least(V a, V limit) {
  return hn::IfThenElse(hn::Lt(a, limit), limit, a);
}

/// e^x. Above 88.72 +infinity, below -103.97 zero.
template <class V>
HWY_INLINE V exp_v(V x) {
  const hn::DFromV<V> d;
  const hn::RebindToSigned<decltype(d)> di;
  x = at_least(at_most(x, hn::Set(d, 89.0f)), hn::Set(d, -104.0f));
  // x = n·ln 2 + r, |r| ≤ 0.347; adding 1.5·2^23 rounds to an integer and leaves it in the low bits.
  const V magic = hn::Set(d, 12582912.0f);
  const V t = hn::Add(hn::Mul(x, hn::Set(d, 1.44269504088896341f)), magic);
  const V n = hn::Sub(t, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, 0x1.62e4p-1f), x);  // 16 bits: n·hi is exact
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860682030941723e-6f), r);
  // Taylor to r^7: the rest is below 6e-9.
  V p = hn::MulAdd(hn::Set(d, 1.0f / 5040), r, hn::Set(d, 1.0f / 720));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 120));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 6));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(hn::Mul(p, r), r, r);
  p = hn::Add(p, hn::Set(d, 1.0f));
  // 2^n in two factors, so that subnormal results are rounded once and overflow gives infinity.
  const auto ni = hn::Sub(hn::BitCast(di, t), hn::Set(di, 0x4B400000));
  const auto na = hn::ShiftRight<1>(ni);
  const auto nb = hn::Sub(ni, na);
  const auto bias = hn::Set(di, 127);
  const V fa = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(na, bias)));
  const V fb = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(nb, bias)));
  return hn::IfThenElse(hn::Eq(x, x), hn::Mul(hn::Mul(p, fa), fb), x);
}

/// ln x for x ≥ 0 (0: -infinity; below 0: NaN).
template <class V>
HWY_INLINE V log_v(V x) {
  const hn::DFromV<V> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto tiny = hn::Lt(x, hn::Set(d, 0x1p-126f));
  const V xs = hn::IfThenElse(tiny, hn::Mul(x, hn::Set(d, 0x1p24f)), x);
  const auto bits = hn::BitCast(di, xs);
  // x = m·2^e with m in [√½, √2).
  const auto e = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, 0x3F3504F3)));
  const V m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(e)));
  const V k = hn::Sub(hn::ConvertTo(d, e), hn::IfThenElseZero(tiny, hn::Set(d, 24.0f)));
  const V f = hn::Sub(m, hn::Set(d, 1.0f));
  const V s = hn::Div(f, hn::Add(f, hn::Set(d, 2.0f)));
  const V z = hn::Mul(s, s);
  // ln(1+f) = 2 artanh(s) = 2s + 2s³/3 + 2s⁵/5 + …, written around f - f²/2 to keep f's low bits.
  V q = hn::MulAdd(hn::Set(d, 2.0f / 11), z, hn::Set(d, 2.0f / 9));
  q = hn::MulAdd(q, z, hn::Set(d, 2.0f / 7));
  q = hn::MulAdd(q, z, hn::Set(d, 2.0f / 5));
  q = hn::MulAdd(q, z, hn::Set(d, 2.0f / 3));
  q = hn::Mul(q, z);
  const V half_f2 = hn::Mul(hn::Mul(f, f), hn::Set(d, 0.5f));
  V r = hn::MulAdd(s, hn::Add(half_f2, q), hn::Mul(k, hn::Set(d, 1.42860682030941723e-6f)));
  r = hn::Sub(f, hn::Sub(half_f2, r));
  r = hn::MulAdd(k, hn::Set(d, 0x1.62e4p-1f), r);
  const V inf = hn::Set(d, HUGE_VALF);
  r = hn::IfThenElse(hn::Eq(x, inf), inf, r);
  r = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(inf), r);
  r = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Set(d, NAN), r);
  return hn::IfThenElse(hn::Eq(x, x), r, x);
}

/// ln(1 + u) for u ≥ 0.
template <class V>
HWY_INLINE V log1p_v(V u) {
  const hn::DFromV<V> d;
  const V one = hn::Set(d, 1.0f);
  const V w = hn::Add(one, u);
  // What the sum lost (either operand may be the larger), brought back to first order.
  const V big = hn::Sub(one, hn::Sub(w, u));
  const V small = hn::Sub(u, hn::Sub(w, one));
  const V lost = hn::IfThenElse(hn::Gt(u, one), big, small);
  const V r = hn::Add(log_v(w), hn::Div(lost, w));
  return hn::IfThenElse(hn::Eq(u, hn::Set(d, HUGE_VALF)), u, r);
}

/// 1 / (1 + e^-x), to full relative accuracy on both sides.
template <class V>
HWY_INLINE V sigmoid_v(V x) {
  const hn::DFromV<V> d;
  const V one = hn::Set(d, 1.0f);
  const V e = exp_v(hn::Neg(hn::Abs(x)));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}
/// x·sigmoid(x).
template <class V>
HWY_INLINE V silu_v(V x) {
  return hn::Mul(x, sigmoid_v(x));
}
/// x above 20, else ln(1 + e^x).
template <class V>
HWY_INLINE V softplus_v(V x) {
  const hn::DFromV<V> d;
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 20.0f)), x, log1p_v(exp_v(x)));
}

HWY_INLINE V16 exp16(V16 x) {
  return map(x, [](V v) HWY_ATTR { return exp_v(v); });
}
HWY_INLINE V16 sigmoid16(V16 x) {
  return map(x, [](V v) HWY_ATTR { return sigmoid_v(v); });
}
HWY_INLINE V16 silu16(V16 x) {
  return map(x, [](V v) HWY_ATTR { return silu_v(v); });
}
HWY_INLINE V16 softplus16(V16 x) {
  return map(x, [](V v) HWY_ATTR { return softplus_v(v); });
}
HWY_INLINE float exp1(float x) { return hn::GetLane(exp_v(hn::Set(D4(), x))); }
HWY_INLINE float log1(float x) { return hn::GetLane(log_v(hn::Set(D4(), x))); }
HWY_INLINE float sigmoid1(float x) { return hn::GetLane(sigmoid_v(hn::Set(D4(), x))); }
HWY_INLINE float softplus1(float x) { return hn::GetLane(softplus_v(hn::Set(D4(), x))); }
/// 1/√x, two correctly rounded steps (IEEE square root and division).
HWY_INLINE float rsqrt1(float x) { return 1.0f / std::sqrt(x); }

}  // namespace firesteel::cpu
