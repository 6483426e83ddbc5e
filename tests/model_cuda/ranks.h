// Ranks that share one GPU, as threads of this process, for the tests of ranks on CUDA.
#pragma once

#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "comm/nccl.h"
#include "comm/rendezvous.h"
#include "cuda.h"
#include "model/harness.h"

namespace firesteel::test {

using Clock = std::chrono::steady_clock;
inline constexpr int32_t kPrompt = 203, kTokens = 230, kForwards = 1 + kTokens - kPrompt;

inline double seconds_since(Clock::time_point start) {
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
  Pass run(const std::vector<int32_t>& ids, int32_t forwards) {
    Pass out = try_run(ids, forwards);
    if (out.status.ok()) return out;
    // Until it connects anew a rank fails at once, issued or replayed.
    for (const int32_t rows : {kPrompt, 1}) {
      Pass after;
      std::vector<float> none;
      const auto start = Clock::now();
      EXPECT_FALSE(forward(ids, 0, rows, after, none));
      EXPECT_EQ(after.status.error().code, out.status.error().code);
      EXPECT_LT(seconds_since(start), 0.5);
    }
    return out;
  }

 private:
  Pass try_run(const std::vector<int32_t>& ids, int32_t forwards) {
    Pass out;
    model_->reset_slot(0);
    if (forwards == 0 || !forward(ids, 0, kPrompt, out, out.logits)) return out;
    out.hidden.resize(static_cast<size_t>(kPrompt) * static_cast<size_t>(model_->config().hidden));
    ops_->download_act(out.hidden.data(), model_->hidden(), out.hidden.size());
    for (int32_t at = kPrompt; at < kPrompt + forwards - 1; ++at)
      if (!forward(ids, at, 1, out, out.steps)) break;
    return out;
  }
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

/// The part of one rank has the bits of the whole.
inline void expect_bits(const Model& m, const Pass& part, const Pass& whole, int32_t width) {
  ASSERT_TRUE(part.status.ok()) << part.status.error().message;
  EXPECT_EQ(differing_bits(part.hidden, whole.hidden), 0u);
  const auto mine = static_cast<size_t>(m.logit_width()), full = static_cast<size_t>(width);
  for (const auto& [got, all] :
       {std::pair{&part.logits, &whole.logits}, std::pair{&part.steps, &whole.steps}}) {
    size_t different = 0;
    ASSERT_EQ(got->size() / mine, all->size() / full);
    for (size_t row = 0; row < got->size() / mine; ++row)
      different += std::memcmp(got->data() + row * mine,
                               all->data() + row * full + static_cast<size_t>(m.first_logit_id()),
                               mine * sizeof(float)) != 0;
    EXPECT_EQ(different, 0u) << "from id " << m.first_logit_id();
  }
}

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

  /// The ranks connect anew and run; `meanwhile` gets the communicators once all are connected. One rank may
  /// stop before its time.
  std::vector<Pass> run(
      CommLimits limits = {},
      const std::function<void(std::vector<std::unique_ptr<Communicator>>&)>& meanwhile = {},
      int silent_rank = -1, int32_t its_forwards = 0) {
    auto comms = make_local_group(static_cast<int>(ranks_.size()), limits);
    std::vector<Pass> out(ranks_.size());
    std::barrier<> connected(static_cast<std::ptrdiff_t>(ranks_.size()) + 1);
    std::vector<std::thread> threads;
    for (size_t r = 0; r < ranks_.size(); ++r)
      threads.emplace_back([&, r] {
        ranks_[r]->ops().connect(comms[r].get());
        connected.arrive_and_wait();
        out[r] = ranks_[r]->run(ids_, static_cast<int>(r) == silent_rank ? its_forwards : kForwards);
      });
    connected.arrive_and_wait();
    if (meanwhile) meanwhile(comms);
    for (std::thread& t : threads) t.join();
    for (const auto& rank : ranks_) rank->ops().connect(nullptr);
    return out;
  }

  /// Compares with one rank's pass.
  void expect_bits(const std::vector<Pass>& parts, const Pass& whole, int32_t width) const {
    for (size_t r = 0; r < parts.size(); ++r) test::expect_bits(ranks_[r]->model(), parts[r], whole, width);
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
inline Whole run_alone(const std::string& name) {
  Rank rank(model_dir(name), {}, ExchangeChoice::kAuto);
  if (!rank.ready()) return {};
  return {rank.run(prompt_of(name, kTokens), kForwards), rank.model().logit_width()};
}

}  // namespace firesteel::test
