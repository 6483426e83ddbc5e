// The text model against reference results on the generated golden models: logits of every position, layer
// outputs, selections, expert choices and the greedy continuation; in one pass, in an odd split and token by
// token.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "model/harness.h"
#include "model/ops_proxy.h"
#include "model/trace.h"
#include "support/golden.h"

namespace firesteel::test {
namespace {

constexpr double kLogitLimit = 3e-4;
constexpr double kLayerLimit = 1e-4;

std::set<int32_t> row_set(const std::vector<int32_t>& values, size_t r, size_t width) {
  std::set<int32_t> out;
  for (size_t i = 0; i < width; ++i) {
    if (values[r * width + i] >= 0) out.insert(values[r * width + i]);
  }
  return out;
}

/// Rows whose sets differ.
int differing_sets(const std::vector<int32_t>& a, size_t width_a, const std::vector<int32_t>& b,
                   size_t width_b) {
  int count = 0;
  EXPECT_EQ(a.size() / width_a, b.size() / width_b);
  for (size_t r = 0; r < a.size() / width_a; ++r)
    count += row_set(a, r, width_a) != row_set(b, r, width_b) ? 1 : 0;
  return count;
}

struct Mode {
  const char* name;
  std::vector<int32_t> split;
};

std::vector<Mode> modes(size_t tokens) {
  return {{"one pass", {}},
          {"split", {21, 22, 1, 1, 1, 1, 19}},
          {"token by token", std::vector<int32_t>(tokens, 1)}};
}

class GoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, LogitsLayersAndChoices) {
  const Golden golden = Golden::of(GetParam());
  const std::vector<int32_t> ids = golden.ints("input_ids");
  const std::vector<float> want = golden.floats("logits");
  Harness h(golden_model_dir(GetParam()), trace_limits(static_cast<int64_t>(ids.size())));
  ASSERT_NE(h.model(), nullptr);
  for (const Mode& mode : modes(ids.size())) {
    SCOPED_TRACE(mode.name);
    auto traced = trace_prompt(*h.model(), ids, {mode.split, true, 64});
    ASSERT_TRUE(traced.ok()) << traced.error().message;
    const double worst = max_abs_diff(traced->at("logits").floats, want);
    EXPECT_LE(worst, kLogitLimit);
    int compared = 0;
    double worst_layer = 0;
    for (const auto& [name, array] : golden.arrays()) {
      const auto mine = traced->find(name);
      if (name.starts_with("streams.") || name.starts_with("attn.") || name.starts_with("mlp.")) {
        ASSERT_NE(mine, traced->end()) << name;
        EXPECT_EQ(mine->second.shape, array.shape) << name;
        const double diff = max_abs_diff(mine->second.floats, golden.floats(name));
        EXPECT_LE(diff, kLayerLimit) << name;
        worst_layer = std::max(worst_layer, diff);
        ++compared;
      } else if (name.starts_with("index.") || name.starts_with("router_idx.")) {
        ASSERT_NE(mine, traced->end()) << name;
        EXPECT_EQ(differing_sets(mine->second.ints, static_cast<size_t>(mine->second.shape[1]),
                                 golden.ints(name), static_cast<size_t>(array.shape[1])),
                  0)
            << name;
        ++compared;
      }
    }
    EXPECT_EQ(compared, 18 + 2 + 4);  // six layers' three outputs, two indexers, four routers
    std::printf("%s, %s: logits differ by at most %.2e, layer outputs by %.2e\n", GetParam(), mode.name,
                worst, worst_layer);
  }
}

TEST_P(GoldenTest, ExpertWeights) {
  const Golden golden = Golden::of(GetParam());
  const std::vector<int32_t> ids = golden.ints("input_ids");
  Harness h(golden_model_dir(GetParam()), trace_limits(static_cast<int64_t>(ids.size())));
  ASSERT_NE(h.model(), nullptr);
  auto traced = trace_prompt(*h.model(), ids, {{}, true, 64});
  ASSERT_TRUE(traced.ok()) << traced.error().message;
  for (int layer = 2; layer < 6; ++layer) {
    const std::string idx = "router_idx." + std::to_string(layer),
                      weight = "router_w." + std::to_string(layer);
    const auto want_idx = golden.ints(idx);
    const auto want_w = golden.floats(weight);
    const auto& got_idx = traced->at(idx).ints;
    const auto& got_w = traced->at(weight).floats;
    ASSERT_EQ(got_idx.size(), want_idx.size());
    for (size_t i = 0; i < want_idx.size(); i += 2) {
      const size_t swap = got_idx[i] == want_idx[i] ? 0 : 1;
      ASSERT_NEAR(got_w[i], want_w[i + swap], 2e-5) << weight << " row " << i / 2;
      ASSERT_NEAR(got_w[i + 1], want_w[i + 1 - swap], 2e-5) << weight << " row " << i / 2;
    }
  }
}

TEST_P(GoldenTest, GreedyContinuation) {
  const Golden golden = Golden::of(GetParam());
  const std::vector<int32_t> ids = golden.ints("input_ids"), want = golden.ints("greedy_ids");
  ModelLimits limits = trace_limits(256);
  Harness h(golden_model_dir(GetParam()), limits);
  ASSERT_NE(h.model(), nullptr);
  Sequence s = h.start(256);
  const std::vector<float> logits = h.run(s, ids);
  EXPECT_EQ(h.greedy(s, row(logits, static_cast<int64_t>(ids.size()) - 1, h.vocab()), 48), want);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, testing::Values("tiny", "tiny-variant", "tiny-exl3", "tiny-fp8"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// Worst logit difference from the goldens of `tiny` on a backend with something wrong.
double worst_on_tiny(std::unique_ptr<Ops> ops) {
  const Golden golden = Golden::of("tiny");
  const std::vector<int32_t> ids = golden.ints("input_ids");
  Harness h(golden_model_dir("tiny"), trace_limits(static_cast<int64_t>(ids.size())), std::move(ops));
  if (h.model() == nullptr) return 0;
  auto traced = trace_prompt(*h.model(), ids, {});
  return traced.ok() ? max_abs_diff(traced->at("logits").floats, golden.floats("logits")) : 0;
}

/// kv_b's rows taken as all keys, then all values.
class KeysThenValues : public OpsProxy {
 public:
  using OpsProxy::OpsProxy;
  static constexpr int64_t kHeads = 4, kDim = 256, kLatent = 512;
  class Source : public MatrixSource {
   public:
    explicit Source(MatrixSource& in) : in_(in) {}
    Status read_rows(MatrixPart part, int64_t first, int64_t count, void* dst) override {
      for (int64_t i = 0; i < count; ++i) {
        // Row (head, key or value, d) of the right order reads row (key or value, head, d).
        const int64_t r = first + i, head = r / (2 * kDim), kind = r / kDim % 2, d = r % kDim;
        RETURN_IF_ERROR(in_.read_rows(part, (kind * kHeads + head) * kDim + d, 1,
                                      static_cast<std::byte*>(dst) + i * kLatent * 2));
      }
      return Status::success();
    }

   private:
    MatrixSource& in_;
  };
  Result<Matrix> load_matrix(const MatrixSpec& spec, MatrixSource& source, std::byte* dst) override {
    if (spec.n != kHeads * 2 * kDim || spec.k != kLatent) return OpsProxy::load_matrix(spec, source, dst);
    Source other(source);
    return OpsProxy::load_matrix(spec, other, dst);
  }
};

TEST(GoldenControl, Trap20KeyAndValueRowsOfEachHeadStandTogether) {
  EXPECT_GT(worst_on_tiny(std::make_unique<KeysThenValues>(make_cpu_ops(2))), 0.1);
}

/// One of the 512 numbers of every latent five per cent too large.
class ScaledLatents : public OpsProxy {
 public:
  using OpsProxy::OpsProxy;
  void bind(const Batch& batch) override {
    rows_ = batch.rows;
    OpsProxy::bind(batch);
  }
  void latent_append(Stage s, const Act* c, int32_t latent, Plane plane) override {
    auto* values = const_cast<float*>(reinterpret_cast<const float*>(c));
    for (int64_t r = 0; r < rows_; ++r) values[r * latent] *= 1.05f;
    OpsProxy::latent_append(s, c, latent, plane);
  }

 private:
  int32_t rows_ = 0;
};

TEST(GoldenControl, OneNumberOfALatentIsSeen) {
  EXPECT_GT(worst_on_tiny(std::make_unique<ScaledLatents>(make_cpu_ops(2))), 10 * kLogitLimit);
  EXPECT_LE(worst_on_tiny(make_cpu_ops(2)), kLogitLimit);
}

}  // namespace
}  // namespace firesteel::test
