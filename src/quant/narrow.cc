#include "quant/narrow.h"

#include <algorithm>
#include <string>

// x86-64-v3 has AVX2 and FMA but promises no AES; Highway would otherwise fall back to SSSE3.
#ifndef HWY_DISABLE_PCLMUL_AES
#define HWY_DISABLE_PCLMUL_AES
#endif
#include <hwy/highway.h>

namespace firesteel {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Sums have 16 lanes joined by one tree, whatever vectors the machine has.
constexpr int kLanes = 16, kGroup = static_cast<int>(kQ4Group);
using D = hn::CappedTag<float, kLanes>;
using V = hn::Vec<D>;
constexpr int kNative = static_cast<int>(hn::MaxLanes(D())), kParts = kLanes / kNative;

struct Lanes {
  V part[kParts];
  Lanes() {
    for (V& v : part) v = hn::Zero(D());
  }
  float sum() const {
    alignas(64) float s[kLanes];
    for (int i = 0; i < kParts; ++i) hn::Store(part[i], D(), s + i * kNative);
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) s[i] += s[i + half];
    }
    return s[0];
  }
};

/// Calls body(first element, part of the lanes) over a group.
template <typename Body>
HWY_INLINE void each_vector(Body&& body) {
  for (int j = 0; j < kGroup; j += kLanes) {
    for (int i = 0; i < kParts; ++i) body(j + i * kNative, i);
  }
}

float round_bf16(float v) { return bf16_to_f32(f32_to_bf16(v)); }

/// Scale and offset of one group, both bf16 numbers, and the squared error they leave.
struct Fit {
  float scale = kLeastQ4Scale, offset = 0, error = 0;
};

/// Makes the pair one that the format allows.
Fit allowed(float scale, float offset) {
  Fit f;
  f.scale = std::max(round_bf16(scale), kLeastQ4Scale);
  f.offset = round_bf16(offset);
  if (std::fabs(f.offset) < f.scale * 0x1p-16f) f.offset = 0.0f;
  return f;
}

/// The nearest code of each weight, as floats, and the squared error.
float assign(const float* w, const Fit& f, float* codes) {
  const D d;
  // Adding and taking away 1.5 · 2^23 rounds to an integer.
  const V round = hn::Set(d, 12582912.0f), most = hn::Set(d, 15.0f);
  const V inverse = hn::Set(d, 1.0f / f.scale), scale = hn::Set(d, f.scale), offset = hn::Set(d, f.offset);
  Lanes error;
  each_vector([&](int at, int part) {
    const V x = hn::LoadU(d, w + at);
    V q = hn::Mul(hn::Sub(x, offset), inverse);
    q = hn::Min(hn::Max(q, hn::Zero(d)), most);
    q = hn::Sub(hn::Add(q, round), round);
    hn::StoreU(q, d, codes + at);
    const V off = hn::MulAdd(q, scale, hn::Sub(offset, x));
    error.part[part] = hn::MulAdd(off, off, error.part[part]);
  });
  return error.sum();
}

/// Scale and offset of least squared error for given codes; false where all codes are equal.
bool regress(const float* w, float base, const float* codes, Fit& out) {
  const D d;
  const V from = hn::Set(d, base);
  Lanes q1, q2, r1, qr;
  each_vector([&](int at, int part) {
    const V q = hn::LoadU(d, codes + at), r = hn::Sub(hn::LoadU(d, w + at), from);
    q1.part[part] = hn::Add(q1.part[part], q);
    q2.part[part] = hn::MulAdd(q, q, q2.part[part]);
    r1.part[part] = hn::Add(r1.part[part], r);
    qr.part[part] = hn::MulAdd(q, r, qr.part[part]);
  });
  const float n = kGroup, sum_q = q1.sum(), sum_r = r1.sum();
  const float spread = n * q2.sum() - sum_q * sum_q;  // exact integers
  if (spread <= 0.0f) return false;
  const float scale = (n * qr.sum() - sum_q * sum_r) / spread;
  if (!(scale > 0.0f)) return false;
  // The offset that suits the scale as it is rounded.
  out = allowed(scale, 0.0f);
  out = allowed(out.scale, base + (sum_r - out.scale * sum_q) / n);
  return true;
}

/// Ranges from the whole spread of the group down to about half of it, shrunk towards the middle and towards
/// zero in turn (few large weights on one side); from the best of them, codes and least squares in turn until
/// nothing is gained.
Fit search(const float* w, float lo, float hi, float* codes) {
  constexpr int kSteps = 16, kRefinements = 6;
  const float middle = lo + (hi - lo) * 0.5f;
  Fit best;
  for (int i = 0; i < kSteps; ++i) {
    const float part = 1.0f - 0.03f * static_cast<float>(i), to = i % 2 == 0 ? middle : 0.0f;
    const float low = to + (lo - to) * part, high = to + (hi - to) * part;
    Fit f = allowed((high - low) * (1.0f / 15.0f), low);
    f.error = assign(w, f, codes);
    if (i == 0 || f.error < best.error) best = f;
    if (best.error == 0.0f) break;
  }
  best.error = assign(w, best, codes);
  for (int i = 0; i < kRefinements && best.error > 0.0f; ++i) {
    Fit f;
    float other[kGroup];
    if (!regress(w, lo, codes, f)) break;
    f.error = assign(w, f, other);
    if (!(f.error < best.error)) break;
    best = f;
    std::copy_n(other, kGroup, codes);
  }
  return best;
}

/// Least and greatest of `n` weights; false when one is not finite or too large.
bool range_of(const float* w, int64_t n, float& lo, float& hi) {
  lo = hi = w[0];
  bool fine = true;
  for (int64_t i = 0; i < n; ++i) {
    lo = w[i] < lo ? w[i] : lo;
    hi = w[i] > hi ? w[i] : hi;
    fine &= std::fabs(w[i]) <= kLargestNarrowed;
  }
  return fine;
}

Error refused(const float* w, int64_t from, int64_t n) {
  int64_t i = 0;
  while (i + 1 < n && std::fabs(w[i]) <= kLargestNarrowed) ++i;
  return {ErrorCode::kUnsupported, "column " + std::to_string(from + i) + " holds " + std::to_string(w[i]) +
                                       ", which has no place in a narrowed matrix (--dense bf16 keeps it)"};
}

}  // namespace

Status q4_from_row(const float* w, int64_t k, uint8_t* codes, Q4Scale* scales) {
  for (int64_t g = 0; g < k; g += kGroup) {
    float lo, hi, q[kGroup];
    if (!range_of(w + g, kGroup, lo, hi)) return refused(w + g, g, kGroup);
    const Fit f = search(w + g, lo, hi, q);
    for (int i = 0; i < kGroup; ++i) codes[g + i] = static_cast<uint8_t>(q[i]);
    scales[g / kGroup] = {f32_to_bf16(f.scale), f32_to_bf16(f.offset)};
  }
  return Status::success();
}

Status fp8_from_row(const float* w, int64_t k, uint8_t* codes, uint16_t* scales) {
  for (int64_t g = 0; g < k; g += kFp8Group) {
    const int64_t n = std::min(kFp8Group, k - g);
    float lo, hi;
    if (!range_of(w + g, n, lo, hi)) return refused(w + g, g, n);
    const float scale = std::max(round_bf16(std::max(hi, -lo) / 448.0f), kLeastFp8Scale),
                inverse = 1.0f / scale;
    for (int64_t i = 0; i < n; ++i) codes[g + i] = f32_to_f8e4m3(w[g + i] * inverse);
    scales[g / kFp8Group] = f32_to_bf16(scale);
  }
  return Status::success();
}

}  // namespace firesteel
