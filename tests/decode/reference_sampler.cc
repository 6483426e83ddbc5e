#include "reference_sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "base/math64.h"

namespace firesteel {
namespace {

uint64_t finalise(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  x ^= x >> 31;
  return x;
}

struct Token {
  float value;
  int32_t id;
};

/// ⌈x · total⌉ by the definition: x = mantissa / 2^k, one bit of k at a time.
int64_t ceil_product(double x, int64_t total) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);  // x = fraction · 2^exponent
  unsigned __int128 product =
      static_cast<unsigned __int128>(static_cast<uint64_t>(std::ldexp(fraction, 53))) *
      static_cast<uint64_t>(total);
  bool remainder = false;
  for (int k = 53 - exponent; k > 0; --k) {
    remainder = remainder || (product & 1) != 0;
    product >>= 1;
  }
  return static_cast<int64_t>(product) + (remainder ? 1 : 0);
}

}  // namespace

double reference_noise(uint64_t seed, int64_t position, int32_t id, int bits) {
  const uint64_t a = finalise(seed + 0x9E3779B97F4A7C15ull);
  const uint64_t b = finalise(a ^ (static_cast<uint64_t>(position) * 0xD1B54A32D192ED03ull));
  const uint64_t h = finalise(b ^ static_cast<uint64_t>(id));
  const double u = bits == 53 ? std::ldexp(static_cast<double>(h >> 11), -53) + std::ldexp(1.0, -54)
                              : std::ldexp(static_cast<double>(h >> 12) + 0.5, -52);
  return -log64(-log64(u));
}

Choice reference_sample(std::span<const float> logits, const SampleKey& key, int bits) {
  std::vector<Token> order;
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > -INFINITY) order.push_back({std::min(logits[i], FLT_MAX), static_cast<int32_t>(i)});
  if (order.empty()) return {};
  std::sort(order.begin(), order.end(), [](const Token& a, const Token& b) {
    return a.value != b.value ? a.value > b.value : a.id < b.id;
  });
  const SamplingParams& p = key.params;
  if (!(p.temperature > 0)) return {order[0].id, 1, order[0].id};

  const double temperature = std::max(p.temperature, 1e-6);
  const auto s = [&](size_t i) { return static_cast<double>(order[i].value) / temperature; };
  size_t keep = order.size();
  const bool nucleus = p.top_p > 0 && p.top_p < 1;
  if (p.top_k >= 1) {
    const size_t k = std::min<size_t>(static_cast<size_t>(p.top_k), order.size());
    keep = k;
    if (nucleus) {
      double sum = 0;
      for (size_t i = 0; i < k; ++i) sum += exp64(s(i) - s(0));
      size_t below = 0;
      double cumulated = 0;
      for (size_t i = 0; i < k; ++i) {
        cumulated += exp64(s(i) - s(0)) / sum;
        if (cumulated < p.top_p) ++below;
      }
      keep = std::min(k, 1 + below);
    }
  } else if (nucleus) {
    const auto mass = [&](size_t i) {
      return static_cast<int64_t>(std::floor(std::ldexp(exp64(s(i) - s(0)), 40)));
    };
    int64_t total = 0;
    for (size_t i = 0; i < order.size(); ++i) total += mass(i);
    const int64_t need = ceil_product(p.top_p, total);
    size_t below = 0;
    int64_t cumulated = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      cumulated += mass(i);
      if (cumulated < need) ++below;
    }
    keep = std::min(order.size(), 1 + below);
  }
  if (p.min_p > 0) {
    size_t likely = 0;
    while (likely < order.size() && s(likely) >= s(0) + log64(p.min_p)) ++likely;
    keep = std::max<size_t>(1, std::min(keep, likely));
  }
  size_t best = 0;
  double best_score = -INFINITY;
  for (size_t i = 0; i < keep; ++i) {
    const double score = s(i) + reference_noise(key.seed, key.position, order[i].id, bits);
    if (i == 0 || score > best_score) best = i, best_score = score;
  }
  return {order[best].id, static_cast<int32_t>(keep), order[keep - 1].id};
}

}  // namespace firesteel
