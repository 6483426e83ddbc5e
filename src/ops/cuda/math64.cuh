// base/math64.h on the device: the same operations in the same order, each rounded alone, so the same bits.
// (The compiler may contract a·b + c here, hence the named roundings.)
#pragma once

#include <cstdint>

namespace firesteel::cuda {

namespace math64_internal {

inline constexpr double kLog2E = 0x1.71547652b82fep+0;
inline constexpr double kLn2High = 0x1.62e42fefa38p-1;
inline constexpr double kLn2Low = 0x1.ef35793c7673p-45;
inline constexpr double kRoundMagic = 0x1.8p+52;

}  // namespace math64_internal

/// exp(x) for −708 ≤ x ≤ 709.
__device__ __forceinline__ double exp64_bounded(double x) {
  using namespace math64_internal;
  const double shifted = __fma_rn(x, kLog2E, kRoundMagic);
  const double k = __dsub_rn(shifted, kRoundMagic);
  const double r = __fma_rn(-k, kLn2Low, __fma_rn(-k, kLn2High, x));
  const uint64_t scale = (static_cast<uint64_t>(__double_as_longlong(shifted)) + 1023) << 52;
  double p = 1.0 / 6227020800.0;
  p = __fma_rn(p, r, 1.0 / 479001600.0);
  p = __fma_rn(p, r, 1.0 / 39916800.0);
  p = __fma_rn(p, r, 1.0 / 3628800.0);
  p = __fma_rn(p, r, 1.0 / 362880.0);
  p = __fma_rn(p, r, 1.0 / 40320.0);
  p = __fma_rn(p, r, 1.0 / 5040.0);
  p = __fma_rn(p, r, 1.0 / 720.0);
  p = __fma_rn(p, r, 1.0 / 120.0);
  p = __fma_rn(p, r, 1.0 / 24.0);
  p = __fma_rn(p, r, 1.0 / 6.0);
  p = __fma_rn(p, r, 0.5);
  const double reduced = __dadd_rn(1.0, __fma_rn(__dmul_rn(r, r), p, r));
  return __dmul_rn(reduced, __longlong_as_double(static_cast<long long>(scale)));
}

/// Natural logarithm of a normal positive number.
__device__ __forceinline__ double log64_normal(double x) {
  using namespace math64_internal;
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDull;
  const uint64_t offset = static_cast<uint64_t>(__double_as_longlong(x)) - kSqrtHalf;
  const int k = static_cast<int>(static_cast<int64_t>(offset) >> 52);
  const double m = __longlong_as_double(static_cast<long long>((offset & 0x000FFFFFFFFFFFFFull) + kSqrtHalf));
  const double f = __dsub_rn(m, 1.0);
  const double s = __ddiv_rn(f, __dadd_rn(2.0, f));
  const double z = __dmul_rn(s, s);
  double p = 2.0 / 23.0;
  p = __fma_rn(p, z, 2.0 / 21.0);
  p = __fma_rn(p, z, 2.0 / 19.0);
  p = __fma_rn(p, z, 2.0 / 17.0);
  p = __fma_rn(p, z, 2.0 / 15.0);
  p = __fma_rn(p, z, 2.0 / 13.0);
  p = __fma_rn(p, z, 2.0 / 11.0);
  p = __fma_rn(p, z, 2.0 / 9.0);
  p = __fma_rn(p, z, 2.0 / 7.0);
  p = __fma_rn(p, z, 2.0 / 5.0);
  p = __fma_rn(p, z, 2.0 / 3.0);
  const double half_square = __dmul_rn(__dmul_rn(0.5, f), f);
  const double tail = __dmul_rn(s, __fma_rn(z, p, half_square));
  const double dk = static_cast<double>(k);
  const double low = __dadd_rn(tail, __dmul_rn(dk, kLn2Low));
  return __fma_rn(dk, kLn2High, __dsub_rn(f, __dsub_rn(half_square, low)));
}

}  // namespace firesteel::cuda
