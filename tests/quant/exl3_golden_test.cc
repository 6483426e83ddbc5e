// Matrices quantized and decoded by exllamav3 on a GPU: inner matrices and codebooks bit for bit, dense
// matrices within the fp16 roundings of that program, and mistakes in decoding that these comparisons must
// notice.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>

#include "quant/exl3.h"
#include "quant/hadamard.h"
#include "support/digest.h"
#include "support/golden.h"
#include "tensor/dtype.h"

namespace firesteel {
namespace {

using test::Golden;

const Golden& golden() {
  static const Golden g = Golden::of("exl3");
  return g;
}

struct Case {
  std::string name;
  std::vector<uint16_t> words, suh, svh;
  std::vector<uint16_t> inner;  // as recorded; some cases have only their error on record
  Exl3Trellis trellis;
};

std::vector<Case> all_cases() {
  std::vector<Case> out;
  for (const auto& [name, array] : golden().arrays()) {
    if (!name.ends_with(".trellis")) continue;
    Case c;
    c.name = name.substr(0, name.size() - 8);
    c.words = golden().words(name);
    c.suh = golden().words(c.name + ".suh");
    c.svh = golden().words(c.name + ".svh");
    if (golden().has(c.name + ".inner")) c.inner = golden().words(c.name + ".inner");
    c.trellis = {nullptr, array.shape[0] * 16, array.shape[1] * 16, static_cast<int>(array.shape[2] / 16),
                 golden().has(c.name + ".mcg")    ? Codebook::kMcg
                 : golden().has(c.name + ".mul1") ? Codebook::kMul1
                                                  : Codebook::k3Inst};
    out.push_back(std::move(c));
    out.back().trellis.words = out.back().words.data();
  }
  return out;
}

/// Those with recorded matrices.
std::vector<Case> cases() {
  std::vector<Case> out = all_cases();
  std::erase_if(out, [](const Case& c) { return c.inner.empty(); });
  return out;
}

std::vector<uint16_t> decode(const Exl3Trellis& t) {
  std::vector<uint16_t> out(static_cast<size_t>(t.k * t.n));
  exl3_decode(t, exl3_all_tiles(t), out.data(), t.n);
  return out;
}

size_t mismatches(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b) {
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
  return count;
}

TEST(Exl3Golden, EveryCodebookValue) {
  const auto same = [](Codebook codebook, const char* name) {
    const auto table = codebook_table(codebook);
    return mismatches({table.begin(), table.end()}, golden().words(name)) == 0;
  };
  EXPECT_TRUE(same(Codebook::k3Inst, "codebook.3inst"));
  EXPECT_TRUE(same(Codebook::kMcg, "codebook.mcg"));
  EXPECT_TRUE(same(Codebook::kMul1, "codebook.mul1"));
  EXPECT_FALSE(same(Codebook::kMcg, "codebook.3inst"));
}

TEST(Exl3Golden, InnerMatricesBitForBit) {
  const auto all = cases();
  EXPECT_EQ(all.size(), 30u);
  for (const Case& c : all) EXPECT_EQ(mismatches(decode(c.trellis), c.inner), 0u) << c.name;
}

TEST(Exl3Golden, MistakesShow) {
  for (const Case& c : cases()) {
    const size_t most = c.inner.size() * 9 / 10;
    // Words in file order.
    std::vector<uint16_t> swapped = c.words;
    for (size_t i = 0; i < swapped.size(); i += 2) std::swap(swapped[i], swapped[i + 1]);
    Exl3Trellis wrong = c.trellis;
    wrong.words = swapped.data();
    EXPECT_GT(mismatches(decode(wrong), c.inner), most) << c.name;
    // Another codebook.
    wrong = c.trellis;
    wrong.codebook = c.trellis.codebook == Codebook::kMul1 ? Codebook::kMcg : Codebook::kMul1;
    EXPECT_GT(mismatches(decode(wrong), c.inner), most) << c.name;
    // Rows and columns of each tile exchanged.
    std::vector<uint16_t> transposed(c.inner.size());
    for (int64_t kt = 0; kt < c.trellis.k / 16; ++kt) {
      for (int64_t nt = 0; nt < c.trellis.n / 16; ++nt) {
        exl3_decode_transposed(c.trellis, {kt, kt + 1, nt, nt + 1},
                               transposed.data() + kt * 16 * c.trellis.n + nt * 16, c.trellis.n);
      }
    }
    EXPECT_GT(mismatches(transposed, c.inner), most) << c.name;
  }
}

/// W in float64 from the recorded inner matrix and the definition of H.
std::vector<double> dense_by_definition(const Case& c) {
  const auto k = static_cast<size_t>(c.trellis.k), n = static_cast<size_t>(c.trellis.n);
  const auto sign = [](size_t i, size_t j) { return std::popcount(i & j & 127) & 1 ? -1.0 : 1.0; };
  std::vector<double> half(k * n), out(k * n);
  for (size_t i = 0; i < k; ++i) {
    for (size_t j = i / 128 * 128; j < i / 128 * 128 + 128; ++j) {
      for (size_t col = 0; col < n; ++col) half[i * n + col] += sign(i, j) * f16_to_f32(c.inner[j * n + col]);
    }
  }
  for (size_t i = 0; i < k; ++i) {
    for (size_t col = 0; col < n; ++col) {
      double sum = 0;
      for (size_t j = col / 128 * 128; j < col / 128 * 128 + 128; ++j) sum += sign(col, j) * half[i * n + j];
      out[i * n + col] = sum / 128.0 * f16_to_f32(c.suh[i]) * f16_to_f32(c.svh[col]);
    }
  }
  return out;
}

struct Difference {
  double relative;  // norm of the difference over the norm of the second
  double cosine;
};

template <typename A, typename B>
Difference compare(const std::vector<A>& a, const std::vector<B>& b) {
  double aa = 0, bb = 0, ab = 0, dd = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    aa += x * x, bb += y * y, ab += x * y, dd += (x - y) * (x - y);
  }
  return {std::sqrt(dd / bb), ab / std::sqrt(aa * bb)};
}

std::vector<float> dense(const Case& c) {
  std::vector<float> out(static_cast<size_t>(c.trellis.k * c.trellis.n));
  // In two calls, as threads would.
  const int64_t blocks = c.trellis.k / 128;
  exl3_dense(c.trellis, c.suh.data(), c.svh.data(), 0, blocks / 2, out.data());
  exl3_dense(c.trellis, c.suh.data(), c.svh.data(), blocks / 2, blocks,
             out.data() + blocks / 2 * 128 * c.trellis.n);
  return out;
}

TEST(Exl3Golden, DenseMatrices) {
  double worst_exact = 0, worst_recorded = 0;
  for (const Case& c : cases()) {
    const std::vector<float> w = dense(c);
    const Difference exact = compare(w, dense_by_definition(c));
    EXPECT_LT(exact.relative, 4e-7) << c.name;
    const Difference recorded = compare(w, golden().floats(c.name + ".dense"));
    EXPECT_LT(recorded.relative, 3e-4) << c.name;
    worst_exact = std::max(worst_exact, exact.relative);
    worst_recorded = std::max(worst_recorded, recorded.relative);

    // A wrong matrix of the right size: only the cosine tells.
    Case wrong = c;
    for (size_t i = 0; i < wrong.words.size(); i += 2) std::swap(wrong.words[i], wrong.words[i + 1]);
    wrong.trellis.words = wrong.words.data();
    const Difference noise = compare(dense(wrong), golden().floats(c.name + ".dense"));
    EXPECT_LT(std::abs(noise.cosine), 0.25) << c.name;
    EXPECT_GT(recorded.cosine, 0.999999) << c.name;
    // Signs in place of the scales.
    Case unscaled = c;
    for (uint16_t& s : unscaled.suh) s = (s & 0x8000) | 0x3C00;
    EXPECT_GT(compare(dense(unscaled), golden().floats(c.name + ".dense")).relative, 0.01) << c.name;
  }
  std::printf("dense: relative error %.2e against float64, %.2e against the recorded fp16\n", worst_exact,
              worst_recorded);
}

TEST(Exl3Golden, DenseBitsAreTheSameOnEveryMachine) {
  // Recorded on x86-64; one changed rounding, fused operation or order of a sum anywhere would show.
  uint32_t digest = 0;
  for (const Case& c : cases()) {
    const std::vector<float> w = dense(c);
    digest = std::rotl(digest, 1) ^ test::crc32(w.data(), w.size() * sizeof(float));
  }
  EXPECT_EQ(digest, 0x927CF14Fu);
}

TEST(Exl3Golden, DecodedWeightsHaveTheRecordedErrors) {
  // The end of the chain: what was quantized against what comes out, for each matrix the error that its
  // quantizer saw.
  std::map<std::string, double> recorded;
  std::ifstream in(test::golden_path("exl3/errors.tsv"));
  std::string name;
  for (double relative, proxy; in >> name >> relative >> proxy;) recorded[name] = relative;
  EXPECT_EQ(recorded.size(), 40u);
  size_t checked = 0;
  for (const Case& c : all_cases()) {
    const std::string shape = c.name.substr(0, c.name.find('.'));
    const Difference d = compare(dense(c), golden().floats(shape + ".weight"));
    EXPECT_NEAR(d.relative, recorded[c.name], 0.002 * recorded[c.name] + 2e-5) << c.name;
    ++checked;
  }
  EXPECT_EQ(checked, 40u);
}

}  // namespace
}  // namespace firesteel
