// Pooled keys, scores and exact selection against float64, with the traps of spec/model.md section 6.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "harness.h"

namespace firesteel::test {
namespace {

class IndexerTest : public OpsTest {
 protected:
  struct Indexer {
    IndexerWeights w;
    Floats norm, bias, ape;
  };
  Indexer make_indexer(int32_t heads, int32_t dim, int32_t kpool, int32_t top) {
    Indexer x;
    x.norm = normals(size_t(dim), 1, 0.3);
    x.bias = normals(size_t(dim), 0, 0.3);
    x.ape = normals(size_t(kpool * dim), 0, 0.3);
    x.w.heads = heads;
    x.w.dim = dim;
    x.w.kpool = kpool;
    x.w.top_pools = top;
    place(x);
    return x;
  }
  void place(Indexer& x) {
    x.w.k_norm_weight = floats(x.norm);
    x.w.k_norm_bias = floats(x.bias);
    x.w.ape = floats(x.ape);
  }
  Plane pool_plane(const Indexer& x, int32_t pages) {
    const size_t page = size_t(kPageTokens / x.w.kpool) * ops().pool_row_bytes(x.w.dim) + 64;
    return {buffer(page * size_t(pages)).data(), page};
  }
  SlotPlane tails(const Indexer& x, int32_t slots) {
    const size_t bytes = ops().tail_slot_bytes(x.w);
    return {buffer(bytes * size_t(slots)).data(), bytes};
  }
  /// All pooled keys of a sequence in float64.
  static Doubles pooled(const Indexer& x, const Floats& ki, const Floats& ga) {
    const size_t d = size_t(x.w.dim), pool = size_t(x.w.kpool), pools = ki.size() / d / pool;
    Doubles keys(ki.size());
    for (size_t t = 0; t < ki.size() / d; ++t) {
      double mean = 0, var = 0;
      for (size_t i = 0; i < d; ++i) mean += ki[t * d + i];
      mean /= double(d);
      for (size_t i = 0; i < d; ++i) var += (ki[t * d + i] - mean) * (ki[t * d + i] - mean);
      for (size_t i = 0; i < d; ++i) {
        keys[t * d + i] = (ki[t * d + i] - mean) / std::sqrt(var / double(d) + 1e-6) * x.norm[i] + x.bias[i];
      }
    }
    Doubles out(pools * d);
    for (size_t p = 0; p < pools; ++p) {
      for (size_t i = 0; i < d; ++i) {
        double total = 0, mix = 0;
        for (size_t j = 0; j < pool; ++j) {
          const double e = std::exp(double(ga[(p * pool + j) * d + i]) + x.ape[j * d + i]);
          total += e;
          mix += e * keys[(p * pool + j) * d + i];
        }
        out[p * d + i] = mix / total;
      }
    }
    return out;
  }
  Floats read_pool(Plane plane, const Indexer& x, const Segment& s, int32_t pool) {
    const int32_t per_page = kPageTokens / x.w.kpool;
    const auto* at = plane.base + size_t(pages_[size_t(s.page_begin + pool / per_page)]) * plane.page_stride +
                     size_t(pool % per_page) * ops().pool_row_bytes(x.w.dim);
    Floats v(size_t(x.w.dim));
    // Elements of planes are activations.
    ops().download_act(v.data(), reinterpret_cast<const Act*>(at), v.size());
    return v;
  }
};
FS_FOR_EACH_BACKEND(IndexerTest);

TEST_P(IndexerTest, Trap29PoolsAreAbsoluteWhateverTheSplit) {
  for (int32_t kpool : {1, 4, 8, 256}) {
    const int32_t dim = 20, total = kpool == 256 ? 515 : 75;
    const Indexer x = make_indexer(2, dim, kpool, 16);
    const Floats ki = normals(size_t(total * dim)), ga = normals(size_t(total * dim));
    const Doubles want = pooled(x, ki, ga);
    const Plane plane = pool_plane(x, 6);
    const SlotPlane tail = tails(x, 3);
    int32_t at = 0;
    for (int32_t rows : {1, 20, 2, 1, 1, 1, 19, 30, 300, 140}) {
      rows = std::min(rows, total - at);
      if (rows == 0) break;
      bind({{0, rows, at, 2, 0}}, 3);
      const auto cut = [&](const Floats& v) {
        return Floats(v.begin() + at * dim, v.begin() + (at + rows) * dim);
      };
      ops().pool_append(Stage::kMain, x.w, act(cut(ki)), act(cut(ga)), plane, tail);
      at += rows;
    }
    ASSERT_EQ(at, total);
    Floats got;
    for (int32_t p = 0; p < total / kpool; ++p) {
      const Floats one = read_pool(plane, x, segments_[0], p);
      got.insert(got.end(), one.begin(), one.end());
    }
    expect_close(got, want, 60, "pooled keys, kpool " + std::to_string(kpool));
  }
}

TEST_P(IndexerTest, Trap23KeyNormIsALayerNormWithBiasAndEpsilon1e6) {
  // Variance 1e-6: ε = 1e-6 halves it; a constant key becomes the bias.
  const int32_t dim = 32;
  Indexer x = make_indexer(1, dim, 1, 4);
  Floats ki(size_t(2 * dim)), ga(size_t(2 * dim), 0.0f);
  for (size_t i = 0; i < size_t(dim); ++i) {
    ki[i] = i % 2 ? 1e-3f : -1e-3f;
    ki[size_t(dim) + i] = 7.0f;
  }
  bind({{0, 2, 0, 0, 0}}, 1);
  const Plane plane = pool_plane(x, 1);
  ops().pool_append(Stage::kMain, x.w, act(ki), act(ga), plane, tails(x, 1));
  Doubles want;
  for (size_t i = 0; i < size_t(dim); ++i)
    want.push_back((i % 2 ? 1 : -1) * std::sqrt(0.5) * x.norm[i] + x.bias[i]);
  expect_close(read_pool(plane, x, segments_[0], 0), want, 40, "small variance");
  expect_close(read_pool(plane, x, segments_[0], 1), wide(x.bias), unit() < 1e-6 ? 0 : 1, "constant key");
}

TEST_P(IndexerTest, Trap24PooledKeyIsALearnedMixturePerChannel) {
  const int32_t dim = 8;
  Indexer x = make_indexer(1, dim, 4, 4);
  std::fill(x.ape.begin(), x.ape.end(), 0.0f);
  std::fill(x.norm.begin(), x.norm.end(), 1.0f);
  std::fill(x.bias.begin(), x.bias.end(), 0.0f);
  place(x);
  const Floats ki = normals(4 * 8);
  Floats ga(4 * 8, 0.0f);
  for (size_t j = 0; j < 4; ++j) ga[j * 8 + 1] = j == 2 ? 60.0f : 0.0f;  // channel 1 takes token 2 alone
  bind({{0, 4, 0, 0, 0}}, 1);
  const Plane plane = pool_plane(x, 1);
  ops().pool_append(Stage::kMain, x.w, act(ki), act(ga), plane, tails(x, 1));
  const Floats got = read_pool(plane, x, segments_[0], 0);
  expect_close(got, pooled(x, ki, ga), 40, "mixture");
  Indexer single = x;
  single.w.kpool = 1;
  const Doubles keys = pooled(single, ki, Floats(32, 0.0f));
  EXPECT_NEAR(got[0], (keys[0] + keys[8] + keys[16] + keys[24]) / 4, 1e-6 + 4 * unit());
  EXPECT_NEAR(got[1], keys[17], 1e-6 + 4 * unit());
}

TEST_P(IndexerTest, SelectionIsExactForDenseAndSparseRows) {
  for (int32_t kpool : {4, 8}) {
    const int32_t dim = 24, heads = 5, top = 12, total = 500, rows = 37;
    const Indexer x = make_indexer(heads, dim, kpool, top);
    const Floats ki = normals(size_t(total * dim)), ga = normals(size_t(total * dim));
    const Plane plane = pool_plane(x, 2);
    bind({{0, total, 0, 0, 0}}, 2);
    ops().pool_append(Stage::kMain, x.w, act(ki), act(ga), plane, tails(x, 1));
    const Floats q = normals(size_t(rows * heads * dim)), hw = normals(size_t(rows * heads));
    // Rows about the end of the dense regime (12 pools), and rows at the end.
    for (int32_t start : {0, kpool * top - 9, total - rows}) {
      bind({{0, rows, start, 0, 0}}, 2);
      const int32_t most = top + 3;
      Selection sel{empty_ints(size_t(rows * most)), empty_ints(size_t(rows)), most};
      ops().pool_select(Stage::kMain, x.w, act(q), act(hw), plane, sel);
      const auto ids = get(sel.pools, size_t(rows * most)), counts = get(sel.count, size_t(rows));
      for (int32_t r = 0; r < rows; ++r) {
        const int32_t visible = (start + r + 1) / kpool;
        ASSERT_EQ(counts[size_t(r)], std::min(visible, top)) << "row " << r << " from " << start;
        const auto first = ids.begin() + r * most, last = first + counts[size_t(r)];
        EXPECT_TRUE(std::is_sorted(first, last));
        if (visible <= top) {
          for (int32_t p = 0; p < visible; ++p) ASSERT_EQ(first[p], p);
          continue;
        }
        // Scores from the stored keys: every chosen pool is at least as good as every other, up to rounding.
        Doubles score;
        for (int32_t p = 0; p < visible; ++p) {
          const Floats key = read_pool(plane, x, segments_[0], p);
          double s = 0;
          for (int32_t h = 0; h < heads; ++h) {
            double dot = 0;
            for (int32_t i = 0; i < dim; ++i)
              dot += double(q[size_t((r * heads + h) * dim + i)]) * key[size_t(i)];
            s += hw[size_t(r * heads + h)] / std::sqrt(double(heads)) *
                 std::max(0.0, dot / std::sqrt(double(dim)));
          }
          score.push_back(s);
        }
        double least = HUGE_VAL, best_left = -HUGE_VAL;
        for (int32_t p = 0; p < visible; ++p) {
          if (std::find(first, last, p) != last) {
            least = std::min(least, score[size_t(p)]);
          } else {
            best_left = std::max(best_left, score[size_t(p)]);
          }
        }
        EXPECT_GE(least, best_left - 1e3 * unit()) << "row " << r;
        EXPECT_EQ(std::adjacent_find(first, last), last) << "a pool twice";
      }
    }
  }
}

TEST_P(IndexerTest, Trap26And27TiesGoToTheLowerPoolAndZeroBeatsNegative) {
  // One head, keys ±1 on one channel: the score is w·ReLU(±c); with w < 0 matching pools score below 0,
  // others 0.
  const int32_t dim = 4, kpool = 1, total = 40, top = 10;
  Indexer x = make_indexer(1, dim, kpool, top);
  const Plane plane = pool_plane(x, 1);
  Floats keys(size_t(total * dim), 0.0f);
  for (int32_t p = 0; p < total; ++p) keys[size_t(p * dim)] = p % 3 == 0 ? 1.0f : -1.0f;
  ops().upload_act(reinterpret_cast<Act*>(plane.base), keys.data(), keys.size());
  const auto select = [&](float weight) {
    bind({{0, 1, total - 1, 0, 0}}, 1);
    Selection sel{empty_ints(size_t(top)), empty_ints(1), top};
    ops().pool_select(Stage::kMain, x.w, act({1, 0, 0, 0}), act({weight}), plane, sel);
    EXPECT_EQ(get(sel.count, 1)[0], top);
    return get(sel.pools, size_t(top));
  };
  // Positive weight: the ten lowest of 0, 3, 6, …; negative: the lowest pools that score exactly 0.
  EXPECT_EQ(select(1.0f), (std::vector<int32_t>{0, 3, 6, 9, 12, 15, 18, 21, 24, 27}));
  EXPECT_EQ(select(-1.0f), (std::vector<int32_t>{1, 2, 4, 5, 7, 8, 10, 11, 13, 14}));
  // All weights 0: w·ReLU is +0 or -0 according to the sign of w; both are the same score.
  EXPECT_EQ(select(-0.0f), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST_P(IndexerTest, NaNScoresComeLastAndTheRestStaysExact) {
  const int32_t dim = 4, total = 30, top = 10;
  Indexer x = make_indexer(1, dim, 1, top);
  const Plane plane = pool_plane(x, 1);
  Floats keys(size_t(total * dim), 0.0f);
  for (int32_t p = 0; p < total; ++p) keys[size_t(p * dim)] = p < 15 ? NAN : float(p);
  ops().upload_act(reinterpret_cast<Act*>(plane.base), keys.data(), keys.size());
  bind({{0, 1, total - 1, 0, 0}}, 1);
  Selection sel{empty_ints(size_t(top)), empty_ints(1), top};
  ops().pool_select(Stage::kMain, x.w, act({1, 0, 0, 0}), act({1.0f}), plane, sel);
  EXPECT_EQ(get(sel.pools, size_t(top)), (std::vector<int32_t>{20, 21, 22, 23, 24, 25, 26, 27, 28, 29}));
}

TEST_P(IndexerTest, Trap32LongContextsKeepTheBestOfManyWindows) {
  // More pools than one pass scores; the best ones are planted anywhere.
  const int32_t dim = 4, kpool = 1, total = 40000, top = 7;
  Indexer x = make_indexer(1, dim, kpool, top);
  const int32_t pages = (total + kPageTokens - 1) / kPageTokens;
  const Plane plane = pool_plane(x, pages);
  std::vector<int32_t> planted;
  while (planted.size() < 7) {
    const int32_t p = below(total);
    if (std::find(planted.begin(), planted.end(), p) == planted.end()) planted.push_back(p);
  }
  std::sort(planted.begin(), planted.end());
  bind({{0, 1, total - 1, 0, 0}}, pages);
  Floats key(4, 0.0f);
  for (int32_t p = 0; p < total; ++p) {
    const bool good = std::binary_search(planted.begin(), planted.end(), p);
    key[0] = static_cast<float>(good ? 2 + random().uniform(0, 1) : random().uniform(0, 1));
    auto* at = plane.base + size_t(pages_[size_t(p / kPageTokens)]) * plane.page_stride +
               size_t(p % kPageTokens) * ops().pool_row_bytes(dim);
    ops().upload_act(reinterpret_cast<Act*>(at), key.data(), key.size());
  }
  Selection sel{empty_ints(size_t(top)), empty_ints(1), top};
  ops().pool_select(Stage::kMain, x.w, act({1, 0, 0, 0}), act({1.0f}), plane, sel);
  EXPECT_EQ(get(sel.pools, size_t(top)), planted);
}

}  // namespace
}  // namespace firesteel::test
