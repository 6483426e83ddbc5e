// Ranks that share one GPU have the bits of one rank, through host memory and through NCCL's interface
// (tests/nccl_standin, or NCCL 2.30 and later with NCCL_MULTI_RANK_GPU_ENABLE=1).
#include "ranks.h"
#include "nccl_standin/control.h"

namespace firesteel::test {
namespace {

class CudaRanks : public testing::TestWithParam<std::tuple<const char*, int, ExchangeChoice>> {};

TEST_P(CudaRanks, HaveTheBitsOfOne) {
  NEEDS_GPU();
  const auto [name, count, choice] = GetParam();
  if (choice == ExchangeChoice::kNccl && !load_nccl().ok()) GTEST_SKIP() << load_nccl().error().message;
  const Whole whole = run_alone(name);
  ASSERT_TRUE(whole.width > 0 && whole.pass.status.ok());
  Ranks ranks(name, count, choice);
  ASSERT_TRUE(ranks.ready());
  EXPECT_EQ(ranks.covered_ids(), whole.width);
  ranks.expect_bits(ranks.run(), whole.pass, whole.width);
}

INSTANTIATE_TEST_SUITE_P(
    Models, CudaRanks,
    testing::Combine(testing::Values("tiny", "tiny-variant", "tiny-exl3", "tiny-fp8", "demo"),
                     testing::Values(2, 4), testing::Values(ExchangeChoice::kHost, ExchangeChoice::kNccl)),
    [](const auto& info) {
      return test_name(std::get<0>(info.param)) + "_on_" + std::to_string(std::get<1>(info.param)) +
             (std::get<2>(info.param) == ExchangeChoice::kNccl ? "_through_nccl" : "");
    });

// One GPU for several ranks: without being told to, they go through host memory.
TEST(CudaRanksChoice, SharedGpusGoThroughHostMemory) {
  NEEDS_GPU();
  standin::Control* const standin = standin::control();
  if (standin == nullptr) GTEST_SKIP() << "libnccl.so.2 is not the stand-in";
  const int formed = standin->formed, gathers = standin->gathers;
  const Whole whole = run_alone("tiny");
  Ranks ranks("tiny", 2, ExchangeChoice::kAuto);
  ASSERT_TRUE(ranks.ready());
  ranks.expect_bits(ranks.run(), whole.pass, whole.width);
  EXPECT_EQ(standin->formed, formed);
  EXPECT_EQ(standin->gathers, gathers);
}

}  // namespace
}  // namespace firesteel::test
