// Sparse attention against the expanded form in float64: per head its own key and value blocks, softmax over
// exactly the selected tokens and the incomplete pool.
#include <cmath>

#include "harness.h"

namespace firesteel::test {
namespace {

class AttentionTest : public OpsTest {
 protected:
  struct Shape {
    int32_t heads, qk, v, latent, kpool;
  };
  struct Layer {
    AttentionWeights w;
    TestMatrix kv_b;
  };
  Layer make_layer(const Shape& s, MatrixFormat format, bool decode = false) {
    Layer l;
    const StoredMatrix stored =
        make_stored(random(), {.format = format, .std = decode ? 0.02 : 1 / std::sqrt(double(s.latent))},
                    s.heads * (s.qk + s.v), s.latent);
    l.kv_b = load_part(ops(), stored, 0, s.latent, {}, decode ? MatrixKeep::kDecoded : MatrixKeep::kStored);
    l.w = {s.heads, s.qk, s.v, s.latent, l.kv_b.matrix};
    return l;
  }
  Plane latent_plane(const Shape& s, int32_t pages) {
    const size_t page = size_t(kPageTokens) * ops().latent_row_bytes(s.latent) + 128;
    return {buffer(page * size_t(pages)).data(), page};
  }
  /// Expanded attention of one row over `tokens` (c [tokens, latent]).
  static void expected_row(const Shape& s, const Layer& l, const double* q, const Doubles& c, Doubles& out) {
    const size_t n = c.size() / size_t(s.latent);
    for (int32_t h = 0; h < s.heads; ++h) {
      const auto project = [&](int32_t row, size_t j) {
        double x = 0;
        for (int32_t i = 0; i < s.latent; ++i) x += l.kv_b.at(row, i) * c[j * size_t(s.latent) + size_t(i)];
        return x;
      };
      const int32_t base = h * (s.qk + s.v);
      Doubles p(n);
      double most = -HUGE_VAL, total = 0;
      for (size_t j = 0; j < n; ++j) {
        for (int32_t i = 0; i < s.qk; ++i) p[j] += q[h * s.qk + i] * project(base + i, j);
        p[j] /= std::sqrt(double(s.qk));
        most = std::max(most, p[j]);
      }
      for (double& x : p) total += x = std::exp(x - most);
      for (int32_t i = 0; i < s.v; ++i) {
        double o = 0;
        for (size_t j = 0; j < n; ++j) o += p[j] / total * project(base + s.qk + i, j);
        out.push_back(o);
      }
    }
  }
  /// Rows at [start, start+rows) with the given pools each.
  void run(const Shape& s, const Layer& l, int32_t start, int32_t rows,
           const std::vector<std::vector<int32_t>>& pools, double q_size, double tol) {
    const int32_t total = start + rows, pages = (total + kPageTokens - 1) / kPageTokens;
    const Plane plane = latent_plane(s, 2 * pages);
    const Floats c = normals(size_t(total * s.latent));
    bind({{0, 1, 0, 0, 0}, {1, total, 0, 1, 0}}, pages);  // a second sequence between its pages
    Floats both = normals(size_t(s.latent));
    both.insert(both.end(), c.begin(), c.end());
    ops().latent_append(Stage::kMain, act(both), s.latent, plane);
    auto segments = segments_;
    segments[0] = {0, rows, start, 1, 0};
    const std::vector<int32_t> mine(pages_.begin() + pages, pages_.end());
    bind({segments[0]}, pages);
    pages_ = mine;
    batch_.page_table = pages_;
    ops().bind(batch_);
    int32_t most = 1;
    for (const auto& p : pools) most = std::max(most, int32_t(p.size()));
    std::vector<int32_t> ids(size_t(rows * most), -1), counts;
    for (int32_t r = 0; r < rows; ++r) {
      std::copy(pools[size_t(r)].begin(), pools[size_t(r)].end(), ids.begin() + r * most);
      counts.push_back(int32_t(pools[size_t(r)].size()));
    }
    Selection sel{empty_ints(ids.size()), empty_ints(counts.size()), most};
    ops().upload(sel.pools, ids.data(), ids.size() * 4);
    ops().upload(sel.count, counts.data(), counts.size() * 4);
    const Floats q = normals(size_t(rows * s.heads * s.qk), 0, q_size);
    Act* out = empty_act(size_t(rows * s.heads * s.v));
    ops().sparse_attention(Stage::kMain, l.w, act(q), plane, sel, s.kpool, out);
    Doubles want;
    const Doubles qd = wide(q);
    for (int32_t r = 0; r < rows; ++r) {
      Doubles chosen;
      const auto take = [&](int32_t token) {
        chosen.insert(chosen.end(), c.begin() + token * s.latent, c.begin() + (token + 1) * s.latent);
      };
      for (int32_t p : pools[size_t(r)]) {
        for (int32_t j = 0; j < s.kpool; ++j) take(p * s.kpool + j);
      }
      for (int32_t t = (start + r + 1) / s.kpool * s.kpool; t <= start + r; ++t) take(t);
      expected_row(s, l, &qd[size_t(r * s.heads * s.qk)], chosen, want);
    }
    expect_close(get(out, want.size()), want, tol, "attention");
  }
  static std::vector<std::vector<int32_t>> all_pools(const Shape& s, int32_t start, int32_t rows) {
    std::vector<std::vector<int32_t>> pools(size_t(rows), std::vector<int32_t>{});
    for (int32_t r = 0; r < rows; ++r) {
      for (int32_t p = 0; p < (start + r + 1) / s.kpool; ++p) pools[size_t(r)].push_back(p);
    }
    return pools;
  }
};
FS_FOR_EACH_BACKEND(AttentionTest);

TEST_P(AttentionTest, Trap20And21DenseRegimeMatchesTheExpandedForm) {
  // Different key and value widths; kv_b interleaves them head by head; the scale is that of the expanded
  // key.
  for (const Shape& s : {Shape{4, 16, 24, 32, 4}, Shape{3, 20, 12, 45, 8}, Shape{9, 16, 16, 16, 1}}) {
    for (MatrixFormat format : {MatrixFormat::kBf16, MatrixFormat::kF32}) {
      const Layer l = make_layer(s, format);
      run(s, l, 0, 37, all_pools(s, 0, 37), 1, 60);
      run(s, l, 301, 3, all_pools(s, 301, 3), 1, 60);
    }
  }
}

TEST_P(AttentionTest, DecodedExl3KeyValueMatrix) {
  const Shape s{2, 32, 32, 128, 4};
  run(s, make_layer(s, MatrixFormat::kExl3, true), 100, 4, all_pools(s, 100, 4), 1, 60);
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  const Shape s{2, 16, 16, 32, 4};
  run(s, make_layer(s, MatrixFormat::kF32), 200, 3, all_pools(s, 200, 3), 1000, 3000);
}

TEST_P(AttentionTest, Trap28SelectedPoolsAndTheTailNothingElse) {
  const Shape s{4, 16, 24, 32, 4};
  const Layer l = make_layer(s, MatrixFormat::kBf16);
  // Four positions, t mod 4 = 0, 1, 2, 3: 1, 2, 3, 0 tail tokens. The last row's own pool is not chosen.
  run(s, l, 400, 4, {{0, 3, 99}, {1, 2}, {7, 50, 64}, {5, 63, 64, 65}}, 1, 60);
  run(s, l, 400, 1, {{}}, 1, 60);  // no pool: the tail alone
}

}  // namespace
}  // namespace firesteel::test
