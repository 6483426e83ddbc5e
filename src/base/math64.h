// Deterministic double-precision exp and log: the same bits on x86 and Arm, in vector loops and alone.
//
// Built from IEEE multiplication, addition, division, explicit fma and bit operations only, never from the
// platform's libm, so that every rank and every machine draws the same token. Errors stay below one unit in
// the last place. Pure functions, any thread. They rely on round-to-nearest, on subnormals being honoured and
// on -ffp-contract=off.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace firesteel {

namespace math64_internal {

inline constexpr double kLog2E = 0x1.71547652b82fep+0;
inline constexpr double kLn2High = 0x1.62e42fefa38p-1;  // 42 bits: k · kLn2High is exact for |k| < 2^11
inline constexpr double kLn2Low = 0x1.ef35793c7673p-45;
inline constexpr double kRoundMagic = 0x1.8p+52;  // adding it rounds to an integer held in the low bits

/// exp(r) for |r| ≤ ln 2 / 2: the Taylor sum through r^13 (the next term is below 5e-18).
inline double exp_reduced(double r) {
  double p = 1.0 / 6227020800.0;
  p = std::fma(p, r, 1.0 / 479001600.0);
  p = std::fma(p, r, 1.0 / 39916800.0);
  p = std::fma(p, r, 1.0 / 3628800.0);
  p = std::fma(p, r, 1.0 / 362880.0);
  p = std::fma(p, r, 1.0 / 40320.0);
  p = std::fma(p, r, 1.0 / 5040.0);
  p = std::fma(p, r, 1.0 / 720.0);
  p = std::fma(p, r, 1.0 / 120.0);
  p = std::fma(p, r, 1.0 / 24.0);
  p = std::fma(p, r, 1.0 / 6.0);
  p = std::fma(p, r, 0.5);
  return 1.0 + std::fma(r * r, p, r);
}

}  // namespace math64_internal

/// exp(x) for −708 ≤ x ≤ 709, without branches, so that a loop over it becomes vector code. Same bits as
/// exp64.
inline double exp64_bounded(double x) {
  using namespace math64_internal;
  const double shifted = std::fma(x, kLog2E, kRoundMagic);
  const double k = shifted - kRoundMagic;
  const double r = std::fma(-k, kLn2Low, std::fma(-k, kLn2High, x));
  // The low bits of `shifted` hold k in two's complement; moved to the exponent field they make 2^k.
  const uint64_t scale = (std::bit_cast<uint64_t>(shifted) + 1023) << 52;
  return exp_reduced(r) * std::bit_cast<double>(scale);
}

/// exp(x) for every x: +inf above 709.78, gradual underflow to 0, NaN for NaN.
inline double exp64(double x) {
  using namespace math64_internal;
  if (x >= -708.0 && x <= 709.0) return exp64_bounded(x);
  if (x != x) return x;
  if (x > 710.0) return std::numeric_limits<double>::infinity();
  if (x < -746.0) return 0.0;
  // Close to the ends 2^k leaves the range of doubles, or the result does: scale in two steps, the last one
  // rounds.
  const double shifted = std::fma(x, kLog2E, kRoundMagic);
  const double k = shifted - kRoundMagic;
  const double r = std::fma(-k, kLn2Low, std::fma(-k, kLn2High, x));
  const double step = x < 0 ? 0x1p-100 : 0x1p+100;
  const int64_t rest = static_cast<int64_t>(k) + (x < 0 ? 100 : -100);
  const double scale = std::bit_cast<double>(static_cast<uint64_t>(rest + 1023) << 52);
  return exp_reduced(r) * scale * step;
}

/// Natural logarithm: −inf at 0, NaN below, +inf at +inf. log64(1) is exactly 0.
inline double log64(double x) {
  using namespace math64_internal;
  uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t k = 0;
  if (bits < 0x0010000000000000ull || bits >= 0x7FF0000000000000ull) {
    if ((bits << 1) == 0) return -std::numeric_limits<double>::infinity();
    if (x != x || x == std::numeric_limits<double>::infinity()) return x;
    if (x < 0) return std::numeric_limits<double>::quiet_NaN();
    bits = std::bit_cast<uint64_t>(x * 0x1p54);  // subnormal
    k = -54;
  }
  // x = 2^k · m with m in [√½, √2): the offset moves the cut from 1 to √½.
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDull;
  const uint64_t offset = bits - kSqrtHalf;
  k += static_cast<int64_t>(offset) >> 52;
  const double m = std::bit_cast<double>((offset & 0x000FFFFFFFFFFFFFull) + kSqrtHalf);
  // log(1+f) = 2·atanh(s) with s = f/(2+f), and 2s = f − s·f, so log(1+f) = f − s·(f − R), R = 2s²/3 + 2s⁴/5
  // + ….
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double p = 2.0 / 23.0;
  p = std::fma(p, z, 2.0 / 21.0);
  p = std::fma(p, z, 2.0 / 19.0);
  p = std::fma(p, z, 2.0 / 17.0);
  p = std::fma(p, z, 2.0 / 15.0);
  p = std::fma(p, z, 2.0 / 13.0);
  p = std::fma(p, z, 2.0 / 11.0);
  p = std::fma(p, z, 2.0 / 9.0);
  p = std::fma(p, z, 2.0 / 7.0);
  p = std::fma(p, z, 2.0 / 5.0);
  p = std::fma(p, z, 2.0 / 3.0);
  // f − s·(f − R) = f − f²/2 + s·(f²/2 + R): the term with s's rounding error becomes small.
  const double half_square = 0.5 * f * f;
  const double tail = s * std::fma(z, p, half_square);
  const double dk = static_cast<double>(k);
  return std::fma(dk, kLn2High, f - (half_square - (tail + dk * kLn2Low)));
}

}  // namespace firesteel
