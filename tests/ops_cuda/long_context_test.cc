// Selection and attention at 1,048,576 tokens with pages as large as the published model's (all layers'
// planes in one page, so that addresses pass 4 GiB): against float64, with everything that must not be read
// poisoned.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "ops_cuda/both.h"
#include "quant/kv_row.h"

namespace firesteel::test {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

constexpr int32_t kTokens = 1 << 20, kPages = kTokens / kPageTokens;
constexpr int32_t kPool = 4, kTop = 512, kIndexHeads = 32, kDim = 128, kPools = kTokens / kPool;
constexpr int32_t kHeads = 32, kQk = 256, kV = 256, kLatent = 512, kLayers = 11;

/// Row i of n values in the format of a plane, and the values that it stands for.
struct Row {
  Bytes bytes;
  Floats values;
};
Row row_of(const Floats& x, KvFormat kv) {
  Row r{Bytes(kv == KvFormat::kFp8 ? kv_row_bytes(static_cast<int32_t>(x.size())) : 2 * x.size()), x};
  if (kv == KvFormat::kFp8) {
    kv_row_quantize(x.data(), static_cast<int32_t>(x.size()), r.bytes.data());
    kv_row_dequantize(r.bytes.data(), static_cast<int32_t>(x.size()), r.values.data());
  } else {
    for (size_t i = 0; i < x.size(); ++i) {
      const uint16_t bits = f32_to_bf16(x[i]);
      std::memcpy(r.bytes.data() + 2 * i, &bits, 2);
      r.values[i] = bf16_to_f32(bits);
    }
  }
  return r;
}

class LongContext : public testing::TestWithParam<KvFormat> {
 protected:
  /// Pages of all layers, poisoned; the layer under test lies at the end of each page. False: no room.
  bool make_planes(Side& side) {
    Ops& ops = side.ops();
    latent_bytes_ = ops.latent_row_bytes(kLatent);
    pool_bytes_ = ops.pool_row_bytes(kDim);
    const size_t layer = latent_bytes_ * kPageTokens + pool_bytes_ * (kPageTokens / kPool);
    const size_t stride = layer * kLayers, total = stride * kPages;
    auto memory = ops.allocate(total, "pages of a long context");
    if (!memory.ok()) return false;
    const size_t piece = size_t{64} << 20;
    const std::vector<unsigned char> poison(piece, 0xFF);
    ops.upload(memory.value(), poison.data(), piece);
    for (size_t at = piece; at < total; at += piece)
      ops.copy(memory.value() + at, memory.value(), std::min(piece, total - at));
    latents_ = {memory.value() + stride - layer, stride};
    pools_ = {latents_.base + latent_bytes_ * kPageTokens, stride};
    std::printf("%zu bytes a token of one layer, pages of %zu bytes, %zu in all\n", layer / kPageTokens,
                stride, total);
    return true;
  }
  void bind(Side& side, int32_t rows) {
    batch_ = TestBatch();
    batch_.add(rows, kTokens - rows, 0);
    side.ops().bind(batch_.view());
  }
  size_t offset(Plane p, int32_t i, int32_t per_page, size_t bytes) const {
    return static_cast<size_t>(batch_.pages[static_cast<size_t>(i / per_page)]) * p.page_stride +
           static_cast<size_t>(i % per_page) * bytes;
  }

  struct Result {
    std::vector<int32_t> pools;  // of the last row
    Floats out;
  };
  Result last_row(Side& side, int32_t rows) {
    bind(side, rows);
    const auto r = static_cast<size_t>(rows);
    const auto repeated = [&](const Floats& one) {  // rows of other values before the one that counts
      Floats all;
      for (size_t i = 0; i + 1 < r; ++i) {
        for (const float v : one) all.push_back(round_bf16(v * (1.0f + 0.125f * static_cast<float>(i % 5))));
      }
      all.insert(all.end(), one.begin(), one.end());
      return all;
    };
    Selection sel;
    sel.max_pools = kTop;
    sel.pools = reinterpret_cast<int32_t*>(side.poisoned(r * kTop));
    sel.count = reinterpret_cast<int32_t*>(side.poisoned(r));
    IndexerWeights ix;
    ix.heads = kIndexHeads;
    ix.dim = kDim;
    ix.top_pools = kTop;
    side.ops().pool_select(Stage::kMain, ix, side.act(repeated(qi_)), side.act(repeated(hw_)), pools_, sel);
    Result out;
    const auto all = side.read(sel.pools, r * kTop);
    EXPECT_EQ(side.read(sel.count, r).back(), kTop);
    out.pools.assign(all.end() - kTop, all.end());
    if (attention_.kv_b.data != nullptr) {
      Act* y = side.poisoned_act(r * kHeads * kV);
      side.ops().sparse_attention(Stage::kMain, attention_, side.act(repeated(q_)), latents_, sel, kPool, y);
      const Floats v = side.read_act(y, r * kHeads * kV);
      out.out.assign(v.end() - kHeads * kV, v.end());
    }
    side.finish();
    return out;
  }

  TestBatch batch_;
  Plane latents_, pools_;
  size_t latent_bytes_ = 0, pool_bytes_ = 0;
  Floats qi_, hw_, q_;
  AttentionWeights attention_;
};

TEST_P(LongContext, AMillionTokens) {
  if (cuda_side(GetParam()) == nullptr) GTEST_SKIP() << "no usable GPU";
  Side& side = *cuda_side(GetParam());
  side.reset();
  if (!make_planes(side)) GTEST_SKIP() << "not enough GPU memory";
  Random random;
  bind(side, 1);

  // Pooled keys: a page's worth at a time. Cheap numbers, for there are 33 million.
  std::vector<float> keys(size_t{kPools} * kDim);
  uint64_t state = random.bits() | 1;
  const int32_t per_page = kPageTokens / kPool;
  Floats key(kDim);
  for (int32_t page = 0; page < kPages; ++page) {
    Bytes image;
    for (int32_t i = 0; i < per_page; ++i) {
      for (float& v : key) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        v = static_cast<float>(static_cast<int32_t>(state >> 40) - (1 << 23)) * 0x1p-22f;
      }
      const Row row = row_of(key, GetParam());
      image.insert(image.end(), row.bytes.begin(), row.bytes.end());
      std::copy(row.values.begin(), row.values.end(),
                keys.begin() + static_cast<std::ptrdiff_t>((page * per_page + i) * kDim));
    }
    side.ops().upload(pools_.base + offset(pools_, page * per_page, per_page, pool_bytes_), image.data(),
                      image.size());
  }
  qi_ = bf16_normals(random, kIndexHeads * kDim, 1.0);
  hw_ = bf16_normals(random, kIndexHeads, 1.0);
  const Result alone = last_row(side, 1);
  ASSERT_TRUE(std::is_sorted(alone.pools.begin(), alone.pools.end()));

  // Every chosen pool is at least as good as every other, up to the rounding of fp32 sums.
  std::vector<double> score(kPools);
  for (size_t p = 0; p < score.size(); ++p) {
    for (size_t h = 0; h < kIndexHeads; ++h) {
      float part[4] = {};
      for (size_t i = 0; i < kDim; i += 4) {
        for (size_t j = 0; j < 4; ++j) part[j] += qi_[h * kDim + i + j] * keys[p * kDim + i + j];
      }
      const double dot = (static_cast<double>(part[0]) + part[1]) + (static_cast<double>(part[2]) + part[3]);
      score[p] += hw_[h] / std::sqrt(double{kIndexHeads}) * std::max(0.0, dot / std::sqrt(double{kDim}));
    }
  }
  double least = HUGE_VAL, best_left = -HUGE_VAL, spread = 0;
  std::vector<bool> chosen(kPools);
  for (const int32_t p : alone.pools) {
    ASSERT_GE(p, 0);
    ASSERT_LT(p, kPools);
    ASSERT_FALSE(chosen[static_cast<size_t>(p)]) << "a pool twice";
    chosen[static_cast<size_t>(p)] = true;
    least = std::min(least, score[static_cast<size_t>(p)]);
    spread = std::max(spread, score[static_cast<size_t>(p)]);
  }
  for (size_t p = 0; p < score.size(); ++p) {
    if (!chosen[p]) best_left = std::max(best_left, score[p]);
  }
  EXPECT_GE(least, best_left - 1e-5 * spread);

  // Latents of the chosen tokens alone; everything else stays poison.
  std::vector<int32_t> tokens;
  for (const int32_t p : alone.pools) {
    for (int32_t j = 0; j < kPool; ++j) tokens.push_back(p * kPool + j);
  }
  std::vector<Floats> latents;
  size_t beyond = 0;
  for (const int32_t t : tokens) {
    const Row row = row_of(bf16_normals(random, kLatent, 1.0), GetParam());
    const size_t at = offset(latents_, t, kPageTokens, latent_bytes_);
    side.ops().upload(latents_.base + at, row.bytes.data(), row.bytes.size());
    latents.push_back(row.values);
    if (at < (uint64_t{1} << 32)) continue;
    ++beyond;  // an offset kept in 32 bits would find something else
    Bytes wrapped(row.bytes.size());
    side.ops().download(wrapped.data(), latents_.base + static_cast<uint32_t>(at), wrapped.size());
    EXPECT_NE(wrapped, row.bytes);
  }
  EXPECT_GT(beyond, tokens.size() / 8);

  q_ = bf16_normals(random, kHeads * kQk, 1.0);
  RawMatrix kv_b = RawMatrix::make(random, MatrixFormat::kBf16, kHeads * (kQk + kV), kLatent);
  attention_ = {kHeads, kQk, kV, kLatent, side.load(kv_b)};
  std::vector<uint16_t> w(static_cast<size_t>(kHeads * (kQk + kV)) * kLatent);
  ASSERT_TRUE(kv_b.read_rows(MatrixPart::kWeight, 0, kHeads * (kQk + kV), w.data()).ok());
  const auto weight = [&](int32_t r, int32_t i) -> double {
    return bf16_to_f32(w[static_cast<size_t>(r) * kLatent + static_cast<size_t>(i)]);
  };
  const Result one = last_row(side, 1);
  EXPECT_EQ(one.pools, alone.pools);
  Floats want;
  for (int32_t h = 0; h < kHeads; ++h) {
    const int32_t base = h * (kQk + kV);
    std::vector<double> query(kLatent), mix(kLatent), p(tokens.size());
    for (int32_t d = 0; d < kQk; ++d) {
      for (int32_t i = 0; i < kLatent; ++i)
        query[static_cast<size_t>(i)] += q_[static_cast<size_t>(h * kQk + d)] * weight(base + d, i);
    }
    double most = -HUGE_VAL, total = 0;
    for (size_t j = 0; j < p.size(); ++j) {
      for (size_t i = 0; i < kLatent; ++i) p[j] += query[i] * latents[j][i];
      p[j] /= std::sqrt(double{kQk});
      most = std::max(most, p[j]);
    }
    for (double& x : p) total += x = std::exp(x - most);
    for (size_t j = 0; j < p.size(); ++j) {
      for (size_t i = 0; i < kLatent; ++i) mix[i] += p[j] / total * latents[j][i];
    }
    for (int32_t d = 0; d < kV; ++d) {
      double v = 0;
      for (int32_t i = 0; i < kLatent; ++i) v += weight(base + kQk + d, i) * mix[static_cast<size_t>(i)];
      want.push_back(static_cast<float>(v));
    }
  }
  expect_close(one.out, want, 1.2e-2, "attention at a million tokens");

  // The same row in windows and in a prompt chunk: the same choice and the same bits.
  for (const int32_t rows : {3, 40, 70, 512}) {
    const Result in_batch = last_row(side, rows);
    EXPECT_EQ(in_batch.pools, alone.pools) << rows << " rows";
    expect_same_bits(in_batch.out, one.out, "the row in a batch");
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, LongContext, testing::Values(KvFormat::kWide, KvFormat::kFp8),
                         [](const auto& info) { return info.param == KvFormat::kFp8 ? "fp8" : "bf16"; });

}  // namespace
}  // namespace firesteel::test
