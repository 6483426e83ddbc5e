// Shapes that no real model has (spec/model.md 7.1: head widths 16, 24, 32, pools out of step with
// everything), written with random weights: one pass = split = token by token, and the traps of long
// contexts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "model/harness.h"
#include "model/random_model.h"
#include "support/random.h"

namespace firesteel::test {
namespace {

using Json = nlohmann::ordered_json;

std::vector<int32_t> random_ids(Random& random, int32_t count, int32_t vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab)));
  return ids;
}

bool all_finite(const std::vector<float>& v) {
  return std::all_of(v.begin(), v.end(), [](float x) { return std::isfinite(x); });
}

void expect_split_invariant(const Json& config) {
  RandomModelOptions options;
  options.seed = fresh_seed();
  Harness h(write_random_model(config, options), {75, 75, 4, 2});
  ASSERT_NE(h.model(), nullptr);
  Random random(options.seed + 1);
  const std::vector<int32_t> ids = random_ids(random, 75, h.vocab());
  const auto run = [&](const std::vector<int32_t>& split) {
    Sequence s = h.start(75);
    std::vector<float> out = h.run(s, ids, split);
    h.release(s);
    return out;
  };
  const std::vector<float> once = run({});
  EXPECT_TRUE(all_finite(once));
  EXPECT_EQ(differing_bits(run({21, 22, 1, 1, 1, 1, 19}), once), 0u);
  EXPECT_EQ(differing_bits(run(std::vector<int32_t>(75, 1)), once), 0u);
  // Not a constant: rows differ.
  EXPECT_GT(differing_bits(row(once, 73, h.vocab()), row(once, 74, h.vocab())), 400u);
  if (!h.model()->has_mtp()) return;
  Sequence s = h.start(75);
  h.run(s, ids);
  const std::vector<float> hidden = h.hidden(75);
  const auto whole = h.mtp(s, 0, ids, hidden);
  EXPECT_TRUE(all_finite(whole.logits));
  h.model()->reset_slot(s.slot);
  std::vector<float> single;
  for (int32_t i = 0; i < 75; ++i) {
    const auto one = h.mtp(s, i, {ids[static_cast<size_t>(i)]}, row(hidden, i, h.model()->config().hidden));
    single.insert(single.end(), one.logits.begin(), one.logits.end());
  }
  EXPECT_EQ(differing_bits(single, whole.logits), 0u);
}

TEST(OddShapes, ModelA) { expect_split_invariant(model_a_config()); }

TEST(OddShapes, OtherPoolsAndGroups) {
  Json config = model_a_config();
  config["index_kpool"] = 8;
  config["index_topk"] = 24;
  config["n_group"] = 4;
  config["topk_group"] = 2;
  config["linear_conv_kernel_dim"] = 3;
  config["linear_lower_bound"] = nullptr;
  expect_split_invariant(config);
  config["index_kpool"] = 1;
  config["n_shared_experts"] = 0;
  config["num_nextn_predict_layers"] = 0;
  expect_split_invariant(config);
  config["index_kpool"] = 2;
  config["n_shared_experts"] = 3;
  config["norm_topk_prob"] = false;
  config["swiglu_limit"] = nullptr;
  config["hidden_size"] = 72;
  config["vocab_size"] = 509;
  expect_split_invariant(config);
}

TEST(OddShapes, OnlyOneKindOfLayer) {
  Json config = model_a_config();
  config["num_nextn_predict_layers"] = 0;
  config["indexer_types"] = std::vector<const char*>(6, "full");
  config["layer_types"] = std::vector<const char*>(6, "linear_attention");
  expect_split_invariant(config);
  config["layer_types"] = std::vector<const char*>(6, "deepseek_sparse_attention");
  expect_split_invariant(config);
}

TEST(OddShapes, TiedHeadIsTheEmbedding) {
  Json config = model_a_config();
  config["tie_word_embeddings"] = true;
  RandomModelOptions tied, untied;
  tied.edit = [](auto& t) { drop_tensor(t, "lm_head.weight"); };
  untied.edit = [](auto& t) {
    find_tensor(t, "lm_head.weight").bytes = find_tensor(t, "embed_tokens.weight").bytes;
  };
  Harness a(write_random_model(config, tied), {8, 8, 1, 1}),
      b(write_random_model(model_a_config(), untied), {8, 8, 1, 1});
  ASSERT_TRUE(a.model() != nullptr && b.model() != nullptr);
  Sequence sa = a.start(8), sb = b.start(8);
  EXPECT_EQ(differing_bits(a.run(sa, {1, 2, 3}), b.run(sb, {1, 2, 3})), 0u);
}

/// Two layers, KDA then DSA, small enough for thousands of tokens.
Json long_config(int32_t index_topk) {
  Json config = model_a_config();
  config["num_hidden_layers"] = 2;
  config["num_nextn_predict_layers"] = 0;
  config["layer_types"] = {"linear_attention", "deepseek_sparse_attention"};
  config["indexer_types"] = {"full", "full"};
  config["mlp_layer_types"] = {"dense", "dense"};
  config["index_topk"] = index_topk;
  return config;
}

/// Pools that each row selects.
class PoolsHook : public ForwardHooks {
 public:
  explicit PoolsHook(Ops& ops) : ops_(ops) {}
  void selection(int32_t, Selection& sel, const Batch& batch) override {
    const auto rows = static_cast<size_t>(batch.rows), stride = static_cast<size_t>(sel.max_pools);
    std::vector<int32_t> pools(rows * stride), counts(rows);
    ops_.download(pools.data(), sel.pools, pools.size() * 4);
    ops_.download(counts.data(), sel.count, counts.size() * 4);
    for (size_t r = 0; r < rows; ++r) {
      chosen.emplace_back(pools.begin() + static_cast<int64_t>(r * stride),
                          pools.begin() + static_cast<int64_t>(r * stride) + counts[r]);
    }
  }
  std::vector<std::vector<int32_t>> chosen;

 private:
  Ops& ops_;
};

struct LongRun {
  std::vector<float> logits;
  std::vector<std::vector<int32_t>> chosen;
};

LongRun run_long(int32_t index_topk, const std::vector<int32_t>& ids, const std::vector<int32_t>& split,
                 uint64_t seed) {
  RandomModelOptions options;
  options.seed = seed;
  Harness h(write_random_model(long_config(index_topk), options), {1024, 1024, 9, 1});
  LongRun out;
  if (h.model() == nullptr) return out;
  PoolsHook hook(h.model()->ops());
  Sequence s = h.start(static_cast<int32_t>(ids.size()));
  size_t at = 0;
  for (const int32_t rows : split) {
    const auto logits = h.forward({{&s, slice(ids, at, at + static_cast<size_t>(rows))}}, &hook);
    out.logits.insert(out.logits.end(), logits.begin(), logits.end());
    at += static_cast<size_t>(rows);
  }
  EXPECT_EQ(at, ids.size());
  out.chosen = std::move(hook.chosen);
  return out;
}

// The published token budget: 2048 tokens, 512 pools of 4.
TEST(LongContext, Trap30And31DenseUntil2050ThenSparse) {
  const uint64_t seed = fresh_seed();
  Random random(seed);
  const std::vector<int32_t> ids = random_ids(random, 2148, 512);
  std::vector<int32_t> tail_split = {1024, 1024};
  tail_split.insert(tail_split.end(), 100, 1);  // index keys were written while attention was dense
  const LongRun once = run_long(2048, ids, {1024, 1024, 100}, seed),
                late = run_long(2048, ids, tail_split, seed);
  EXPECT_EQ(differing_bits(once.logits, late.logits), 0u);
  ASSERT_EQ(once.chosen.size(), ids.size());
  EXPECT_EQ(once.chosen, late.chosen);
  for (int32_t t = 0; t < 2148; ++t) {
    const int32_t complete = (t + 1) / 4;
    ASSERT_EQ(static_cast<int32_t>(once.chosen[static_cast<size_t>(t)].size()), std::min(complete, 512)) << t;
    ASSERT_EQ(complete > 512, t >= 2051) << t;
  }
  // A budget that never binds: the same bits while dense, others afterwards.
  const LongRun dense = run_long(4096, ids, {1024, 1024, 100}, seed);
  const auto part = [&](const LongRun& r, int64_t first, int64_t last) {
    return std::vector<float>(r.logits.begin() + first * 512, r.logits.begin() + last * 512);
  };
  EXPECT_EQ(differing_bits(part(once, 0, 2051), part(dense, 0, 2051)), 0u);
  EXPECT_GT(differing_bits(part(once, 2051, 2052), part(dense, 2051, 2052)), 100u);
}

// 262,144 pools: every page table entry names the same page, so pool p scores like pool p mod 64 and the
// lower index wins every tie.
TEST(LongContext, Trap33TheLastPositionsOfAMillion) {
  RandomModelOptions options;
  options.seed = fresh_seed();
  Harness h(write_random_model(long_config(16), options), {256, 256, 1, 1});
  ASSERT_NE(h.model(), nullptr);
  Random random(options.seed);
  Sequence s = h.start(256);
  h.run(s, random_ids(random, 256, 512));
  s.pages.assign(4096, s.pages[0]);
  s.length = 1048570;
  PoolsHook hook(h.model()->ops());
  const std::vector<float> logits = h.forward({{&s, random_ids(random, 6, 512)}}, &hook);
  EXPECT_TRUE(all_finite(logits));
  ASSERT_EQ(hook.chosen.size(), 6u);
  for (const auto& pools : hook.chosen) {
    ASSERT_EQ(pools.size(), 4u);
    // Usually one residue; several when they tie exactly (all heads cut off by the ReLU).
    std::set<int32_t> lowest;
    for (const int32_t p : pools) {
      for (int32_t i = 0; i < 4; ++i) lowest.insert(p % 64 + 64 * i);
    }
    EXPECT_TRUE(std::equal(pools.begin(), pools.end(), lowest.begin())) << pools[0] << " " << pools[1];
  }
  // One position more is beyond the model.
  const std::vector<int32_t> one = {1};
  const Segment segment{0, 1, 1048576, s.slot, 0};
  s.pages.push_back(s.pages[0]);
  EXPECT_FALSE(h.model()->forward({1, one, {&segment, 1}, s.pages}, {}).ok());
}

}  // namespace
}  // namespace firesteel::test
