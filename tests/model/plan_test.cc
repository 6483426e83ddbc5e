// The memory plan: sizes from headers alone, the window that fits, and refusals that name it.
#include "model/plan.h"

#include <gtest/gtest.h>

#include <map>

#include "model/layout.h"
#include "model/ops_proxy.h"
#include "support/golden.h"

namespace firesteel::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

MemoryNeeds needs_of(uint64_t weights, uint64_t page, uint64_t slot) {
  MemoryNeeds n;
  n.weights[0] = weights;
  n.arenas = kMiB;
  n.page = page;
  n.slot = slot;
  return n;
}

ModelConfig config_with(int32_t positions) {
  ModelConfig c;
  c.max_positions = positions;
  return c;
}

PlanRequest request(uint64_t available, int32_t streams, int32_t window) {
  PlanRequest r;
  r.available = available;
  r.streams = streams;
  r.window = window;
  return r;
}

TEST(MemoryPlan, AutoWindowIsTheLargestThatFits) {
  const MemoryNeeds needs = needs_of(100 * kMiB, kMiB, 2 * kMiB);
  // 100 + 1 + 2·2 used; 95 pages left, one of them for the second stream.
  const auto plan = plan_memory(needs, config_with(1 << 20), request(200 * kMiB, 2, 0));
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->window, 94 * 256);
  EXPECT_EQ(plan->pages, 95);
  EXPECT_EQ(plan->slots, 2);
  EXPECT_EQ(plan->total, 200 * kMiB);
  // One token more is refused with that number; the number itself is accepted.
  const auto more = plan_memory(needs, config_with(1 << 20), request(200 * kMiB, 2, 94 * 256 + 1));
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(more.error().message.find("the largest window that fits is 24064"), std::string::npos)
      << more.error().message;
  EXPECT_TRUE(plan_memory(needs, config_with(1 << 20), request(200 * kMiB, 2, 94 * 256)).ok());
}

TEST(MemoryPlan, TheModelsOwnLimitCaps) {
  const MemoryNeeds needs = needs_of(kMiB, 1024, 1024);
  const auto plan = plan_memory(needs, config_with(1000), request(1000 * kMiB, 3, 0));
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->window, 1000);
  EXPECT_EQ(plan->pages, 12);  // what three full windows can use, not all that would fit
  const auto beyond = plan_memory(needs, config_with(1000), request(1000 * kMiB, 1, 1001));
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(beyond.error().message.find("1000"), std::string::npos);
  PlanRequest pool = request(1000 * kMiB, 3, 0);
  pool.pool_tokens = 100000;
  EXPECT_EQ(plan_memory(needs, config_with(1000), pool)->pages, 391);
}

TEST(MemoryPlan, NothingFits) {
  const MemoryNeeds needs = needs_of(100 * kMiB, kMiB, kMiB);
  for (const uint64_t available : {uint64_t{0}, 100 * kMiB, 102 * kMiB}) {
    const auto plan = plan_memory(needs, config_with(4096), request(available, 1, 256));
    ASSERT_FALSE(plan.ok()) << available;
    EXPECT_EQ(plan.error().code, ErrorCode::kOutOfMemory);
    EXPECT_NE(plan.error().message.find("does not fit"), std::string::npos);
  }
  EXPECT_TRUE(plan_memory(needs, config_with(4096), request(103 * kMiB, 1, 256)).ok());
  EXPECT_FALSE(plan_memory(needs, config_with(4096), request(103 * kMiB, 0, 256)).ok());
  EXPECT_FALSE(plan_memory(needs, config_with(4096), request(UINT64_MAX, INT32_MAX, 256)).ok());
}

/// Adds up what loading really takes.
class CountingOps : public OpsProxy {
 public:
  using OpsProxy::OpsProxy;
  Result<std::byte*> allocate(size_t bytes, std::string_view what) override {
    taken[std::string(what)] += aligned(bytes);
    return OpsProxy::allocate(bytes, what);
  }
  std::map<std::string, uint64_t> taken;
};

TEST(MemoryPlan, MeasuresWhatLoadingTakes) {
  for (const char* name : {"tiny", "tiny-variant", "tiny-exl3", "tiny-fp8"}) {
    SCOPED_TRACE(name);
    auto files = open_model_files(golden_model_dir(name));
    ASSERT_TRUE(files.ok()) << files.error().message;
    CountingOps ops(make_cpu_ops(2));
    const ModelLimits limits{64, 8, 5, 3};
    const MemoryNeeds needs =
        measure_memory(files->weights, files->config, ops, limits.max_rows, limits.max_logit_rows);
    auto model = load_model(*files, ops, limits, {});
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_EQ(ops.taken["weights"], needs.weights_total());
    EXPECT_EQ(ops.taken["pages"], 5 * needs.page);
    EXPECT_EQ(ops.taken["slots"], 3 * needs.slot);
    EXPECT_EQ(ops.taken["forward buffers"] + ops.taken["scratch"], needs.arenas);
    EXPECT_EQ((*model)->page_bytes(), needs.page);
    EXPECT_EQ((*model)->slot_bytes(), needs.slot);
    EXPECT_EQ(ops.taken.size(), 5u);
    for (const WeightGroup g :
         {WeightGroup::kExperts, WeightGroup::kShared, WeightGroup::kDense, WeightGroup::kAttention,
          WeightGroup::kEmbedding, WeightGroup::kHead, WeightGroup::kOther}) {
      EXPECT_GT(needs.weights[static_cast<size_t>(g)], 0u) << weight_group_name(g);
    }
    EXPECT_EQ(needs.weights[static_cast<size_t>(WeightGroup::kMtp)] > 0, std::string(name) != "tiny-variant");
  }
}

// spec/model.md 3.1 and 3.2, in fp32: the page holds 3 latents (MTP included) of 512 and their pools of 128
// per 4 tokens.
TEST(MemoryPlan, PageAndSlotOfTiny) {
  auto files = open_model_files(golden_model_dir("tiny"));
  ASSERT_TRUE(files.ok()) << files.error().message;
  const auto ops = make_cpu_ops(1);
  const MemoryNeeds needs = measure_memory(files->weights, files->config, *ops, 16, 16);
  EXPECT_EQ(needs.page, 3u * 256 * (512 * 4 + 128 * 4 / 4));
  // 4 KDA layers: 3 raw rows of 3·512 and a state of 4·128·128; 3 tails of 4 tokens (ki, ga) of 128.
  EXPECT_GE(needs.slot, 4u * (3 * 3 * 512 + 4 * 128 * 128) * 4 + 3 * 4 * 2 * 128 * 4);
  EXPECT_LE(needs.slot, 4u * (3 * 3 * 512 + 4 * 128 * 128) * 4 + 3 * 4 * 2 * 128 * 4 + 7 * 256);
}

}  // namespace
}  // namespace firesteel::test
