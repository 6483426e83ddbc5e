// What becomes of a forward when a rank is lost while the ranks exchange through NCCL's interface. Each test
// then connects the same ranks anew and compares bits.
#include "nccl_standin/control.h"
#include "ranks.h"

namespace firesteel::test {
namespace {

class CudaRankLoss : public testing::TestWithParam<int> {
 protected:
  static constexpr CommLimits kLimits{std::chrono::milliseconds(700)};
  void SetUp() override {
    NEEDS_GPU();
    if (!load_nccl().ok()) GTEST_SKIP() << load_nccl().error().message;
    standin_ = standin::control();
    ranks_ = std::make_unique<Ranks>("tiny", GetParam(), ExchangeChoice::kNccl);
    ASSERT_TRUE(ranks_->ready());
  }
  void TearDown() override {
    if (ranks_ == nullptr) return;
    if (standin_ != nullptr) {
      standin_->rank = standin_->refuse_rank = -1;
      standin_->stall_at = standin_->fail_at = 0;
    }
    const Whole whole = run_alone("tiny");
    ranks_->expect_bits(ranks_->run(), whole.pass, whole.width);
    ranks_.reset();
    if (standin_ == nullptr) return;
    EXPECT_EQ(standin_->formed, standin_->aborted) << "groups that are still there";
  }
  /// Turns of the stand-in until the middle of forward `forward` (0: the prompt, then steps).
  uint32_t turn_in(int32_t forward) const {
    const auto turns = [&](int32_t rows) {
      const auto bytes = static_cast<size_t>(rows) * static_cast<size_t>(ranks_->model().config().hidden) * 4;
      return static_cast<uint32_t>((bytes + 65535) / 65536);
    };
    const auto sums = static_cast<uint32_t>(2 * ranks_->model().config().layers);
    const uint32_t before = 1 + turns(kPrompt);  // of connecting
    if (forward == 0) return before + sums / 2 * turns(kPrompt);
    return before + sums * turns(kPrompt) + static_cast<uint32_t>(forward - 1) * sums * turns(1) + sums / 2;
  }
  void expect_lost(const std::vector<Pass>& got, int32_t forwards) {
    for (size_t r = 0; r < got.size(); ++r) {
      ASSERT_FALSE(got[r].status.ok()) << "rank " << r;
      EXPECT_EQ(got[r].status.error().code, ErrorCode::kUnavailable) << got[r].status.error().message;
      EXPECT_EQ(got[r].forwards, forwards);
    }
  }
  standin::Control* standin_ = nullptr;  // null: NCCL itself
  std::unique_ptr<Ranks> ranks_;
};

#define NEEDS_STANDIN() \
  if (standin_ == nullptr) GTEST_SKIP() << "libnccl.so.2 is not the stand-in"

TEST_P(CudaRankLoss, ARankThatStallsEndsTheForwardOfAll) {
  NEEDS_STANDIN();
  for (const int32_t forward : {0, 1, 2, 9}) {  // a prompt, a step issued, one recorded, one replayed
    standin_->rank = 1;
    standin_->stall_at = turn_in(forward);
    const auto start = Clock::now();
    const std::vector<Pass> got = ranks_->run(kLimits);
    EXPECT_LT(seconds_since(start), 5.0);
    expect_lost(got, forward);
  }
}

TEST_P(CudaRankLoss, ABrokenConnectionIsNoticedAtOnce) {
  NEEDS_STANDIN();
  standin_->rank = 1;
  standin_->fail_at = turn_in(5);
  standin_->stall_at = turn_in(5);
  const std::vector<Pass> got = ranks_->run(kLimits);
  expect_lost(got, 5);
  EXPECT_NE(got[1].status.error().message.find("NCCL: gather: remote process exited"), std::string::npos)
      << got[1].status.error().message;
  EXPECT_EQ(got[1].status.error().message.find('\n'), std::string::npos);
}

TEST_P(CudaRankLoss, TheWatchEndsAForward) {
  // Rank 1 computes nothing, or stops where the others replay; the watch of every rank says so after a
  // second.
  for (const int32_t forwards : {0, 9}) {
    const auto start = Clock::now();
    const std::vector<Pass> got = ranks_->run(
        CommLimits{},
        [](std::vector<std::unique_ptr<Communicator>>& comms) {
          std::this_thread::sleep_for(std::chrono::seconds(1));
          for (const auto& comm : comms) comm->abort({ErrorCode::kUnavailable, "rank 1 is gone"});
        },
        1, forwards);
    EXPECT_LT(seconds_since(start), 3.0);
    for (size_t r = 0; r < got.size(); ++r) {
      EXPECT_EQ(got[r].forwards, forwards);
      if (r == 1) continue;
      ASSERT_FALSE(got[r].status.ok());
      EXPECT_EQ(got[r].status.error().message, "rank 1 is gone");
    }
  }
}

TEST_P(CudaRankLoss, ARankWithoutNcclIsAnErrorOfAll) {
  NEEDS_STANDIN();
  standin_->refuse_rank = 1;
  const int formed = standin_->formed;
  const auto start = Clock::now();
  auto got = ranks_->run(kLimits);
  EXPECT_LT(seconds_since(start), 10.0);
  for (const Pass& pass : got) {
    ASSERT_FALSE(pass.status.ok());
    EXPECT_NE(pass.status.error().message.find("NCCL"), std::string::npos) << pass.status.error().message;
  }
  EXPECT_EQ(standin_->formed, formed);
}

INSTANTIATE_TEST_SUITE_P(Groups, CudaRankLoss, testing::Values(2, 4),
                         [](const auto& info) { return "of_" + std::to_string(info.param); });

}  // namespace
}  // namespace firesteel::test
