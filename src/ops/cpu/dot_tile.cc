// Dot products of blocks of rows and outputs: the arithmetic behind every matrix product of the CPU backend.
//
// Each (row, output) pair has its own 16-lane accumulator, filled in ascending k by fused multiply-adds.
// Register and cache blocking only decide which accumulators are live together; spilling one to memory does
// not change it.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/dot_block.h"
#include "ops/cpu/matrix.h"

namespace firesteel::cpu {
namespace {

/// e4m3 codes: exponent and mantissa in fp32's places, then the difference of the biases (127 - 7), exactly.
struct E4m3Weight {
  using T = uint8_t;
  static HWY_INLINE V load(const T* p) {
    const hn::Rebind<uint8_t, D> d8;
    const hn::RebindToUnsigned<D> d32;
    return value(hn::PromoteTo(d32, hn::LoadU(d8, p)));
  }
  static HWY_INLINE float load1(const T* p) {
    T all[kNative] = {*p};
    return hn::GetLane(load(all));
  }

 private:
  template <class V32>
  static HWY_INLINE V value(V32 code) {
    const hn::RebindToUnsigned<D> d32;
    const auto low = hn::And(code, hn::Set(d32, 0x7F));
    const V magnitude = hn::Mul(hn::BitCast(D(), hn::ShiftLeft<20>(low)), hn::Set(D(), 0x1p120f));
    const V sign = hn::BitCast(D(), hn::ShiftLeft<24>(hn::AndNot(hn::Set(d32, 0x7F), code)));
    const V nan = hn::BitCast(D(), hn::Set(d32, 0x7FC00000));
    const auto is_nan = hn::BitCast(D(), hn::VecFromMask(d32, hn::Eq(low, hn::Set(d32, 0x7F))));
    return hn::Or(hn::IfVecThenElse(is_nan, nan, magnitude), sign);
  }
};

/// Widens `count` weights. The next K-chunk of the row is asked for meanwhile: rows are far apart in memory,
/// too far for the machine to see the pattern.
template <class W>
void convert(const typename W::T* src, int32_t count, float* dst) {
  constexpr int32_t kLine = 64 / sizeof(typename W::T);
  for (int32_t ahead = 0; ahead < kChunkK; ahead += kLine) hwy::Prefetch(src + kChunkK + ahead);
  int32_t i = 0;
  for (; i + static_cast<int32_t>(kNative) <= count; i += kNative) hn::StoreU(W::load(src + i), D(), dst + i);
  for (; i < count; ++i) dst[i] = W::load1(src + i);
}

/// NR rows × NN outputs straight from memory.
template <class W, int NR, int NN>
HWY_INLINE void direct(const typename W::T* w, int64_t ldw, int32_t k, const Rows& x, int32_t r, int32_t k0,
                       float* out, int64_t ldo) {
  const typename W::T* wp[NN];
  const float* xp[NR];
  float* op[NR];
  for (int j = 0; j < NN; ++j) wp[j] = w + j * ldw;
  for (int j = 0; j < NR; ++j) {
    xp[j] = x.row(r + j) + k0;
    op[j] = out + (r + j) * ldo;
  }
  whole<W, NR, NN>(wp, xp, static_cast<size_t>(k), op);
}

/// Few rows: weights are used from memory (and the first cache) without a copy.
template <class W>
void few_rows(const MatrixView& m, int32_t n0, int32_t n, int32_t k0, int32_t k1, const Rows& x, float* out,
              int64_t ldo) {
  const auto* w = reinterpret_cast<const typename W::T*>(m.weight) + int64_t{n0} * m.k + k0;
  const int32_t k = k1 - k0;
  int32_t i = 0;
  if (x.count == 1) {
    for (; i + 4 <= n; i += 4) direct<W, 1, 4>(w + int64_t{i} * m.k, m.k, k, x, 0, k0, out + i, ldo);
  } else {
    for (; i + 2 <= n; i += 2) {
      const auto* at = w + int64_t{i} * m.k;
      int32_t r = 0;
      for (; r + 3 <= x.count; r += 3) direct<W, 3, 2>(at, m.k, k, x, r, k0, out + i, ldo);
      if (x.count - r == 2) {
        direct<W, 2, 2>(at, m.k, k, x, r, k0, out + i, ldo);
      } else if (x.count - r == 1) {
        direct<W, 1, 2>(at, m.k, k, x, r, k0, out + i, ldo);
      }
    }
  }
  for (; i < n; ++i) {
    for (int32_t r = 0; r < x.count; ++r)
      direct<W, 1, 1>(w + int64_t{i} * m.k, m.k, k, x, r, k0, out + i, ldo);
  }
}

/// One K-chunk of NR rows × NN outputs; accumulators live in memory [row][kTileOutputs][16] between chunks.
template <int NR, int NN>
void chunk(const float* w, const float* const* x, int32_t k, bool first, float* spill) {
  V acc[NR][NN][kParts];
  const float* wp[NN];
  const float* xp[NR];
  for (int n = 0; n < NN; ++n) wp[n] = w + n * kChunkK;
  for (int r = 0; r < NR; ++r) xp[r] = x[r];
  _Pragma("GCC unroll 4") for (int r = 0; r < NR; ++r) {
    _Pragma("GCC unroll 4") for (int n = 0; n < NN; ++n) {
      const float* s = spill + (r * kTileOutputs + n) * kLanes;
      FS_PARTS acc[r][n][i] = first ? hn::Zero(D()) : hn::LoadU(D(), s + i * kNative);
    }
  }
  accumulate<F32Weight, NR, NN>(wp, xp, k, acc);
  _Pragma("GCC unroll 4") for (int r = 0; r < NR; ++r) {
    _Pragma("GCC unroll 4") for (int n = 0; n < NN; ++n) {
      float* s = spill + (r * kTileOutputs + n) * kLanes;
      FS_PARTS hn::StoreU(acc[r][n][i], D(), s + i * kNative);
    }
  }
}
template <int NR>
void chunk_rows(const float* w, int32_t n, const float* const* x, int32_t k, bool first, float* spill) {
  int32_t i = 0;
  for (; i + 2 <= n; i += 2) chunk<NR, 2>(w + i * kChunkK, x, k, first, spill + i * kLanes);
  if (i < n) chunk<NR, 1>(w + i * kChunkK, x, k, first, spill + i * kLanes);
}

void reduce(const float* spill, int32_t n, float* out) {
  int32_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float* s = spill + i * kLanes;
    hn::StoreU(sum16x4(load16(s), load16(s + 16), load16(s + 32), load16(s + 48)), D4(), out + i);
  }
  for (; i < n; ++i) out[i] = sum16(load16(spill + i * kLanes));
}

/// Up to here converting a weight again for each three rows costs less than a copy.
constexpr int32_t kFewRows = 9;

/// At most kRowBlock rows and kTileOutputs outputs: weights are converted once per K-chunk.
void block(const MatrixView& m, int32_t n0, int32_t n, int32_t k0, int32_t k1, const Rows& x, int32_t r0,
           int32_t rows, float* out, int64_t ldo, float* scratch) {
  float* spill = scratch;
  float* w = scratch + size_t{kRowBlock} * kTileOutputs * kLanes;
  for (int32_t k = k0; k < k1; k += kChunkK) {
    const int32_t count = k1 - k < kChunkK ? k1 - k : kChunkK;
    for (int32_t i = 0; i < n; ++i) m.row_f32(n0 + i, k, count, w + i * kChunkK);
    const bool first = k == k0;
    for (int32_t r = 0; r < rows; r += 3) {
      const int32_t some = rows - r < 3 ? rows - r : 3;
      const float* xr[3] = {};
      for (int32_t j = 0; j < some; ++j) xr[j] = x.row(r0 + r + j) + k;
      float* s = spill + size_t(r) * kTileOutputs * kLanes;
      if (some == 3) {
        chunk_rows<3>(w, n, xr, count, first, s);
      } else if (some == 2) {
        chunk_rows<2>(w, n, xr, count, first, s);
      } else {
        chunk_rows<1>(w, n, xr, count, first, s);
      }
    }
  }
  for (int32_t r = 0; r < rows; ++r)
    reduce(spill + size_t(r) * kTileOutputs * kLanes, n, out + (r0 + r) * ldo);
}

}  // namespace

void MatrixView::row_f32(int32_t row, int32_t k0, int32_t count, float* dst) const {
  const int64_t at = int64_t{row} * k + k0;
  switch (format) {
    case MatrixFormat::kF32:
      std::memcpy(dst, reinterpret_cast<const float*>(weight) + at, sizeof(float) * count);
      return;
    case MatrixFormat::kBf16:
      return convert<Bf16Weight>(reinterpret_cast<const uint16_t*>(weight) + at, count, dst);
    case MatrixFormat::kExl3:
      return convert<F16Weight>(reinterpret_cast<const uint16_t*>(weight) + at, count, dst);
    case MatrixFormat::kFp8Block: {
      convert<E4m3Weight>(reinterpret_cast<const uint8_t*>(weight) + at, count, dst);
      const float* s = scale + int64_t{row / kScaleBlock} * ((k + kScaleBlock - 1) / kScaleBlock);
      for (int32_t i = 0; i < count;) {
        const int32_t end = std::min(count, ((k0 + i) / kScaleBlock + 1) * kScaleBlock - k0);
        const V16 by = set16(s[(k0 + i) / kScaleBlock]);
        for16(static_cast<size_t>(end - i),
              [&](size_t j, size_t c) { store16(mul(load16(dst + i + j, c), by), dst + i + j, c); });
        i = end;
      }
      return;
    }
    case MatrixFormat::kFp8Rows:
    case MatrixFormat::kQ4:
      CHECK(false);  // kept as bf16
  }
}

void dot_tile(const MatrixView& m, int32_t n0, int32_t n, int32_t k0, int32_t k1, const Rows& x, float* out,
              int64_t ldo, float* scratch) {
  if (k1 <= k0) {
    for (int32_t r = 0; r < x.count; ++r) std::memset(out + r * ldo, 0, sizeof(float) * n);
    return;
  }
  if (x.count <= kFewRows && m.format != MatrixFormat::kFp8Block) {
    if (m.format == MatrixFormat::kF32) return few_rows<F32Weight>(m, n0, n, k0, k1, x, out, ldo);
    if (m.format == MatrixFormat::kBf16) return few_rows<Bf16Weight>(m, n0, n, k0, k1, x, out, ldo);
    return few_rows<F16Weight>(m, n0, n, k0, k1, x, out, ldo);
  }
  for (int32_t r = 0; r < x.count; r += kRowBlock) {
    const int32_t rows = x.count - r < kRowBlock ? x.count - r : kRowBlock;
    for (int32_t i = 0; i < n; i += kTileOutputs) {
      const int32_t some = n - i < kTileOutputs ? n - i : kTileOutputs;
      block(m, n0 + i, some, k0, k1, x, r, rows, out + i, ldo, scratch);
    }
  }
}

// The 128-point Sylvester transform, strides 1 to 64 ascending, then one multiplication by 1/√128.
static void hadamard128(float* x) {
  for (int32_t stride = 1; stride < 16; stride *= 2) {
    for (int32_t i = 0; i < kHadamard; i += 2 * stride) {
      for (int32_t j = i; j < i + stride; ++j) {
        const float a = x[j], b = x[j + stride];
        x[j] = a + b;
        x[j + stride] = a - b;
      }
    }
  }
  for (int32_t stride = 16; stride < kHadamard; stride *= 2) {
    for (int32_t i = 0; i < kHadamard; i += 2 * stride) {
      for (int32_t j = i; j < i + stride; j += kLanes) {
        const V16 a = load16(x + j), b = load16(x + j + stride);
        store16(add(a, b), x + j);
        store16(sub(a, b), x + j + stride);
      }
    }
  }
  const V16 norm = set16(0.08838834764831845f);
  for (int32_t j = 0; j < kHadamard; j += kLanes) store16(mul(load16(x + j), norm), x + j);
}

void rotate_input(const float* suh, const float* x, int32_t k, float* dst) {
  for (int32_t i = 0; i < k; i += kHadamard) {
    for (int32_t j = i; j < i + kHadamard; j += kLanes) store16(mul(load16(suh + j), load16(x + j)), dst + j);
    hadamard128(dst + i);
  }
}
void rotate_output(const float* svh, float* x) {
  hadamard128(x);
  for (int32_t j = 0; j < kHadamard; j += kLanes) store16(mul(load16(x + j), load16(svh + j)), x + j);
}

}  // namespace firesteel::cpu
