// Router and experts against float64, and the four-slice rule of the experts across emulated ranks.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "harness.h"

namespace firesteel::test {
namespace {

class MoeTest : public OpsTest {
 protected:
  struct Routed {
    std::vector<int32_t> idx;
    Floats weight;
  };
  Routed route(const RouterWeights& w, const Floats& x, int32_t rows) {
    bind(rows);
    int32_t* idx = empty_ints(size_t(rows * w.top_k));
    float* weight = empty_floats(size_t(rows * w.top_k));
    ops().router(Stage::kMain, w, act(x), idx, weight);
    return {get(idx, size_t(rows * w.top_k)), get(weight, size_t(rows * w.top_k))};
  }
  /// Steps 1 to 5 in float64.
  static Routed expected(const RouterWeights& w, const TestMatrix& m, const Floats& bias, const Floats& x,
                         int32_t rows) {
    Routed out;
    const Doubles logits = product(m, wide(x), rows);
    const size_t n = size_t(w.experts);
    for (size_t r = 0; r < size_t(rows); ++r) {
      Doubles p(n), c(n);
      for (size_t e = 0; e < n; ++e) {
        p[e] = sigmoid(logits[r * n + e]);
        c[e] = p[e] + bias[e];
      }
      if (w.groups > 1) {
        const size_t size = n / size_t(w.groups);
        std::vector<std::pair<double, size_t>> groups;
        for (size_t g = 0; g < size_t(w.groups); ++g) {
          Doubles best(c.begin() + long(g * size), c.begin() + long((g + 1) * size));
          std::sort(best.rbegin(), best.rend());
          groups.push_back({-(best[0] + (size > 1 ? best[1] : 0)), g});
        }
        std::sort(groups.begin(), groups.end());
        for (size_t i = size_t(w.top_groups); i < groups.size(); ++i) {
          std::fill_n(c.begin() + long(groups[i].second * size), size, -HUGE_VAL);
        }
      }
      std::vector<int32_t> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return c[size_t(a)] > c[size_t(b)]; });
      order.resize(size_t(w.top_k));
      std::sort(order.begin(), order.end());
      double total = 0;
      for (int32_t e : order) total += p[size_t(e)];
      for (int32_t e : order) {
        out.idx.push_back(e);
        out.weight.push_back(float(p[size_t(e)] / (w.norm_topk ? total + 1e-20 : 1) * w.factor));
      }
    }
    return out;
  }
};
FS_FOR_EACH_BACKEND(MoeTest);

TEST_P(MoeTest, RouterMatchesFloat64) {
  struct Case {
    int32_t experts, top_k, groups, top_groups;
    bool norm;
  };
  for (const Case& c : {Case{8, 2, 1, 1, true}, Case{288, 8, 1, 1, true}, Case{16, 4, 4, 2, true},
                        Case{12, 3, 2, 1, false}, Case{5, 5, 1, 1, true}, Case{6, 2, 6, 3, true}}) {
    const int32_t hidden = 77, rows = 37;
    const TestMatrix m =
        load_all(ops(), make_stored(random(), {.format = MatrixFormat::kBf16, .std = 1.5 / std::sqrt(77.0)},
                                    c.experts, hidden));
    const Floats bias = normals(size_t(c.experts), 0, 0.3);
    // As the backend keeps them: choices must not hang on the rounding of an activation.
    const Floats x = get(act(normals(size_t(rows * hidden))), size_t(rows * hidden));
    RouterWeights w{m.matrix, floats(bias), c.experts, c.top_k, c.groups, c.top_groups, c.norm, 2.5f};
    const Routed got = route(w, x, rows), want = expected(w, m, bias, x, rows);
    EXPECT_EQ(got.idx, want.idx) << c.experts << " experts";
    expect_close(got.weight, wide(want.weight), 60, "weights");
  }
}

TEST_P(MoeTest, Trap17WeightsIgnoreTheBiasAndSumToTheFactor) {
  const int32_t hidden = 32;
  const TestMatrix m =
      load_all(ops(), make_stored(random(), {.format = MatrixFormat::kF32, .std = 0.2}, 8, hidden));
  Floats bias(8, 0.0f);
  bias[6] = 100;  // always chosen, weighed as if there were no bias
  RouterWeights w{m.matrix, floats(bias), 8, 3, 1, 1, true, 2.5f};
  const Routed got = route(w, normals(5 * 32), 5);
  for (size_t r = 0; r < 5; ++r) {
    EXPECT_NE(std::find(got.idx.begin() + long(3 * r), got.idx.begin() + long(3 * r + 3), 6),
              got.idx.begin() + long(3 * r + 3));
    EXPECT_NEAR(got.weight[3 * r] + got.weight[3 * r + 1] + got.weight[3 * r + 2], 2.5, 1e-5);
  }
}

TEST_P(MoeTest, RouterTiesGoToTheLowerExpertAndNaNsToTheEnd) {
  const TestMatrix m =
      load_all(ops(), make_stored(random(), {.format = MatrixFormat::kF32, .std = 0}, 10, 16));
  RouterWeights w{m.matrix, floats(Floats(10, 0.25f)), 10, 4, 1, 1, true, 1.0f};
  EXPECT_EQ(route(w, normals(16), 1).idx, (std::vector<int32_t>{0, 1, 2, 3}));
  Floats bias(10, 0.0f);
  bias[0] = bias[2] = NAN;
  w.bias = floats(bias);
  EXPECT_EQ(route(w, normals(16), 1).idx, (std::vector<int32_t>{1, 3, 4, 5}));
  w.bias = floats(Floats(10, NAN));  // every score NaN: still distinct, valid ids
  EXPECT_EQ(route(w, normals(16), 1).idx, (std::vector<int32_t>{0, 1, 2, 3}));
}

/// Stored experts, and any rank's slice of them loaded.
class ExpertsTest : public MoeTest {
 protected:
  struct Bank {
    int32_t experts, hidden, width, shared_width;
    float limit;
    std::vector<StoredMatrix> gate, up, down;  // the shared expert is the last
  };
  Bank make_bank(MatrixFormat format, int32_t experts, int32_t hidden, int32_t width, int32_t shared_width,
                 bool one_suh) {
    Bank b{experts, hidden, width, shared_width, 1.0f, {}, {}, {}};
    std::vector<uint16_t> suh;
    for (int32_t e = 0; e <= experts; ++e) {
      const int32_t wd = e == experts ? shared_width : width;
      if (wd == 0) break;
      MatrixOptions o{.format = format,
                      .bits = 4,
                      .std = 1 / std::sqrt(double(hidden)) * (format == MatrixFormat::kExl3 ? 0.8 : 1)};
      if (one_suh && e > 0 && e < experts) o.suh = &b.gate[0].suh;
      b.gate.push_back(make_stored(random(), o, wd, hidden));
      if (one_suh && e < experts) o.suh = &b.gate[0].suh;
      b.up.push_back(make_stored(random(), o, wd, hidden));
      o.suh = nullptr;
      o.std = 1 / std::sqrt(double(wd));
      b.down.push_back(make_stored(random(), o, hidden, wd));
    }
    return b;
  }
  /// Rows [first, last) of the outputs of a stored matrix.
  static StoredMatrix cut_rows(const StoredMatrix& m, int32_t first, int32_t last) {
    StoredMatrix c = m;
    c.n = last - first;
    if (m.format == MatrixFormat::kExl3) {
      const size_t tile = 32 * size_t(m.bits), row = size_t(m.n) / 16 * tile,
                   from = size_t(first) / 16 * tile, mine = size_t(c.n) / 16 * tile;
      c.weight.clear();
      for (size_t kt = 0; kt < size_t(m.k) / 16; ++kt) {
        c.weight.insert(c.weight.end(), m.weight.begin() + long(kt * row + from),
                        m.weight.begin() + long(kt * row + from + mine));
      }
      c.svh.assign(m.svh.begin() + first, m.svh.begin() + last);
    } else {
      const size_t row = m.weight.size() / size_t(m.n);
      c.weight.assign(m.weight.begin() + long(row * size_t(first)),
                      m.weight.begin() + long(row * size_t(last)));
      if (!m.scale.empty()) {
        const size_t blocks = (size_t(m.k) + 127) / 128;
        c.scale.assign(m.scale.begin() + long(size_t(first) / 128 * blocks), m.scale.end());
      }
    }
    c.dense.assign(m.dense.begin() + int64_t{first} * m.k, m.dense.begin() + int64_t{last} * m.k);
    return c;
  }
  struct Loaded {
    std::vector<Matrix> gate, up, down;
    ExpertWeights w;
  };
  /// Slices [first, first+count) of every down matrix, and the outputs of gate and up that feed them.
  std::unique_ptr<Loaded> load(const Bank& b, int32_t first, int32_t count, int32_t top_k, bool one_suh) {
    auto l = std::make_unique<Loaded>();
    for (size_t e = 0; e < b.gate.size(); ++e) {
      const int32_t wd = b.gate[e].n, from = slice_boundary(wd, first),
                    to = slice_boundary(wd, first + count);
      l->gate.push_back(load_all(ops(), cut_rows(b.gate[e], from, to)).matrix);
      l->up.push_back(load_all(ops(), cut_rows(b.up[e], from, to)).matrix);
      l->down.push_back(load_slices(ops(), b.down[e], first, count).matrix);
    }
    ExpertWeights& w = l->w;
    w.experts = b.experts;
    w.top_k = top_k;
    w.width = slice_boundary(b.width, first + count) - slice_boundary(b.width, first);
    w.limit = b.limit;
    w.gate = l->gate.data();
    w.up = l->up.data();
    w.down = l->down.data();
    w.shared_suh = one_suh;
    if (b.shared_width > 0) {
      w.shared_gate = l->gate.back();
      w.shared_up = l->up.back();
      w.shared_down = l->down.back();
    }
    return l;
  }
  Routed choose(const Bank& b, int32_t rows, int32_t top_k) {
    Routed r;
    for (int32_t t = 0; t < rows; ++t) {
      std::vector<int32_t> ids(size_t(b.experts));
      std::iota(ids.begin(), ids.end(), 0);
      for (int32_t i = 0; i < top_k; ++i) std::swap(ids[size_t(i)], ids[size_t(i + below(b.experts - i))]);
      std::sort(ids.begin(), ids.begin() + top_k);
      r.idx.insert(r.idx.end(), ids.begin(), ids.begin() + top_k);
      for (int32_t i = 0; i < top_k; ++i) r.weight.push_back(static_cast<float>(random().uniform(0.1, 2)));
    }
    return r;
  }
  Floats run(const ExpertWeights& w, const Bank& b, const Floats& x, const Routed& r, int32_t rows) {
    bind(rows);
    int32_t* idx = empty_ints(r.idx.size());
    ops().upload(idx, r.idx.data(), r.idx.size() * 4);
    float* part = empty_floats(size_t(rows * b.hidden));
    ops().experts(Stage::kMain, w, act(x), idx, floats(r.weight), part);
    return get(part, size_t(rows * b.hidden));
  }
  static Doubles one_expert(const Bank& b, size_t e, const double* x) {
    const auto times = [](const StoredMatrix& m, const Doubles& v) {
      Doubles y(size_t(m.n));
      for (size_t i = 0; i < y.size(); ++i) {
        for (size_t k = 0; k < size_t(m.k); ++k) y[i] += m.dense[i * size_t(m.k) + k] * v[k];
      }
      return y;
    };
    const Doubles row(x, x + b.hidden);
    Doubles g = times(b.gate[e], row);
    const Doubles u = times(b.up[e], row);
    for (size_t i = 0; i < g.size(); ++i) {
      g[i] =
          silu(std::min(g[i], double(b.limit))) * std::max(-double(b.limit), std::min(u[i], double(b.limit)));
    }
    return times(b.down[e], g);
  }
  Doubles expected_sum(const Bank& b, const Floats& x, const Routed& r, int32_t rows, int32_t top_k) {
    Doubles out(size_t(rows * b.hidden));
    const Doubles xd = wide(x);
    for (size_t t = 0; t < size_t(rows); ++t) {
      const auto join = [&](size_t e, double weight) {
        const Doubles y = one_expert(b, e, &xd[t * size_t(b.hidden)]);
        for (size_t i = 0; i < y.size(); ++i) out[t * size_t(b.hidden) + i] += weight * y[i];
      };
      for (size_t i = 0; i < size_t(top_k); ++i) {
        join(size_t(r.idx[t * size_t(top_k) + i]), r.weight[t * size_t(top_k) + i]);
      }
      if (b.shared_width > 0) join(size_t(b.experts), 1);
    }
    return out;
  }
};
FS_FOR_EACH_BACKEND(ExpertsTest);

TEST_P(ExpertsTest, EveryFormatMatchesFloat64AndFourRanksAgree) {
  struct Case {
    MatrixFormat format;
    int32_t hidden, width, shared_width;
    bool one_suh;
  };
  for (const Case& c :
       {Case{MatrixFormat::kBf16, 45, 96, 96, false}, Case{MatrixFormat::kF32, 64, 512, 0, false},
        Case{MatrixFormat::kFp8Block, 130, 512, 512, false}, Case{MatrixFormat::kExl3, 256, 512, 512, true},
        Case{MatrixFormat::kExl3, 128, 512, 512, false}}) {
    SCOPED_TRACE(::testing::Message() << "format " << int(c.format) << " one suh " << c.one_suh);
    const int32_t experts = 7, top_k = 3;
    const Bank b = make_bank(c.format, experts, c.hidden, c.width, c.shared_width, c.one_suh);
    const auto whole = load(b, 0, 4, top_k, c.one_suh);
    for (int32_t rows : {1, 5, 37}) {
      const Floats x = normals(size_t(rows * c.hidden));
      const Routed r = choose(b, rows, top_k);
      const Floats got = run(whole->w, b, x, r, rows);
      expect_close(got, expected_sum(b, x, r, rows, top_k), 40, "experts");
      if (rows != 5 || c.width < 512) continue;
      std::vector<Floats> half, quarter;
      for (int32_t i = 0; i < 2; ++i)
        half.push_back(run(load(b, 2 * i, 2, top_k, c.one_suh)->w, b, x, r, rows));
      for (int32_t i = 0; i < 4; ++i)
        quarter.push_back(run(load(b, i, 1, top_k, c.one_suh)->w, b, x, r, rows));
      bool order_matters = false;
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i], half[0][i] + half[1][i]);
        EXPECT_EQ(got[i], (quarter[0][i] + quarter[1][i]) + (quarter[2][i] + quarter[3][i]));
        order_matters |= got[i] != ((quarter[0][i] + quarter[1][i]) + quarter[2][i]) + quarter[3][i];
      }
      EXPECT_TRUE(order_matters) << "the control, another order of the sum, must differ";
    }
  }
}

TEST_P(ExpertsTest, Trap19SharedExpertHasWeightOneAndTheClamp) {
  const Bank b = make_bank(MatrixFormat::kBf16, 4, 40, 64, 32, false);
  const auto l = load(b, 0, 4, 2, false);
  const Floats x = normals(3 * 40, 0, 4);  // large inputs: the clamp binds
  Routed r = choose(b, 3, 2);
  std::fill(r.weight.begin(), r.weight.end(), 0.0f);
  Doubles want;
  const Doubles xd = wide(x);
  for (size_t t = 0; t < 3; ++t) {
    const Doubles y = one_expert(b, 4, &xd[t * 40]);
    want.insert(want.end(), y.begin(), y.end());
  }
  expect_close(run(l->w, b, x, r, 3), want, 40, "shared expert");
}

}  // namespace
}  // namespace firesteel::test
