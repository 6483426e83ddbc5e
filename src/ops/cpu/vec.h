// The CPU backend's vectors: 16 virtual fp32 lanes on every machine (two AVX2 registers, four NEON ones).
//
// Lane l of a sum over k holds the terms k ≡ l (mod 16) in ascending k, joined by explicit fused
// multiply-adds; a tail is padded with zeros; sum16() joins the lanes in one fixed tree. So a dot product has
// the same bits on x86 and Arm. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

// x86-64-v3 has AVX2 and FMA but promises no AES; Highway would otherwise fall back to SSSE3.
#ifndef HWY_DISABLE_PCLMUL_AES
#define HWY_DISABLE_PCLMUL_AES
#endif
#include <hwy/cache_control.h>
#include <hwy/highway.h>

namespace firesteel::cpu {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kLanes = 16;
using D = hn::CappedTag<float, kLanes>;
using V = hn::Vec<D>;
inline constexpr size_t kNative = hn::MaxLanes(D());
inline constexpr size_t kParts = kLanes / kNative;

static_assert(!HWY_HAVE_SCALABLE && kNative >= 4 && kLanes % kNative == 0,
              "needs a fixed vector width of at least 4 lanes that divides 16");
#if HWY_ARCH_X86
#if !defined(__FMA__) || !defined(__AVX2__)
#error "the CPU backend needs AVX2 and FMA: build with -march=x86-64-v3 or later"
#endif
#elif !HWY_ARCH_ARM_A64
#error "the CPU backend is defined for x86-64 and AArch64 only"
#endif

/// 16 lanes.
struct V16 {
  V p[kParts];
};

#define FS_PARTS _Pragma("GCC unroll 4") for (size_t i = 0; i < kParts; ++i)

HWY_INLINE V16 set16(float x) {
  V16 r;
  FS_PARTS r.p[i] = hn::Set(D(), x);
  return r;
}
HWY_INLINE V16 zero16() { return set16(0.0f); }
HWY_INLINE V16 load16(const float* x) {
  V16 r;
  FS_PARTS r.p[i] = hn::LoadU(D(), x + i * kNative);
  return r;
}
HWY_INLINE void store16(V16 v, float* x) { FS_PARTS hn::StoreU(v.p[i], D(), x + i * kNative); }
/// The first n ≤ 16 elements; the other lanes are +0. Reads nothing beyond x[n-1].
HWY_INLINE V16 load16(const float* x, size_t n) {
  if (n >= kLanes) return load16(x);
  alignas(64) float t[kLanes] = {};
  for (size_t i = 0; i < n; ++i) t[i] = x[i];
  return load16(t);
}
HWY_INLINE void store16(V16 v, float* x, size_t n) {
  if (n >= kLanes) return store16(v, x);
  alignas(64) float t[kLanes];
  store16(v, t);
  for (size_t i = 0; i < n; ++i) x[i] = t[i];
}
HWY_INLINE V16 add(V16 a, V16 b) {
  FS_PARTS a.p[i] = hn::Add(a.p[i], b.p[i]);
  return a;
}
HWY_INLINE V16 sub(V16 a, V16 b) {
  FS_PARTS a.p[i] = hn::Sub(a.p[i], b.p[i]);
  return a;
}
HWY_INLINE V16 mul(V16 a, V16 b) {
  FS_PARTS a.p[i] = hn::Mul(a.p[i], b.p[i]);
  return a;
}
/// a·b + c, one rounding.
HWY_INLINE V16 fma(V16 a, V16 b, V16 c) {
  FS_PARTS c.p[i] = hn::MulAdd(a.p[i], b.p[i], c.p[i]);
  return c;
}
/// f applied to each native part.
template <typename F>
HWY_INLINE V16 map(V16 a, F&& f) {
  FS_PARTS a.p[i] = f(a.p[i]);
  return a;
}
template <typename F>
HWY_INLINE V16 map(V16 a, V16 b, F&& f) {
  FS_PARTS a.p[i] = f(a.p[i], b.p[i]);
  return a;
}

using D4 = hn::FixedTag<float, 4>;
using V4 = hn::Vec<D4>;

/// Lanes 16 → 4: first a[i] + a[i+8], then b[i] + b[i+4].
template <class V16T>
HWY_INLINE V4 fold4(const V16T& v) {
  constexpr size_t Parts = kParts;
  const auto& a = v.p;
  if constexpr (Parts == 4) {
    return hn::Add(hn::Add(a[0], a[2 % Parts]), hn::Add(a[1 % Parts], a[3 % Parts]));
  } else if constexpr (Parts == 2) {
    const hn::Half<D> half;
    const auto b = hn::Add(a[0], a[1 % Parts]);
    return hn::Add(hn::LowerHalf(half, b), hn::UpperHalf(half, b));
  } else {
    const hn::Half<D> half;
    const hn::Half<hn::Half<D>> quarter;
    const auto b = hn::Add(hn::LowerHalf(half, a[0]), hn::UpperHalf(half, a[0]));
    return hn::Add(hn::LowerHalf(quarter, b), hn::UpperHalf(quarter, b));
  }
}

/// The horizontal sums of four vectors: each is (c0 + c2) + (c1 + c3) of its folded lanes.
HWY_INLINE V4 sum16x4(V16 a, V16 b, V16 c, V16 d) {
  const D4 d4;
  const V4 fa = fold4(a), fb = fold4(b), fc = fold4(c), fd = fold4(d);
  const V4 ac_lo = hn::InterleaveLower(d4, fa, fc), ac_hi = hn::InterleaveUpper(d4, fa, fc);
  const V4 bd_lo = hn::InterleaveLower(d4, fb, fd), bd_hi = hn::InterleaveUpper(d4, fb, fd);
  const V4 c0 = hn::InterleaveLower(d4, ac_lo, bd_lo), c1 = hn::InterleaveUpper(d4, ac_lo, bd_lo);
  const V4 c2 = hn::InterleaveLower(d4, ac_hi, bd_hi), c3 = hn::InterleaveUpper(d4, ac_hi, bd_hi);
  return hn::Add(hn::Add(c0, c2), hn::Add(c1, c3));
}
/// The horizontal sum of 16 lanes, the one tree of this backend.
HWY_INLINE float sum16(V16 a) {
  alignas(16) float c[4];
  hn::StoreU(fold4(a), D4(), c);
  return (c[0] + c[2]) + (c[1] + c[3]);
}

/// Calls body(offset, count) over [0, n) in steps of 16; count is 16 but for the tail.
template <typename F>
HWY_INLINE void for16(size_t n, F&& body) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, n - i);
}

/// Σ a[i]·b[i].
HWY_INLINE float dot(const float* a, const float* b, size_t n) {
  V16 acc = zero16();
  for16(n, [&](size_t i, size_t c) HWY_ATTR { acc = fma(load16(a + i, c), load16(b + i, c), acc); });
  return sum16(acc);
}
/// Σ a[i]².
HWY_INLINE float sum_squares(const float* a, size_t n) { return dot(a, a, n); }
/// Σ a[i].
HWY_INLINE float sum(const float* a, size_t n) {
  V16 acc = zero16();
  for16(n, [&](size_t i, size_t c) HWY_ATTR { acc = add(acc, load16(a + i, c)); });
  return sum16(acc);
}

}  // namespace firesteel::cpu
