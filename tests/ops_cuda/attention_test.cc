// The indexer and sparse attention on CUDA against the CPU backend: appended planes, exact selection,
// attention over selections and the dense regime, and the same bits however the rows are cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops_cuda/both.h"

namespace firesteel::test {
namespace {

using Floats = std::vector<float>;

Floats rows_of(const Floats& v, size_t first, size_t rows, size_t n) {
  return {v.begin() + static_cast<std::ptrdiff_t>(first * n),
          v.begin() + static_cast<std::ptrdiff_t>((first + rows) * n)};
}

struct LayerCase {
  int32_t heads = 4, index_heads = 16, dim = 128, kpool = 4, top = 16, latent = 512, qk = 256, v = 256;
  int32_t tokens = 300;
  enum { kNormals, kManyMagnitudes, kTiny } latents = kNormals;
  Floats c, ki, ga, qi, hw, q, norm_w, norm_b, ape;
  RawMatrix kv_b;
};

LayerCase make_setup(Random& random, LayerCase s) {
  const auto t = static_cast<size_t>(s.tokens);
  const auto dim = static_cast<size_t>(s.dim);
  s.c = bf16_normals(random, t * static_cast<size_t>(s.latent), 1.0);
  for (size_t i = 0; i < t && s.latents != LayerCase::kNormals; ++i) {  // a zero row among others
    const int down = s.latents == LayerCase::kTiny ? 95 : static_cast<int>(random.between(0, 13));
    const float factor = i % 17 == 5 ? 0.0f : std::ldexp(1.0f, -down);
    for (size_t j = 0; j < static_cast<size_t>(s.latent); ++j)
      s.c[i * static_cast<size_t>(s.latent) + j] *= factor;
  }
  s.ki = bf16_normals(random, t * dim, 1.0);
  s.ga = bf16_normals(random, t * dim, 1.0);
  s.qi = bf16_normals(random, t * static_cast<size_t>(s.index_heads) * dim, 1.0);
  s.hw = bf16_normals(random, t * static_cast<size_t>(s.index_heads), 1.0);
  s.q = bf16_normals(random, t * static_cast<size_t>(s.heads * s.qk), 1.0);
  s.norm_w = random.normals(dim, 1.0);
  s.norm_b = random.normals(dim, 0.2);
  s.ape = random.normals(dim * static_cast<size_t>(s.kpool), 0.5);
  s.kv_b = RawMatrix::make(random, MatrixFormat::kBf16, s.heads * (s.qk + s.v), s.latent);
  return s;
}

struct Outcome {
  Floats out;
  std::vector<int32_t> count;
  std::vector<std::vector<int32_t>> pools;
};

/// All the ops of a layer over one sequence in pieces; `forced` replaces the selection (so that both backends
/// attend to the same tokens).
Outcome run(Side& side, LayerCase& s, const std::vector<int32_t>& cuts, const Outcome* forced) {
  side.reset();
  const int32_t pages = (s.tokens + kPageTokens - 1) / kPageTokens;
  const size_t latent_stride = side.ops().latent_row_bytes(s.latent) * kPageTokens + 512;
  const size_t pool_stride =
      side.ops().pool_row_bytes(s.dim) * static_cast<size_t>(kPageTokens / s.kpool) + 256;
  Plane latents{side.take(latent_stride * static_cast<size_t>(pages)), latent_stride};
  Plane pools{side.take(pool_stride * static_cast<size_t>(pages)), pool_stride};
  IndexerWeights ix;
  ix.heads = s.index_heads;
  ix.dim = s.dim;
  ix.kpool = s.kpool;
  ix.top_pools = s.top;
  ix.k_norm_weight = side.f32(s.norm_w);
  ix.k_norm_bias = side.f32(s.norm_b);
  ix.ape = side.f32(s.ape);
  const size_t tail_bytes = side.ops().tail_slot_bytes(ix);
  SlotPlane tail{side.take(3 * tail_bytes), tail_bytes};
  AttentionWeights at;
  at.heads = s.heads;
  at.qk_dim = s.qk;
  at.v_dim = s.v;
  at.latent = s.latent;
  at.kv_b = side.load(s.kv_b);
  const auto dim = static_cast<size_t>(s.dim), index_heads = static_cast<size_t>(s.index_heads),
             heads = static_cast<size_t>(s.heads), top = static_cast<size_t>(s.top);
  Outcome o;
  int32_t first = 0;
  for (const int32_t n : cuts) {
    TestBatch batch;
    batch.add(n, first, 2);
    // The whole sequence's pages, in the same (descending) order whatever the cut.
    batch.pages.clear();
    for (int32_t i = pages - 1; i >= 0; --i) batch.pages.push_back(i);
    side.ops().bind(batch.view());
    const auto f = static_cast<size_t>(first), rows = static_cast<size_t>(n);
    side.ops().latent_append(Stage::kMain, side.act(rows_of(s.c, f, rows, static_cast<size_t>(s.latent))),
                             s.latent, latents);
    side.ops().pool_append(Stage::kMain, ix, side.act(rows_of(s.ki, f, rows, dim)),
                           side.act(rows_of(s.ga, f, rows, dim)), pools, tail);
    Selection sel;
    sel.max_pools = s.top;
    sel.pools = reinterpret_cast<int32_t*>(side.poisoned(rows * top));
    sel.count = reinterpret_cast<int32_t*>(side.poisoned(rows));
    side.ops().pool_select(Stage::kMain, ix, side.act(rows_of(s.qi, f, rows, index_heads * dim)),
                           side.act(rows_of(s.hw, f, rows, index_heads)), pools, sel);
    const auto counts = side.read(sel.count, rows);
    const auto chosen = side.read(sel.pools, rows * top);
    for (size_t r = 0; r < rows; ++r) {
      o.count.push_back(counts[r]);
      o.pools.emplace_back(
          chosen.begin() + static_cast<std::ptrdiff_t>(r * top),
          chosen.begin() + static_cast<std::ptrdiff_t>(r * top) + std::clamp(counts[r], 0, s.top));
    }
    if (forced != nullptr) {
      std::vector<int32_t> p(rows * top, -1), c(rows);
      for (size_t r = 0; r < rows; ++r) {
        c[r] = forced->count[f + r];
        std::copy(forced->pools[f + r].begin(), forced->pools[f + r].end(),
                  p.begin() + static_cast<std::ptrdiff_t>(r * top));
      }
      side.ops().upload(sel.pools, p.data(), p.size() * 4);
      side.ops().upload(sel.count, c.data(), c.size() * 4);
    }
    Act* out = side.poisoned_act(rows * heads * static_cast<size_t>(s.v));
    side.ops().sparse_attention(Stage::kMain, at,
                                side.act(rows_of(s.q, f, rows, heads * static_cast<size_t>(s.qk))), latents,
                                sel, s.kpool, out);
    side.finish();
    const Floats v = side.read_act(out, rows * heads * static_cast<size_t>(s.v));
    o.out.insert(o.out.end(), v.begin(), v.end());
    first += n;
  }
  return o;
}

class Attention : public testing::TestWithParam<std::tuple<int, KvFormat>> {};

LayerCase case_of(int i) {
  LayerCase s;
  if (i == 1) s.kpool = 8, s.top = 6;
  if (i == 2) s.heads = 40, s.tokens = 150, s.top = 64;  // dense regime, two groups of heads
  if (i == 3) s.index_heads = 32, s.tokens = 1100, s.top = 200;
  if (i == 4) s.heads = 32, s.tokens = 400, s.top = 90, s.latents = LayerCase::kManyMagnitudes;
  if (i == 5) s.latents = LayerCase::kTiny;
  return s;
}

TEST_P(Attention, MatchesTheDefinitionAndDoesNotDependOnCuts) {
  REQUIRE_CUDA();
  Random random;
  const auto& [shape, kv] = GetParam();
  LayerCase s = make_setup(random, case_of(shape));
  const Outcome want = run(*cpu_side(kv), s, {s.tokens}, nullptr);
  const Outcome got = run(*cuda_side(kv), s, {s.tokens}, &want);
  ASSERT_EQ(got.count, want.count);
  // Pooled keys are rounded to bf16 here alone, or are FP8 of sums whose last bits differ: near ties may fall
  // the other way, but rarely.
  size_t chosen = 0, different = 0;
  for (size_t r = 0; r < want.pools.size(); ++r) {
    EXPECT_TRUE(std::is_sorted(got.pools[r].begin(), got.pools[r].end()));
    for (const int32_t p : want.pools[r]) {
      ++chosen;
      different += !std::binary_search(got.pools[r].begin(), got.pools[r].end(), p);
    }
  }
  EXPECT_LE(static_cast<double>(different), 0.02 * static_cast<double>(chosen));
  expect_close(got.out, want.out, 1.2e-2, "attention");

  std::vector<int32_t> cuts = {1, 2, 3, 1, 30, 7};
  int32_t left = s.tokens - 44;
  for (const int32_t n : {1, 1, 1, 1}) {
    cuts.push_back(n);
    left -= n;
  }
  cuts.push_back(left);
  const Outcome pieces = run(*cuda_side(kv), s, cuts, &want);
  EXPECT_EQ(pieces.pools, got.pools);
  expect_same_bits(pieces.out, got.out, "attention in pieces");
}
INSTANTIATE_TEST_SUITE_P(Cases, Attention,
                         testing::Combine(testing::Range(0, 6),
                                          testing::Values(KvFormat::kWide, KvFormat::kFp8)));

/// The selection is exact: against a sort of the scores the backend itself is made to show by asking for one
/// pool less each time; here against float64 scores of pooled keys that are exact in bf16.
TEST(PoolSelect, ExactWithTies) {
  REQUIRE_CUDA();
  Random random;
  Side& side = *cuda_side();
  const int32_t dim = 128, heads = 8, kpool = 4, pools_count = 5000, top = 512;
  const int32_t tokens = pools_count * kpool, pages = (tokens + kPageTokens - 1) / kPageTokens;
  // Keys and queries of small integers: every score is exact in fp32, and ties are many.
  std::vector<int> key(static_cast<size_t>(pools_count) * dim);
  for (int& v : key) v = static_cast<int>(random.between(-1, 1));
  std::vector<int> query(heads * dim), weight(heads);
  for (int& v : query) v = static_cast<int>(random.between(-1, 1));
  for (int& v : weight) v = static_cast<int>(random.between(-2, 2));
  const size_t stride = side.ops().pool_row_bytes(dim) * (kPageTokens / kpool);
  Plane plane{side.take(stride * static_cast<size_t>(pages)), stride};
  TestBatch batch;
  batch.add(1, tokens - 1, 0);
  std::vector<uint16_t> image(stride / 2 * static_cast<size_t>(pages));
  for (int32_t p = 0; p < pools_count; ++p) {
    const int32_t per_page = kPageTokens / kpool;
    const size_t at = static_cast<size_t>(batch.pages[static_cast<size_t>(p / per_page)]) * stride / 2 +
                      static_cast<size_t>(p % per_page) * dim;
    for (int32_t d = 0; d < dim; ++d) {
      image[at + static_cast<size_t>(d)] =
          f32_to_bf16(static_cast<float>(key[static_cast<size_t>(p * dim + d)]));
    }
  }
  side.ops().upload(plane.base, image.data(), image.size() * 2);
  side.ops().bind(batch.view());
  IndexerWeights ix;
  ix.heads = heads;
  ix.dim = dim;
  ix.kpool = kpool;
  ix.top_pools = top;
  Selection sel;
  sel.max_pools = top;
  sel.pools = reinterpret_cast<int32_t*>(side.poisoned(top));
  sel.count = reinterpret_cast<int32_t*>(side.poisoned(1));
  side.ops().pool_select(Stage::kMain, ix, side.act(Floats(query.begin(), query.end())),
                         side.act(Floats(weight.begin(), weight.end())), plane, sel);
  side.finish();
  ASSERT_EQ(side.read(sel.count, 1)[0], top);
  const auto got = side.read(sel.pools, top);
  // Positive scales do not change the order of exact integer scores.
  std::vector<std::pair<int, int>> score;
  for (int32_t p = 0; p < pools_count; ++p) {
    int sum = 0;
    for (int32_t h = 0; h < heads; ++h) {
      int dot = 0;
      for (int32_t d = 0; d < dim; ++d)
        dot += key[static_cast<size_t>(p * dim + d)] * query[static_cast<size_t>(h * dim + d)];
      sum += weight[static_cast<size_t>(h)] * std::max(dot, 0);
    }
    score.emplace_back(-sum, p);
  }
  std::sort(score.begin(), score.end());
  // dim^-0.5 is not a power of two, so tied integers may differ in the last bit as floats: compare scores,
  // not ids, at the threshold.
  const int threshold = score[top - 1].first;
  std::vector<int> taken(static_cast<size_t>(pools_count), 0);
  EXPECT_TRUE(std::is_sorted(got.begin(), got.end()));
  for (const int32_t p : got) {
    ASSERT_GE(p, 0);
    ASSERT_LT(p, pools_count);
    EXPECT_EQ(taken[static_cast<size_t>(p)]++, 0);
  }
  for (const auto& [negative, p] : score) {
    if (negative < threshold) {
      EXPECT_EQ(taken[static_cast<size_t>(p)], 1) << "pool " << p;
    }
    if (negative > threshold) {
      EXPECT_EQ(taken[static_cast<size_t>(p)], 0) << "pool " << p;
    }
  }
}

/// All scores equal: the lowest pools win. One stretch of pools, several, a last one shorter than the
/// selection, and selections too large for the stretches.
TEST(PoolSelect, TiesGoToTheLowerPool) {
  REQUIRE_CUDA();
  Side& side = *cuda_side();
  const int32_t dim = 128, heads = 8, kpool = 4;
  const std::pair<int32_t, int32_t> cases[] = {
      {3000, 512}, {40000, 512}, {16484, 512}, {20000, 9000}, {70000, 4000}};
  for (const auto& [pools_count, top] : cases) {
    side.reset();
    TestBatch batch;
    batch.add(1, pools_count * kpool - 1, 0);
    const size_t stride = side.ops().pool_row_bytes(dim) * (kPageTokens / kpool);
    Plane plane{side.take(stride * static_cast<size_t>(batch.page_count)), stride};
    side.ops().zero(plane.base, stride * static_cast<size_t>(batch.page_count));
    side.ops().bind(batch.view());
    IndexerWeights ix;
    ix.heads = heads;
    ix.dim = dim;
    ix.kpool = kpool;
    ix.top_pools = top;
    Selection sel;
    sel.max_pools = top;
    sel.pools = reinterpret_cast<int32_t*>(side.poisoned(static_cast<size_t>(top)));
    sel.count = reinterpret_cast<int32_t*>(side.poisoned(1));
    side.ops().pool_select(Stage::kMain, ix, side.act(Floats(heads * dim, 1.0f)),
                           side.act(Floats(heads, -1.0f)), plane, sel);
    side.finish();
    ASSERT_EQ(side.read(sel.count, 1)[0], top);
    const auto got = side.read(sel.pools, static_cast<size_t>(top));
    for (int32_t i = 0; i < top; ++i) {
      ASSERT_EQ(got[static_cast<size_t>(i)], i) << pools_count << " pools, " << top << " of them";
    }
  }
}

}  // namespace
}  // namespace firesteel::test
