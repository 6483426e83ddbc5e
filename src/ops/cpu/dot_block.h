// Register blocks of dot products: NR rows by NN outputs, each pair with its own 16-lane accumulator.
//
// Blocking decides only which accumulators are live together; each is filled in ascending k by fused
// multiply-adds and reduced by the one tree of vec.h, so a pair's result is the same bits in any block. Pure
// functions, any thread.
#pragma once

#include <cstring>

#include "ops/cpu/vec.h"

namespace firesteel::cpu {

// Weight types: how native lanes are read as fp32.
struct F32Weight {
  using T = float;
  static HWY_INLINE V load(const T* p) { return hn::LoadU(D(), p); }
  static HWY_INLINE float load1(const T* p) { return *p; }
};
struct Bf16Weight {
  using T = uint16_t;
  static HWY_INLINE V load(const T* p) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
  }
  static HWY_INLINE float load1(const T* p) {
    const uint32_t bits = uint32_t{*p} << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }
};
struct F16Weight {
  using T = uint16_t;
  static HWY_INLINE V load(const T* p) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(D(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
  }
  static HWY_INLINE float load1(const T* p) {
    const hn::FixedTag<hwy::float16_t, 4> d16;
    const hn::FixedTag<uint16_t, 4> du;
    return hn::GetLane(hn::PromoteTo(D4(), hn::BitCast(d16, hn::Set(du, *p))));
  }
};

/// acc[r][n] += Σ w_n[k]·x_r[k] in ascending steps of 16; a tail is padded with zeros.
template <class W, int NR, int NN>
HWY_INLINE void accumulate(const typename W::T* const (&w)[NN], const float* const (&x)[NR], size_t k,
                           V (&acc)[NR][NN][kParts]) {
  size_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    _Pragma("GCC unroll 4") for (size_t p = 0; p < kParts; ++p) {
      V wv[NN];
      _Pragma("GCC unroll 4") for (int n = 0; n < NN; ++n) wv[n] = W::load(w[n] + i + p * kNative);
      _Pragma("GCC unroll 4") for (int r = 0; r < NR; ++r) {
        const V xv = hn::LoadU(D(), x[r] + i + p * kNative);
        _Pragma("GCC unroll 4") for (int n = 0; n < NN; ++n) {
          acc[r][n][p] = hn::MulAdd(wv[n], xv, acc[r][n][p]);
        }
      }
    }
  }
  if (i == k) return;
  alignas(64) float wt[NN][kLanes] = {}, xt[NR][kLanes] = {};
  for (size_t j = 0; i + j < k; ++j) {
    for (int n = 0; n < NN; ++n) wt[n][j] = W::load1(w[n] + i + j);
    for (int r = 0; r < NR; ++r) xt[r][j] = x[r][i + j];
  }
  for (size_t p = 0; p < kParts; ++p) {
    for (int r = 0; r < NR; ++r) {
      const V xv = hn::Load(D(), xt[r] + p * kNative);
      for (int n = 0; n < NN; ++n)
        acc[r][n][p] = hn::MulAdd(hn::Load(D(), wt[n] + p * kNative), xv, acc[r][n][p]);
    }
  }
}

HWY_INLINE V16 join(const V (&a)[kParts]) {
  V16 r;
  FS_PARTS r.p[i] = a[i];
  return r;
}

/// NR rows × NN outputs over the whole range: out[r][n].
template <class W, int NR, int NN>
HWY_INLINE void whole(const typename W::T* const (&w)[NN], const float* const (&x)[NR], size_t k,
                      float* const (&out)[NR]) {
  V acc[NR][NN][kParts];
  for (auto& row : acc) {
    for (auto& one : row) {
      FS_PARTS one[i] = hn::Zero(D());
    }
  }
  accumulate<W, NR, NN>(w, x, k, acc);
  for (int r = 0; r < NR; ++r) {
    if constexpr (NN == 4) {
      hn::StoreU(sum16x4(join(acc[r][0]), join(acc[r][1]), join(acc[r][2]), join(acc[r][3])), D4(), out[r]);
    } else {
      for (int n = 0; n < NN; ++n) out[r][n] = sum16(join(acc[r][n]));
    }
  }
}

/// out[i·ldo + j] = a_i·b_j over k elements, for na rows of a (stride lda) and nb vectors b.
inline void dot_pairs(const float* a, int64_t lda, int na, const float* const* b, int nb, size_t k,
                      float* out, int64_t ldo) {
  const auto rows = [&]<int NR>(int i) HWY_ATTR {
    const float* x[NR];
    float* o[NR];
    for (int r = 0; r < NR; ++r) x[r] = a + (i + r) * lda;
    int j = 0;
    for (; j + 2 <= nb; j += 2) {
      const float* w[2] = {b[j], b[j + 1]};
      for (int r = 0; r < NR; ++r) o[r] = out + (i + r) * ldo + j;
      whole<F32Weight, NR, 2>(w, x, k, o);
    }
    if (j < nb) {
      const float* w[1] = {b[j]};
      for (int r = 0; r < NR; ++r) o[r] = out + (i + r) * ldo + j;
      whole<F32Weight, NR, 1>(w, x, k, o);
    }
  };
  int i = 0;
  for (; i + 3 <= na; i += 3) rows.template operator()<3>(i);
  for (; i < na; ++i) rows.template operator()<1>(i);
}

}  // namespace firesteel::cpu
