// Bit for bit: one pass = any split = token by token = beside other sequences, with a planted fault that must
// be seen; rollback, saved slots and copied pages; batches that do not fit are refused.
#include <gtest/gtest.h>

#include <algorithm>

#include "model/harness.h"
#include "model/ops_proxy.h"
#include "model/trace.h"
#include "support/golden.h"
#include "support/random.h"

namespace firesteel::test {
namespace {

constexpr int32_t kPrompt = 150;

std::vector<int32_t> random_ids(Random& random, int32_t count, int32_t vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab)));
  return ids;
}

std::vector<int32_t> random_split(Random& random, int32_t total) {
  std::vector<int32_t> split;
  while (total > 0) {
    const auto rows = static_cast<int32_t>(random.between(1, std::min(total, random.below(2) != 0 ? 5 : 60)));
    split.push_back(rows);
    total -= rows;
  }
  return split;
}

/// The prompt beside three others: chunks of all lengths mixed, the others in front and behind.
std::vector<float> beside_others(Harness& h, const std::vector<int32_t>& ids, Random& random) {
  Sequence s = h.start(kPrompt);
  std::vector<Sequence> others;
  for (int i = 0; i < 3; ++i) others.push_back(h.start(2 * kPrompt));
  std::vector<float> out;
  const auto width = static_cast<size_t>(h.vocab());
  size_t at = 0;
  while (at < ids.size()) {
    const auto rows = std::min<size_t>(static_cast<size_t>(random.between(1, 40)), ids.size() - at);
    std::vector<Harness::Part> parts;
    size_t before = 0;
    for (size_t i = 0; i < others.size(); ++i) {
      if (i == 2) parts.push_back({&s, slice(ids, at, at + rows)});
      const auto take = static_cast<int32_t>(random.between(1, 12));
      if (others[i].length + take > 2 * kPrompt) continue;
      if (i < 2) before += static_cast<size_t>(take);
      parts.push_back({&others[i], random_ids(random, take, h.vocab())});
    }
    const std::vector<float> logits = h.forward(parts);
    out.insert(out.end(), logits.begin() + static_cast<int64_t>(before * width),
               logits.begin() + static_cast<int64_t>((before + rows) * width));
    at += rows;
  }
  h.release(s);
  for (const Sequence& o : others) h.release(o);
  return out;
}

/// Adds to each row of a row-parallel product a hair that depends on how many rows the batch has.
class RowCountFault : public OpsProxy {
 public:
  using OpsProxy::OpsProxy;
  void bind(const Batch& batch) override {
    rows_ = batch.rows;
    OpsProxy::bind(batch);
  }
  void linear_sliced(Stage s, const Matrix& w, const Act* x, float* part) override {
    OpsProxy::linear_sliced(s, w, x, part);
    for (int64_t i = 0; i < int64_t{rows_} * w.spec.n; ++i)
      part[i] *= 1.0f + 1e-6f * static_cast<float>(rows_ % 16);
  }

 private:
  int32_t rows_ = 0;
};

struct Differences {
  size_t split = 0, single = 0, beside = 0;
};

Differences compare(const std::string& model, bool fault, uint64_t seed) {
  std::unique_ptr<Ops> ops = make_cpu_ops(2);
  if (fault) ops = std::make_unique<RowCountFault>(std::move(ops));
  Harness h(model, {kPrompt, kPrompt, 10, 4}, std::move(ops));
  if (h.model() == nullptr) return {};
  Random random(seed);
  const std::vector<int32_t> ids = random_ids(random, kPrompt, h.vocab());
  const auto fresh = [&](const std::vector<int32_t>& split) {
    Sequence s = h.start(kPrompt);
    std::vector<float> out = h.run(s, ids, split);
    h.release(s);
    return out;
  };
  const std::vector<float> once = fresh({});
  Differences d;
  for (int i = 0; i < 3; ++i) d.split += differing_bits(fresh(random_split(random, kPrompt)), once);
  d.single = differing_bits(fresh(std::vector<int32_t>(kPrompt, 1)), once);
  d.beside = differing_bits(beside_others(h, ids, random), once);
  return d;
}

class ExactTest : public testing::TestWithParam<const char*> {
 protected:
  static std::string model() {
    const std::string name = GetParam();
    return name == "demo" ? source_dir() + "/models/demo" : golden_model_dir(name);
  }
};

TEST_P(ExactTest, OnePassIsAnySplitIsTokenByTokenIsBesideOthers) {
  const Differences d = compare(model(), false, fresh_seed());
  EXPECT_EQ(d.split, 0u);
  EXPECT_EQ(d.single, 0u);
  EXPECT_EQ(d.beside, 0u);
}

TEST_P(ExactTest, ARowCountFaultIsSeen) {
  const Differences d = compare(model(), true, fresh_seed());
  EXPECT_GT(d.split, 0u);
  EXPECT_GT(d.single, 0u);
  EXPECT_GT(d.beside, 0u);
}

INSTANTIATE_TEST_SUITE_P(Models, ExactTest, testing::Values("tiny", "tiny-variant", "demo"),
                         [](const auto& info) { return std::to_string(info.index); });

class TinyTest : public testing::Test {
 protected:
  TinyTest() : h_(golden_model_dir("tiny"), {kPrompt, kPrompt, 6, 2}), random_(fresh_seed()) {}
  std::vector<float> fresh(const std::vector<int32_t>& ids, const std::vector<int32_t>& split) {
    Sequence s = h_.start(kPrompt);
    std::vector<float> out = h_.run(s, ids, split);
    h_.release(s);
    return out;
  }
  Harness h_;
  Random random_;
};

TEST_F(TinyTest, Trap29PoolsAreAlignedToTheSequenceNotToTheChunk) {
  ASSERT_NE(h_.model(), nullptr);
  const std::vector<int32_t> ids = random_ids(random_, 120, h_.vocab());
  const std::vector<float> once = fresh(ids, {});
  for (const int32_t cut : {21, 43, 44, 45, 46})
    EXPECT_EQ(differing_bits(fresh(ids, {cut}), once), 0u) << cut;
}

TEST_F(TinyTest, Trap42RejectedDraftsLeaveNoTrace) {
  ASSERT_NE(h_.model(), nullptr);
  const std::vector<int32_t> ids = random_ids(random_, 120, h_.vocab());
  const std::vector<float> want = fresh(ids, {});
  for (const int32_t at : {81, 82, 83, 84}) {  // every place in a pool of 4
    for (const bool roll_back : {true, false}) {
      SCOPED_TRACE(std::to_string(at) + (roll_back ? " restored" : " not restored"));
      Sequence s = h_.start(kPrompt);
      std::vector<float> got = h_.run(s, slice(ids, 0, static_cast<size_t>(at)));
      std::vector<std::byte> state(h_.model()->slot_bytes());
      h_.model()->save_slot(s.slot, state.data());
      h_.run(s, random_ids(random_, 6, h_.vocab()));
      if (roll_back) h_.model()->restore_slot(s.slot, state.data());
      s.length = at;
      const std::vector<float> rest = h_.run(s, slice(ids, static_cast<size_t>(at), ids.size()));
      got.insert(got.end(), rest.begin(), rest.end());
      h_.release(s);
      if (roll_back) {
        EXPECT_EQ(differing_bits(got, want), 0u);
      } else {
        EXPECT_GT(differing_bits(got, want), 1000u);
      }
    }
  }
}

TEST_F(TinyTest, ASavedStateContinuesInAnotherSlotOnCopiedPages) {
  ASSERT_NE(h_.model(), nullptr);
  const std::vector<int32_t> ids = random_ids(random_, 140, h_.vocab());
  const std::vector<float> want = fresh(ids, {});
  Sequence first = h_.start(kPrompt);
  h_.run(first, slice(ids, 0, 101));
  std::vector<std::byte> state(h_.model()->slot_bytes());
  h_.model()->save_slot(first.slot, state.data());
  Sequence second = h_.start(kPrompt);
  ASSERT_NE(first.slot, second.slot);
  ASSERT_NE(first.pages, second.pages);
  for (size_t i = 0; i < first.pages.size(); ++i) h_.model()->copy_page(second.pages[i], first.pages[i]);
  h_.model()->restore_slot(second.slot, state.data());
  second.length = first.length;
  h_.run(first, random_ids(random_, 30, h_.vocab()));  // the original goes elsewhere
  const std::vector<float> rest = h_.run(second, slice(ids, 101, ids.size()));
  EXPECT_EQ(differing_bits(rest, {want.begin() + 101 * h_.vocab(), want.end()}), 0u);
}

TEST_F(TinyTest, AReusedSlotStartsFromNothing) {
  ASSERT_NE(h_.model(), nullptr);
  const std::vector<int32_t> ids = random_ids(random_, 60, h_.vocab());
  const std::vector<float> want = fresh(ids, {});
  fresh(random_ids(random_, 77, h_.vocab()), {});
  EXPECT_EQ(differing_bits(fresh(ids, {}), want), 0u);
}

TEST_F(TinyTest, LogitsOfChosenRowsAreThoseOfAllRows) {
  ASSERT_NE(h_.model(), nullptr);
  const std::vector<int32_t> ids = random_ids(random_, 20, h_.vocab());
  const std::vector<float> all = fresh(ids, {});
  Sequence s = h_.start(kPrompt);
  const Segment segment{0, 20, 0, s.slot, 0};
  const Batch batch{20, ids, {&segment, 1}, s.pages};
  const std::vector<int32_t> rows = {3, 4, 19};
  ASSERT_TRUE(h_.model()->forward(batch, rows).ok());
  std::vector<float> got(rows.size() * static_cast<size_t>(h_.vocab()));
  h_.model()->ops().download(got.data(), h_.model()->logits(), got.size() * sizeof(float));
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(differing_bits(row(got, static_cast<int64_t>(i), h_.vocab()), row(all, rows[i], h_.vocab())),
              0u);
  }
}

TEST_F(TinyTest, BatchesThatDoNotFitAreRefused) {
  ASSERT_NE(h_.model(), nullptr);
  const std::vector<int32_t> pages = {0, 1};
  const std::vector<int32_t> one = {5};
  const auto refused = [&](const std::vector<int32_t>& tokens, std::vector<Segment> segments,
                           const std::vector<int32_t>& table, const std::vector<int32_t>& rows) {
    const Batch batch{static_cast<int32_t>(tokens.size()), tokens, segments, table};
    const Status status = h_.model()->forward(batch, rows);
    return !status.ok() && status.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused(one, {{0, 1, 0, 0, 0}}, pages, {0}));
  EXPECT_TRUE(refused({}, {}, pages, {}));
  EXPECT_TRUE(refused(std::vector<int32_t>(kPrompt + 1, 5), {{0, kPrompt + 1, 0, 0, 0}}, pages, {}));
  EXPECT_TRUE(refused({512}, {{0, 1, 0, 0, 0}}, pages, {}));
  EXPECT_TRUE(refused({-1}, {{0, 1, 0, 0, 0}}, pages, {}));
  EXPECT_TRUE(refused(one, {{0, 1, 0, 2, 0}}, pages, {}));  // no such slot
  EXPECT_TRUE(refused(one, {{0, 1, 0, -1, 0}}, pages, {}));
  EXPECT_TRUE(refused(one, {{0, 1, 512, 0, 0}}, pages, {}));  // the third page is missing
  EXPECT_TRUE(refused(one, {{0, 1, 0, 0, 2}}, pages, {}));
  EXPECT_TRUE(refused(one, {{0, 1, 0, 0, 0}}, {6}, {}));                             // no such page
  EXPECT_TRUE(refused(one, {{0, 1, 4096, 0, 0}}, std::vector<int32_t>(17, 0), {}));  // beyond the model
  EXPECT_TRUE(refused(one, {{0, 2, 0, 0, 0}}, pages, {}));
  EXPECT_TRUE(refused({5, 6}, {{0, 1, 0, 0, 0}}, pages, {}));
  EXPECT_TRUE(refused(one, {{0, 1, 0, 0, 0}}, pages, {1}));
  EXPECT_TRUE(refused({5, 6}, {{0, 2, 0, 0, 0}}, pages, {1, 0}));
}

TEST_F(TinyTest, TraceRefusesWhatDoesNotFit) {
  ASSERT_NE(h_.model(), nullptr);
  const std::vector<int32_t> ids = random_ids(random_, 10, h_.vocab());
  EXPECT_FALSE(trace_prompt(*h_.model(), {}, {}).ok());
  EXPECT_FALSE(trace_prompt(*h_.model(), ids, {{11}, false, 64}).ok());
  EXPECT_FALSE(trace_prompt(*h_.model(), ids, {{5, 0}, false, 64}).ok());
  EXPECT_FALSE(trace_prompt(*h_.model(), ids, {{5, -1}, false, 64}).ok());
  EXPECT_FALSE(trace_prompt(*h_.model(), std::vector<int32_t>(6 * 256 + 1, 1), {}).ok());
  EXPECT_FALSE(trace_prompt(*h_.model(), std::vector<int32_t>{512}, {}).ok());
  EXPECT_TRUE(trace_prompt(*h_.model(), ids, {{5, 5}, true, 0}).ok());
}

}  // namespace
}  // namespace firesteel::test
