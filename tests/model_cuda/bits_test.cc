// One arithmetic on CUDA: a row of logits has the same bits in one pass, in any split, token by token, beside
// other sequences, issued op by op or replayed as a recorded graph.
#include <algorithm>
#include <cstring>

#include "cuda.h"
#include "model/harness.h"
#include "model/ops_proxy.h"
#include "support/golden.h"
#include "support/random.h"

namespace firesteel::test {
namespace {

size_t differing_rows(const std::vector<float>& a, const std::vector<float>& b, size_t width) {
  if (a.size() != b.size()) return SIZE_MAX;
  size_t count = 0;
  for (size_t at = 0; at < a.size(); at += width)
    count += std::memcmp(a.data() + at, b.data() + at, width * sizeof(float)) != 0;
  return count;
}

/// What every sublayer of every row gave.
class Outputs : public ForwardHooks {
 public:
  explicit Outputs(Model& model) : config_(model.config()), ops_(model.ops()) {}
  void attention_output(int32_t layer, const float* y, int32_t rows) override { keep(2 * layer, y, rows); }
  void mlp_output(int32_t layer, const float* y, int32_t rows) override { keep(2 * layer + 1, y, rows); }
  /// [2 · layers][rows · hidden]
  std::vector<std::vector<float>> values;

 private:
  void keep(int32_t place, const float* y, int32_t rows) {
    values.resize(static_cast<size_t>(2 * config_.layers));
    std::vector<float>& out = values[static_cast<size_t>(place)];
    const size_t at = out.size(), count = static_cast<size_t>(rows) * static_cast<size_t>(config_.hidden);
    out.resize(at + count);
    ops_.download(out.data() + at, y, count * sizeof(float));
  }
  const ModelConfig& config_;
  Ops& ops_;
};

/// Where a row computed alone first differs from the same row of one pass.
std::string first_difference(Harness& h, const std::vector<int32_t>& ids) {
  Outputs whole(*h.model()), single(*h.model());
  Sequence s = h.start(static_cast<int32_t>(ids.size()));
  h.forward({{&s, ids}}, &whole);
  h.release(s);
  s = h.start(static_cast<int32_t>(ids.size()));
  for (const int32_t id : ids) h.forward({{&s, {id}}}, &single);
  h.release(s);
  const auto hidden = static_cast<size_t>(h.model()->config().hidden);
  for (size_t r = 0; r < ids.size(); ++r)
    for (size_t place = 0; place < whole.values.size(); ++place)
      for (size_t i = r * hidden; i < (r + 1) * hidden; ++i) {
        const float a = whole.values[place][i], b = single.values[place][i];
        if (std::memcmp(&a, &b, sizeof a) == 0) continue;
        return "row " + std::to_string(r) + ", layer " + std::to_string(place / 2) +
               (place % 2 == 0 ? ", attention" : ", feed-forward") + ", element " +
               std::to_string(i % hidden) + ": " + std::to_string(a) + " in one pass, " + std::to_string(b) +
               " alone";
      }
  return "no sublayer's output differs";
}

class CudaBits : public testing::TestWithParam<const char*> {};

TEST_P(CudaBits, OnePassAnySplitTokenByTokenAndInCompany) {
  NEEDS_GPU();
  constexpr size_t kTokens = 700;  // beyond the dense regime of the small models
  const std::vector<int32_t> ids = prompt_of(GetParam(), kTokens);
  Harness h(model_dir(GetParam()), {704, 704, 24, 6}, try_cuda_ops());
  ASSERT_NE(h.model(), nullptr);
  const auto width = static_cast<size_t>(h.vocab());
  Sequence s = h.start(kTokens);
  const std::vector<float> whole = h.run(s, ids);
  h.release(s);

  Random random(fresh_seed());
  for (int round = 0; round < 3; ++round) {
    std::vector<int32_t> split;
    for (int32_t left = kTokens; left > 0;) {
      const auto most = static_cast<uint64_t>(random.below(3) == 0 ? 300 : random.below(2) == 0 ? 40 : 3);
      split.push_back(std::min(left, 1 + static_cast<int32_t>(random.below(most))));
      left -= split.back();
    }
    s = h.start(kTokens);
    EXPECT_EQ(differing_rows(h.run(s, ids, split), whole, width), 0u) << "split " << round;
    h.release(s);
  }
  s = h.start(kTokens);
  const size_t alone = differing_rows(h.run(s, ids, std::vector<int32_t>(kTokens, 1)), whole, width);
  h.release(s);
  EXPECT_EQ(alone, 0u) << "token by token; " << first_difference(h, ids);

  // Four sequences at different places of the same text, some rows each, in one batch.
  std::vector<Sequence> all;
  for (int i = 0; i < 4; ++i) all.push_back(h.start(kTokens));
  size_t compared = 0, different = 0;
  while (std::any_of(all.begin(), all.end(),
                     [](const Sequence& q) { return q.length < static_cast<int32_t>(kTokens); })) {
    std::vector<Harness::Part> parts;
    std::vector<size_t> from;
    for (Sequence& q : all) {
      const auto at = static_cast<size_t>(q.length);
      if (at == kTokens) continue;
      const size_t rows = std::min<size_t>(kTokens - at, 1 + random.below(random.below(4) == 0 ? 150 : 5));
      parts.push_back({&q, slice(ids, at, at + rows)});
      for (size_t r = 0; r < rows; ++r) from.push_back(at + r);
    }
    const std::vector<float> got = h.forward(parts);
    for (size_t r = 0; r < from.size(); ++r, ++compared)
      different +=
          std::memcmp(got.data() + r * width, whole.data() + from[r] * width, width * sizeof(float)) != 0;
  }
  EXPECT_EQ(compared, 4 * kTokens);
  EXPECT_EQ(different, 0u) << "in company";
}

/// Never replays.
class Unrecorded : public OpsProxy {
 public:
  using OpsProxy::OpsProxy;
  bool begin(uint64_t) override { return true; }
};
/// Leaves the backend with scratch of its own, which grows as ops need it.
class Growing : public OpsProxy {
 public:
  using OpsProxy::OpsProxy;
  void set_scratch(std::byte*, size_t) override { OpsProxy::set_scratch(nullptr, 0); }
};
/// Counts what was replayed.
class Replays : public OpsProxy {
 public:
  using OpsProxy::OpsProxy;
  bool begin(uint64_t key) override {
    const bool issue = OpsProxy::begin(key);
    (issue ? issued : replayed) += 1;
    return issue;
  }
  int issued = 0, replayed = 0;
};

TEST_P(CudaBits, ARecordedForwardIsTheIssuedOne) {
  NEEDS_GPU();
  constexpr size_t kPrompt = 150, kSteps = 120;
  const std::vector<int32_t> ids = prompt_of(GetParam(), kPrompt + kSteps);
  std::vector<float> rows[2];
  for (const bool recorded : {false, true}) {
    std::unique_ptr<Ops> ops;
    Replays* counter = nullptr;
    if (recorded) {
      auto counted = std::make_unique<Replays>(try_cuda_ops());
      counter = counted.get();
      ops = std::move(counted);
    } else {
      ops = std::make_unique<Unrecorded>(try_cuda_ops());
    }
    Harness h(model_dir(GetParam()), {256, 256, 8, 2}, std::move(ops));
    ASSERT_NE(h.model(), nullptr);
    Sequence a = h.start(512), b = h.start(512);
    h.run(a, slice(ids, 0, kPrompt));
    h.run(b, slice(ids, 0, kPrompt / 3));
    for (size_t i = 0; i < kSteps; ++i) {
      // Two streams of one row, now and then a window of three in the first.
      const size_t at = static_cast<size_t>(a.length), bt = static_cast<size_t>(b.length);
      const size_t n = i % 5 == 4 ? 3 : 1;
      if (at + n > ids.size()) break;
      const auto got = h.forward({{&a, slice(ids, at, at + n)}, {&b, slice(ids, bt, bt + 1)}});
      rows[recorded].insert(rows[recorded].end(), got.begin(), got.end());
    }
    if (counter != nullptr) {
      EXPECT_GT(counter->replayed, 60);
      std::printf("%s: %d forwards replayed, %d issued\n", GetParam(), counter->replayed, counter->issued);
    }
  }
  ASSERT_FALSE(rows[0].empty());
  EXPECT_EQ(differing_bits(rows[0], rows[1]), 0u);
}

TEST_P(CudaBits, ARecordedForwardOutlivesItsScratch) {
  NEEDS_GPU();
  constexpr size_t kTokens = 700, kSteps = 20;
  const std::vector<int32_t> ids = prompt_of(GetParam(), kTokens);
  const ModelLimits limits{704, 704, 24, 2};
  Harness fixed(model_dir(GetParam()), limits, try_cuda_ops());
  ASSERT_NE(fixed.model(), nullptr);
  const auto width = static_cast<size_t>(fixed.vocab());
  Sequence s = fixed.start(kTokens);
  const std::vector<float> whole = fixed.run(s, ids);

  Harness h(model_dir(GetParam()), limits, std::make_unique<Growing>(try_cuda_ops()));
  ASSERT_NE(h.model(), nullptr);
  Sequence a = h.start(kTokens);
  size_t different = 0;
  // Steps are recorded; a longer prompt each time takes more scratch; then the same steps go on.
  for (const size_t prompt : {40u, 200u, 690u, 0u}) {
    for (size_t i = 0; i < kSteps; ++i) {
      const auto at = static_cast<size_t>(a.length);
      const std::vector<float> got = h.forward({{&a, slice(ids, at, at + 1)}});
      different += std::memcmp(got.data(), whole.data() + at * width, width * sizeof(float)) != 0;
    }
    if (prompt == 0) break;
    Sequence b = h.start(kTokens);
    h.run(b, slice(ids, 0, prompt));
    h.release(b);
  }
  EXPECT_EQ(different, 0u);
}

const auto kModels = testing::Values("tiny", "tiny-variant", "tiny-exl3", "tiny-fp8", "demo");
INSTANTIATE_TEST_SUITE_P(Models, CudaBits, kModels, [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace firesteel::test
