// Ranks that share one GPU, as threads of this process: the bits of one rank, through host memory and through
// NCCL's interface (tests/nccl_standin), and what becomes of a forward when a rank is lost.
#include <barrier>
#include <cstring>
#include <functional>
#include <thread>

#include "comm/nccl.h"
#include "comm/rendezvous.h"
#include "cuda.h"
#include "model/harness.h"
#include "nccl_standin/control.h"

namespace firesteel::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int32_t kPrompt = 203, kTokens = 230;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Pass {
  std::vector<float> logits, steps, hidden;
  int32_t forwards = 0;  // that ended well
  Status status;
};

/// A rank's part of a model.
class Rank {
 public:
  Rank(const std::string& dir, Placement placement, ExchangeChoice choice) {
    auto ops = make_cuda_ops(0, KvFormat::kWide, choice);
    const auto files = open_model_files(dir, placement);
    if (!ops.ok() || !files.ok()) return;
    ops_ = std::move(ops).value();
    ModelLimits limits;
    limits.max_rows = limits.max_logit_rows = kPrompt;
    limits.pages = (kTokens + kPageTokens - 1) / kPageTokens;
    limits.slots = 1;
    auto loaded = load_model(*files, *ops_, limits, nullptr);
    if (loaded.ok()) model_ = std::move(loaded).value();
  }
  bool ready() const { return model_ != nullptr; }
  const Model& model() const { return *model_; }
  Ops& ops() { return *ops_; }

  /// A prompt in one pass, then steps of one token (which are recorded and replayed).
  Pass run(const std::vector<int32_t>& ids) {
    Pass out;
    model_->reset_slot(0);
    if (!forward(ids, 0, kPrompt, out, out.logits)) return out;
    out.hidden.resize(static_cast<size_t>(kPrompt) * static_cast<size_t>(model_->config().hidden));
    ops_->download_act(out.hidden.data(), model_->hidden(), out.hidden.size());
    for (int32_t at = kPrompt; at < kTokens; ++at)
      if (!forward(ids, at, 1, out, out.steps)) break;
    return out;
  }

 private:
  bool forward(const std::vector<int32_t>& ids, int32_t start, int32_t rows, Pass& out,
               std::vector<float>& logits) {
    std::vector<int32_t> pages, all;
    for (int32_t p = 0; p < model_->limits().pages; ++p) pages.push_back(p);
    for (int32_t r = 0; r < rows; ++r) all.push_back(r);
    const Segment segment{0, rows, start, 0, 0};
    const Batch batch{rows,
                      std::span(ids).subspan(static_cast<size_t>(start), static_cast<size_t>(rows)),
                      {&segment, 1},
                      pages};
    out.status = model_->forward(batch, all);
    if (!out.status.ok()) return false;
    ++out.forwards;
    const size_t at = logits.size();
    logits.resize(at + static_cast<size_t>(rows) * static_cast<size_t>(model_->logit_width()));
    ops_->download(logits.data() + at, model_->logits(), (logits.size() - at) * sizeof(float));
    return true;
  }
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Model> model_;
};

/// All ranks of a group. They are loaded before one computes, for in one process a rank that waits for
/// another on the GPU keeps that one from taking memory.
class Ranks {
 public:
  Ranks(const std::string& name, int ranks, ExchangeChoice choice) : ids_(prompt_of(name, kTokens)) {
    for (int r = 0; r < ranks; ++r)
      ranks_.push_back(std::make_unique<Rank>(model_dir(name), Placement{r, ranks}, choice));
  }
  bool ready() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& r) { return r->ready(); });
  }
  const Model& model() const { return ranks_[0]->model(); }

  /// The ranks connect anew and run; `meanwhile` gets the communicators once all are connected.
  std::vector<Pass> run(
      CommLimits limits = {},
      const std::function<void(std::vector<std::unique_ptr<Communicator>>&)>& meanwhile = {},
      int silent_rank = -1) {
    auto comms = make_local_group(static_cast<int>(ranks_.size()), limits);
    std::vector<Pass> out(ranks_.size());
    std::barrier<> connected(static_cast<std::ptrdiff_t>(ranks_.size()) + 1);
    std::vector<std::thread> threads;
    for (size_t r = 0; r < ranks_.size(); ++r)
      threads.emplace_back([&, r] {
        ranks_[r]->ops().connect(comms[r].get());
        connected.arrive_and_wait();
        if (static_cast<int>(r) != silent_rank) out[r] = ranks_[r]->run(ids_);
      });
    connected.arrive_and_wait();
    if (meanwhile) meanwhile(comms);
    for (std::thread& t : threads) t.join();
    for (const auto& rank : ranks_) rank->ops().connect(nullptr);
    return out;
  }

  /// Compares with one rank's pass.
  void expect_bits(const std::vector<Pass>& parts, const Pass& whole, int32_t width) const {
    for (size_t r = 0; r < parts.size(); ++r) {
      const Pass& part = parts[r];
      ASSERT_TRUE(part.status.ok()) << part.status.error().message;
      EXPECT_EQ(differing_bits(part.hidden, whole.hidden), 0u);
      const Model& m = ranks_[r]->model();
      const auto mine = static_cast<size_t>(m.logit_width()), full = static_cast<size_t>(width);
      for (const auto& [got, all] :
           {std::pair{&part.logits, &whole.logits}, std::pair{&part.steps, &whole.steps}}) {
        size_t different = 0;
        ASSERT_EQ(got->size() / mine, all->size() / full);
        for (size_t row = 0; row < got->size() / mine; ++row)
          different += std::memcmp(got->data() + row * mine,
                                   all->data() + row * full + static_cast<size_t>(m.first_logit_id()),
                                   mine * sizeof(float)) != 0;
        EXPECT_EQ(different, 0u) << "rank " << r;
      }
    }
  }
  int32_t covered_ids() const {
    int32_t next = 0;
    for (const auto& rank : ranks_) {
      EXPECT_EQ(rank->model().first_logit_id(), next);
      next += rank->model().logit_width();
    }
    return next;
  }

 private:
  std::vector<int32_t> ids_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

struct Whole {
  Pass pass;
  int32_t width = 0;
};
Whole run_alone(const std::string& name) {
  Rank rank(model_dir(name), {}, ExchangeChoice::kAuto);
  if (!rank.ready()) return {};
  return {rank.run(prompt_of(name, kTokens)), rank.model().logit_width()};
}

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

// ------------------------------------------------------------------------------------------------------
// lost ranks. Each test then connects the same ranks anew and compares bits.

class CudaRankLoss : public testing::TestWithParam<int> {
 protected:
  static constexpr CommLimits kLimits{std::chrono::milliseconds(700)};
  void SetUp() override {
    NEEDS_GPU();
    standin_ = standin::control();
    if (standin_ == nullptr) GTEST_SKIP() << "libnccl.so.2 is not the stand-in";
    ranks_ = std::make_unique<Ranks>("tiny", GetParam(), ExchangeChoice::kNccl);
    ASSERT_TRUE(ranks_->ready());
  }
  void TearDown() override {
    if (ranks_ == nullptr) return;
    standin_->rank = standin_->refuse_rank = -1;
    standin_->stall_at = standin_->fail_at = 0;
    const Whole whole = run_alone("tiny");
    ranks_->expect_bits(ranks_->run(), whole.pass, whole.width);
    EXPECT_EQ(standin_->formed - formed_, GetParam());
    ranks_.reset();
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
    formed_ = standin_->formed;
  }
  standin::Control* standin_ = nullptr;
  std::unique_ptr<Ranks> ranks_;
  int formed_ = 0;
};

TEST_P(CudaRankLoss, ARankThatStallsEndsTheForwardOfAll) {
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
  // Rank 1 never computes; the watch of every rank says so after 300 ms.
  const auto start = Clock::now();
  const std::vector<Pass> got = ranks_->run(
      CommLimits{},
      [](std::vector<std::unique_ptr<Communicator>>& comms) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        for (const auto& comm : comms) comm->abort({ErrorCode::kUnavailable, "rank 1 is gone"});
      },
      1);
  EXPECT_LT(seconds_since(start), 2.0);
  for (size_t r = 0; r < got.size(); ++r) {
    if (r == 1) continue;
    ASSERT_FALSE(got[r].status.ok());
    EXPECT_EQ(got[r].status.error().message, "rank 1 is gone");
  }
  formed_ = standin_->formed;
}

TEST_P(CudaRankLoss, ARankWithoutNcclIsAnErrorOfAll) {
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
  formed_ = standin_->formed;
}

INSTANTIATE_TEST_SUITE_P(Groups, CudaRankLoss, testing::Values(2, 4),
                         [](const auto& info) { return "of_" + std::to_string(info.param); });

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
