// Routed and shared experts on CUDA against the CPU backend, and the same bits for a row in any batch.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops_cuda/both.h"

namespace firesteel::test {
namespace {

using Floats = std::vector<float>;

struct ExpertCase {
  MatrixFormat format;
  bool shared_suh, shared_expert;
  int32_t slices, bits;
  Codebook codebook;
  int32_t hidden = 512, width = 256;
  bool mixed = false;  // up of every other expert has one bit more than its gate
  MatrixKeep shared_keep = MatrixKeep::kStored;
  int32_t down_more_bits = 0;  // than gate and up
};
void PrintTo(const ExpertCase& c, std::ostream* out) {
  *out << "format " << static_cast<int>(c.format) << " bits " << c.bits << " slices " << c.slices
       << " hidden " << c.hidden;
}

constexpr int32_t kExperts = 12, kTop = 4;

struct Layer {
  std::vector<RawMatrix> gate, up, down;
  RawMatrix shared[3], router;
};

Layer make_layer(Random& random, const ExpertCase& c) {
  Layer l;
  const auto make = [&](int32_t n, int32_t k, const RawMatrix* suh, int32_t more_bits = 0) {
    return RawMatrix::make(random, c.format, n, k, c.bits + more_bits, c.codebook, suh);
  };
  for (int32_t e = 0; e < kExperts; ++e) {
    const RawMatrix* suh = c.shared_suh && e > 0 ? &l.gate[0] : nullptr;
    l.gate.push_back(make(c.width, c.hidden, suh));
    l.up.push_back(make(c.width, c.hidden, c.shared_suh ? &l.gate[0] : nullptr, c.mixed ? e % 2 : 0));
    l.down.push_back(make(c.hidden, c.width, nullptr, c.down_more_bits));
    l.down.back().slice(c.slices);
  }
  const auto shared = [&](int32_t n, int32_t k) {
    return RawMatrix::make(random, MatrixFormat::kBf16, n, k, 0, Codebook::kMcg, nullptr, c.shared_keep);
  };
  l.shared[0] = shared(c.width, c.hidden);
  l.shared[1] = shared(c.width, c.hidden);
  l.shared[2] = shared(c.hidden, c.width);
  l.shared[2].slice(c.slices);
  l.router = RawMatrix::make(random, MatrixFormat::kBf16, kExperts, c.hidden);
  return l;
}

struct Choice {
  std::vector<int32_t> idx;
  Floats weight;
};

Choice choose(Random& random, int32_t rows) {
  Choice out{std::vector<int32_t>(static_cast<size_t>(rows * kTop)),
             Floats(static_cast<size_t>(rows * kTop))};
  for (int32_t r = 0; r < rows; ++r) {
    std::vector<int32_t> ids(kExperts);
    for (int32_t e = 0; e < kExperts; ++e) ids[static_cast<size_t>(e)] = e;
    // The first rows all pick the same experts.
    for (int32_t i = 0; i < kTop && r >= 20; ++i) {
      std::swap(ids[static_cast<size_t>(i)],
                ids[static_cast<size_t>(i) + random.below(static_cast<uint64_t>(kExperts - i))]);
    }
    std::sort(ids.begin(), ids.begin() + kTop);
    for (int32_t i = 0; i < kTop; ++i) {
      out.idx[static_cast<size_t>(r * kTop + i)] = ids[static_cast<size_t>(i)];
      out.weight[static_cast<size_t>(r * kTop + i)] = static_cast<float>(random.uniform(0.1, 1.0));
    }
  }
  return out;
}

struct Loaded {
  Loaded(Side& side, Layer& layer, const ExpertCase& c) {
    for (size_t e = 0; e < kExperts; ++e) {
      gate.push_back(side.load(layer.gate[e]));
      up.push_back(side.load(layer.up[e]));
      down.push_back(side.load(layer.down[e]));
    }
    w.experts = kExperts;
    w.top_k = kTop;
    w.width = c.width;
    w.limit = 1.5f;
    w.gate = gate.data();
    w.up = up.data();
    w.down = down.data();
    w.shared_suh = c.shared_suh;
    if (c.shared_expert) {
      w.shared_gate = side.load(layer.shared[0]);
      w.shared_up = side.load(layer.shared[1]);
      w.shared_down = side.load(layer.shared[2]);
    }
  }
  Loaded(const Loaded&) = delete;
  ExpertWeights w;
  std::vector<Matrix> gate, up, down;
};

/// The op on rows `first` to `first + rows` of x [.., hidden].
Floats run_experts(Side& side, const ExpertWeights& w, const Floats& x, const Choice& choice, int32_t hidden,
                   int32_t first, int32_t rows) {
  TestBatch batch;
  batch.add(rows, 0, 0);
  side.ops().bind(batch.view());
  const auto count = static_cast<size_t>(rows) * static_cast<size_t>(hidden);
  float* part = side.poisoned(count);
  const Floats xs(x.begin() + first * hidden, x.begin() + (first + rows) * hidden);
  const std::vector<int32_t> is(choice.idx.begin() + first * kTop,
                                choice.idx.begin() + (first + rows) * kTop);
  const Floats ws(choice.weight.begin() + first * kTop, choice.weight.begin() + (first + rows) * kTop);
  side.ops().experts(Stage::kMain, w, side.act(xs), side.up(std::span<const int32_t>(is)), side.f32(ws),
                     part);
  side.finish();
  return side.read(part, count);
}

/// Whether prompts add experts where they are computed, while this lives.
class ExpertsInOrder {
 public:
  explicit ExpertsInOrder(bool on) : before_(set_experts_in_order(cuda_side()->ops(), on)) {}
  ~ExpertsInOrder() { set_experts_in_order(cuda_side()->ops(), before_); }
  ExpertsInOrder(const ExpertsInOrder&) = delete;

 private:
  bool before_;
};

class Experts : public testing::TestWithParam<ExpertCase> {};

TEST_P(Experts, MatchTheDefinitionAndDoNotDependOnTheBatch) {
  REQUIRE_CUDA();
  const ExpertCase c = GetParam();
  Random random;
  Layer layer = make_layer(random, c);
  const int32_t all = 170;
  const Floats x = bf16_normals(random, all * c.hidden, 1.0);
  const Choice choice = choose(random, all);
  const auto run = [&](Side& side, const ExpertWeights& w, int32_t first, int32_t rows) {
    return run_experts(side, w, x, choice, c.hidden, first, rows);
  };
  const Loaded cpu(*cpu_side(), layer, c), cuda(*cuda_side(), layer, c);
  const Floats whole = run(*cuda_side(), cuda.w, 0, all);
  for (const bool on : {true, false}) {
    const ExpertsInOrder in_order(on);
    for (const int32_t rows : {all, 33})
      expect_same_bits(run(*cuda_side(), cuda.w, 0, rows),
                       Floats(whole.begin(), whole.begin() + rows * c.hidden), "experts in order");
  }
  expect_close(whole, run(*cpu_side(), cpu.w, 0, all), 6e-3, "experts");
  for (const auto& [first, rows] :
       {std::pair{0, 1}, {19, 2}, {50, 8}, {60, 9}, {0, 32}, {90, 33}, {100, 70}}) {
    expect_same_bits(run(*cuda_side(), cuda.w, first, rows),
                     Floats(whole.begin() + first * c.hidden, whole.begin() + (first + rows) * c.hidden),
                     "rows alone");
  }
  // Blocks that meet arrive in any order: the sums must not show it.
  for (int32_t repeat = 0; repeat < 12; ++repeat) {
    const int32_t rows = repeat % 3 == 0 ? 8 : repeat % 3 == 1 ? 1 : 32;
    expect_same_bits(run(*cuda_side(), cuda.w, 40, rows),
                     Floats(whole.begin() + 40 * c.hidden, whole.begin() + (40 + rows) * c.hidden),
                     "once more");
  }

  // The router with them: the bits of the two apart, for any number of rows.
  RouterWeights router;
  router.weight = cuda_side()->load(layer.router);
  router.bias = cuda_side()->f32(random.normals(kExperts, 0.3));
  router.experts = kExperts;
  router.top_k = kTop;
  const auto route = [&](int32_t first, int32_t rows, bool together) {
    Side& side = *cuda_side();
    TestBatch batch;
    batch.add(rows, 0, 0);
    side.ops().bind(batch.view());
    const auto count = static_cast<size_t>(rows), picks = count * kTop;
    auto* ids = reinterpret_cast<int32_t*>(side.poisoned(picks));
    float *weights = side.poisoned(picks), *part = side.poisoned(count * c.hidden);
    Act* xs = side.act(Floats(x.begin() + first * c.hidden, x.begin() + (first + rows) * c.hidden));
    if (together) {
      side.ops().moe(Stage::kMain, router, cuda.w, xs, ids, weights, part);
    } else {
      side.ops().router(Stage::kMain, router, xs, ids, weights);
      side.ops().experts(Stage::kMain, cuda.w, xs, ids, weights, part);
    }
    side.finish();
    Floats result = side.read(part, count * c.hidden), chosen = side.read(weights, picks);
    result.insert(result.end(), chosen.begin(), chosen.end());
    for (const int32_t id : side.read(ids, picks)) result.push_back(static_cast<float>(id));
    return result;
  };
  for (const auto& [first, rows] : {std::pair{0, 1}, {3, 1}, {30, 2}, {50, 8}, {60, 9}, {70, 33}}) {
    const Floats apart = route(first, rows, false);
    EXPECT_FALSE(same_bits(apart, route(first + 1, rows, false))) << "the control";
    for (int32_t repeat = 0; repeat < 3; ++repeat)
      expect_same_bits(route(first, rows, true), apart, "router and experts together");
  }
}

/// So many rows and columns that the sums do not stay in L2: groups of columns, one after the other.
TEST(ExpertsOfPrompts, LongOnesHaveTheBitsOfShortOnes) {
  REQUIRE_CUDA();
  const ExpertCase c{MatrixFormat::kExl3, true, true, 2, 4, Codebook::kMcg, 6144, 256};
  Random random;
  Layer layer = make_layer(random, c);
  const int32_t all = 2048;
  const Floats x = bf16_normals(random, static_cast<size_t>(all) * static_cast<size_t>(c.hidden), 1.0);
  const Choice choice = choose(random, all);
  const Loaded cuda(*cuda_side(), layer, c);
  const Floats whole = run_experts(*cuda_side(), cuda.w, x, choice, c.hidden, 0, all);
  for (const auto& [first, rows] : {std::pair{0, 1}, {700, 8}, {1000, 65}, {1900, 148}}) {
    expect_same_bits(run_experts(*cuda_side(), cuda.w, x, choice, c.hidden, first, rows),
                     Floats(whole.begin() + first * c.hidden, whole.begin() + (first + rows) * c.hidden),
                     "rows of a long prompt alone");
  }
  for (const bool on : {true, true, true, false}) {
    const ExpertsInOrder in_order(on);
    EXPECT_TRUE(same_bits(run_experts(*cuda_side(), cuda.w, x, choice, c.hidden, 0, all), whole));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, Experts,
    testing::Values(
        ExpertCase{MatrixFormat::kExl3, true, true, 2, 4, Codebook::kMcg},
        // Several units of K, the last of them short, in all products.
        ExpertCase{MatrixFormat::kExl3, true, true, 2, 4, Codebook::kMcg, 1664, 1408},
        ExpertCase{MatrixFormat::kExl3, false, false, 2, 5, Codebook::kMul1, 1664, 1408},
        ExpertCase{MatrixFormat::kExl3, false, true, 2, 4, Codebook::kMul1},
        ExpertCase{MatrixFormat::kExl3, true, false, 1, 3, Codebook::kMcg},
        ExpertCase{MatrixFormat::kExl3, false, true, 4, 2, Codebook::k3Inst},
        ExpertCase{MatrixFormat::kBf16, false, true, 2, 0, Codebook::kMcg},
        ExpertCase{MatrixFormat::kFp8Block, false, false, 2, 0, Codebook::kMcg},
        ExpertCase{MatrixFormat::kF32, false, false, 1, 0, Codebook::kMcg},
        ExpertCase{MatrixFormat::kExl3, true, true, 2, 4, Codebook::kMcg, 1152, 1408},
        ExpertCase{MatrixFormat::kExl3, true, false, 2, 5, Codebook::kMul1, 640, 384, true},
        ExpertCase{MatrixFormat::kExl3, true, true, 2, 4, Codebook::kMcg, 1664, 1408, false, MatrixKeep::kQ4},
        ExpertCase{MatrixFormat::kExl3, true, true, 2, 4, Codebook::kMul1, 4096, 1024, false,
                   MatrixKeep::kQ4},
        ExpertCase{MatrixFormat::kExl3, false, true, 1, 3, Codebook::kMcg, 640, 384, false, MatrixKeep::kQ4},
        // Many blocks, more than a GPU takes in at once.
        ExpertCase{MatrixFormat::kExl3, true, true, 2, 4, Codebook::kMcg, 4096, 1024, false, MatrixKeep::kQ4},
        // More than eight units of K.
        ExpertCase{MatrixFormat::kExl3, true, false, 4, 3, Codebook::kMul1, 4736, 384},
        ExpertCase{MatrixFormat::kExl3, true, true, 2, 4, Codebook::kMcg, 1664, 1408, false, MatrixKeep::kQ4,
                   1},
        ExpertCase{MatrixFormat::kExl3, true, true, 2, 4, Codebook::kMcg, 512, 256, false,
                   MatrixKeep::kFp8}));

}  // namespace
}  // namespace firesteel::test
