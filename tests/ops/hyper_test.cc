// Hyper-connections against float64, and the traps about ε, order, orientation and factors.
#include <cmath>

#include "harness.h"

namespace firesteel::test {
namespace {

class HyperTest : public OpsTest {
 protected:
  struct Site {
    HyperSite site;
    TestMatrix fn;
    Floats base, scale, norm;
  };
  Site make_site(int32_t hidden, double fn_std, double base_std) {
    Site s;
    s.fn = load_all(ops(),
                    make_stored(random(), {.format = MatrixFormat::kBf16, .std = fn_std}, 24, 4 * hidden));
    s.base = normals(24, 0, base_std);
    s.scale = normals(3, 1, 0.3);
    s.norm = normals(size_t(hidden), 1, 0.2);
    s.site.fn = s.fn.matrix;
    s.site.base = floats(s.base);
    s.site.scale = floats(s.scale);
    s.site.norm = floats(s.norm);
    return s;
  }
  struct Mix {
    Doubles x, post, comb;
  };
  /// Steps 1 to 8 of one row and the layer norm.
  static void expected_row(const Site& s, const double* f, int32_t hidden, Mix& out) {
    const size_t wide_size = 4 * size_t(hidden);
    double mean = 0;
    for (size_t i = 0; i < wide_size; ++i) mean += f[i] * f[i];
    const double r = 1 / std::sqrt(mean / double(wide_size) + double(s.site.rms_eps));
    double z[24];
    for (int i = 0; i < 24; ++i) {
      z[i] = 0;
      for (size_t k = 0; k < wide_size; ++k) z[i] += s.fn.at(i, int32_t(k)) * f[k] * r;
    }
    double pre[4], c[4][4];
    const double eps = double(s.site.hc_eps);
    for (int j = 0; j < 4; ++j) {
      pre[j] = sigmoid(z[j] * s.scale[0] + s.base[size_t(j)]) + eps;
      out.post.push_back(2 * sigmoid(z[4 + j] * s.scale[1] + s.base[size_t(4 + j)]));
    }
    for (int i = 0; i < 4; ++i) {
      double total = 0;
      for (int j = 0; j < 4; ++j)
        total += c[i][j] = std::exp(z[8 + 4 * i + j] * s.scale[2] + s.base[size_t(8 + 4 * i + j)]);
      for (int j = 0; j < 4; ++j) c[i][j] = c[i][j] / total + eps;
    }
    for (int32_t step = 0; step < s.site.sinkhorn_iters; ++step) {
      if (step > 0) {
        for (auto& row : c) {
          const double total = row[0] + row[1] + row[2] + row[3] + eps;
          for (double& v : row) v /= total;
        }
      }
      for (int j = 0; j < 4; ++j) {
        const double total = c[0][j] + c[1][j] + c[2][j] + c[3][j] + eps;
        for (auto& row : c) row[j] /= total;
      }
    }
    for (auto& row : c) out.comb.insert(out.comb.end(), row, row + 4);
    Doubles x(size_t(hidden), 0.0);
    for (size_t i = 0; i < size_t(hidden); ++i) {
      for (size_t j = 0; j < 4; ++j) x[i] += pre[j] * f[j * size_t(hidden) + i];
    }
    const Doubles normed = rms_norm(x, s.norm, double(s.site.rms_eps));
    out.x.insert(out.x.end(), normed.begin(), normed.end());
  }
  void run(const Site& s, const Floats& streams, int32_t hidden, int32_t rows, double tol) {
    bind(rows);
    Act* x = empty_act(size_t(rows * hidden));
    float* post = empty_floats(size_t(rows) * 4);
    float* comb = empty_floats(size_t(rows) * 16);
    ops().hyper_pre(Stage::kMain, s.site, act(streams), x, post, comb);
    Mix expected;
    const Doubles f = wide(streams);
    for (int32_t r = 0; r < rows; ++r)
      expected_row(s, f.data() + size_t(r) * 4 * size_t(hidden), hidden, expected);
    expect_close(get(post, size_t(rows) * 4), expected.post, tol, "post");
    expect_close(get(comb, size_t(rows) * 16), expected.comb, tol, "comb");
    expect_close(get(x, size_t(rows * hidden)), expected.x, tol, "x");
  }
};
FS_FOR_EACH_BACKEND(HyperTest);

TEST_P(HyperTest, PreMatchesFloat64) {
  for (int32_t hidden : {5, 64, 129}) {
    const Site s = make_site(hidden, 0.3 / std::sqrt(4.0 * hidden), 0.5);
    for (int32_t rows : {1, 3, 37}) run(s, normals(size_t(rows * 4 * hidden)), hidden, rows, 40);
  }
}

TEST_P(HyperTest, Trap10InputNormUsesTheRmsEpsilon) {
  // Streams of RMS 1e-3: the factor is 1/√(1e-6 + 1e-5) = 302, not 707.
  const int32_t hidden = 64;
  const Site s = make_site(hidden, 0.3, 0.5);
  const Floats streams = normals(4 * hidden, 0, 1e-3);
  run(s, streams, hidden, 1, 60);
  // The planted mistake must be visible at this scale.
  Site wrong = s;
  wrong.site.rms_eps = 1e-6f;
  Mix right_mix, wrong_mix;
  const Doubles f = wide(streams);
  expected_row(s, f.data(), hidden, right_mix);
  expected_row(wrong, f.data(), hidden, wrong_mix);
  double apart = 0;
  for (size_t i = 0; i < 4; ++i) apart = std::max(apart, std::fabs(right_mix.post[i] - wrong_mix.post[i]));
  EXPECT_GT(apart, 1e-3);
}

TEST_P(HyperTest, Trap11SinkhornKeepsItsEpsilonsOrderAndCount) {
  // A large hc_eps makes every place of ε visible; few iterations make order and count visible.
  for (int32_t iters : {1, 2, 3, 20}) {
    Site s = make_site(32, 0.05, 1.5);
    s.site.hc_eps = 0.125f;
    s.site.sinkhorn_iters = iters;
    run(s, normals(5 * 4 * 32), 32, 5, 40);
  }
}

TEST_P(HyperTest, Trap11CombAloneWithin1e7) {
  Site s = make_site(16, 0, 1.5);  // fn = 0: C depends on base alone
  bind(1);
  const Floats streams = normals(4 * 16);
  Act* x = empty_act(16);
  float* post = empty_floats(4);
  float* comb = empty_floats(16);
  ops().hyper_pre(Stage::kMain, s.site, act(streams), x, post, comb);
  Mix expected;
  expected_row(s, wide(streams).data(), 16, expected);
  const Floats c = get(comb, 16);
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(c[i], expected.comb[i], 1.5e-7);
}

TEST_P(HyperTest, Trap13PostHasAFactorOfTwoAndPreAnEpsilon) {
  Site s = make_site(16, 0, 0);
  bind(1);
  Floats streams(64, 0.0f);
  for (size_t i = 0; i < 16; ++i) streams[i] = 1.0f;  // stream 0 alone
  Act* x = empty_act(16);
  float* post = empty_floats(4);
  float* comb = empty_floats(16);
  s.norm.assign(16, 1.0f);
  s.site.norm = floats(s.norm);
  s.site.rms_eps = 1.0f;  // keeps the norm from hiding the scale of pre
  s.site.hc_eps = 0.25f;
  ops().hyper_pre(Stage::kMain, s.site, act(streams), x, post, comb);
  for (float p : get(post, 4)) EXPECT_EQ(p, 1.0f);
  const double pre = 0.75;
  expect_close(get(x, 16), Doubles(16, pre / std::sqrt(pre * pre + 1)), 8, "pre");
}

TEST_P(HyperTest, Trap12PostUsesTheTransposeOfComb) {
  const int32_t hidden = 37, rows = 5;
  const Floats streams = normals(rows * 4 * hidden), y = normals(rows * hidden), post = normals(rows * 4),
               comb = normals(rows * 16);
  bind(rows);
  Act* x = act(streams);
  ops().hyper_post(Stage::kMain, floats(y), floats(post), floats(comb), hidden, x);
  Doubles expected(streams.size());
  for (size_t t = 0; t < size_t(rows); ++t) {
    for (size_t k = 0; k < 4; ++k) {
      for (size_t i = 0; i < size_t(hidden); ++i) {
        double v = double(post[t * 4 + k]) * y[t * size_t(hidden) + i];
        for (size_t j = 0; j < 4; ++j)
          v += double(comb[t * 16 + j * 4 + k]) * streams[(t * 4 + j) * size_t(hidden) + i];
        expected[(t * 4 + k) * size_t(hidden) + i] = v;
      }
    }
  }
  expect_close(get(x, expected.size()), expected, 8, "hyper_post");
}

}  // namespace
}  // namespace firesteel::test
