// The MTP layer against the recorded rows, draft chains and absorption (spec/model.md 4.5), and its traps.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "model/harness.h"
#include "model/matrix_source.h"
#include "model/ops_proxy.h"
#include "model/trace.h"
#include "support/golden.h"

namespace firesteel::test {
namespace {

constexpr double kLimit = 3e-4;
constexpr int32_t kHidden = 256, kVocab = 512, kRows = 203, kDrafts = 4;

/// Keeps the tokens that each row attends to, and lets a test rewrite selections.
class SelectionHook : public ForwardHooks {
 public:
  explicit SelectionHook(Harness& h) : ops_(h.model()->ops()), kpool_(h.model()->config().kpool) {}

  void selection(int32_t layer, Selection& sel, const Batch& batch) override {
    EXPECT_EQ(layer, 6);
    const auto stride = static_cast<size_t>(sel.max_pools), rows = static_cast<size_t>(batch.rows);
    std::vector<int32_t> pools(rows * stride), counts(rows);
    ops_.download(pools.data(), sel.pools, pools.size() * 4);
    ops_.download(counts.data(), sel.count, counts.size() * 4);
    if (extend_) {
      ASSERT_EQ(rows, 1u);
      const int32_t position = batch.segments[0].start;
      std::vector<int32_t> forced = base_;
      for (int32_t p = base_complete_; p < (position + 1) / kpool_; ++p) forced.push_back(p);
      ASSERT_LE(forced.size(), stride);
      counts[0] = static_cast<int32_t>(forced.size());
      std::copy(forced.begin(), forced.end(), pools.begin());
      ops_.upload(sel.pools, pools.data(), stride * 4);
      ops_.upload(sel.count, counts.data(), 4);
    }
    for (size_t r = 0; r < rows; ++r) {
      last_.assign(pools.begin() + static_cast<int64_t>(r * stride),
                   pools.begin() + static_cast<int64_t>(r * stride) + counts[r]);
      const int32_t position = batch.segments[0].start + static_cast<int32_t>(r);
      std::set<int32_t> tokens;
      for (const int32_t p : last_) {
        for (int32_t j = 0; j < kpool_; ++j) tokens.insert(p * kpool_ + j);
      }
      for (int32_t t = (position + 1) / kpool_ * kpool_; t <= position; ++t) tokens.insert(t);
      tokens_.push_back(std::move(tokens));
    }
  }
  void experts(int32_t, int32_t* idx, float*, int32_t rows) override {
    std::vector<int32_t> ids(static_cast<size_t>(rows) * 2);
    ops_.download(ids.data(), idx, ids.size() * 4);
    for (size_t i = 0; i < ids.size(); i += 2) experts_.push_back({ids[i], ids[i + 1]});
  }

  /// From now on rows reuse the last row's pools, extended by those that have completed since.
  void extend_from(int32_t position) {
    base_ = last_;
    base_complete_ = (position + 1) / kpool_;
    extend_ = true;
  }
  const std::vector<std::set<int32_t>>& tokens() const { return tokens_; }
  const std::vector<std::set<int32_t>>& experts_seen() const { return experts_; }

 private:
  Ops& ops_;
  int32_t kpool_;
  std::vector<int32_t> last_, base_;
  int32_t base_complete_ = 0;
  bool extend_ = false;
  std::vector<std::set<int32_t>> tokens_, experts_;
};

std::vector<std::set<int32_t>> golden_sets(const Golden& g, const std::string& name) {
  const auto values = g.ints(name);
  const auto width = static_cast<size_t>(g.shape(name)[1]);
  std::vector<std::set<int32_t>> out;
  for (size_t i = 0; i < values.size(); i += width) {
    std::set<int32_t> row;
    for (size_t j = 0; j < width; ++j) {
      if (values[i + j] >= 0) row.insert(values[i + j]);
    }
    out.push_back(std::move(row));
  }
  return out;
}

ModelLimits limits() { return {kRows, kRows, 4, 1}; }

class MtpTest : public testing::Test {
 protected:
  /// Rows 0..202 of the recorded main rows, in one call.
  Harness::MtpRows absorb_prompt(Harness& h, const Sequence& s, ForwardHooks* hooks = nullptr) {
    return h.mtp(s, 0, golden_.ints("next_ids"), golden_.floats("main_hidden"), hooks);
  }

  struct Chain {
    std::vector<int32_t> ids;
    std::vector<float> hidden, logits;
  };
  /// Entry 0 is row `from` with its output; each next one carries the output and the id before it.
  Chain draft(Harness& h, const Sequence& s, int32_t from, const std::vector<float>& hidden,
              const std::vector<float>& logits, ForwardHooks* hooks = nullptr) {
    Chain c;
    std::vector<float> carried = hidden, last = logits;
    for (int32_t j = 0;; ++j) {
      c.ids.push_back(argmax(last.data(), kVocab));
      c.hidden.insert(c.hidden.end(), carried.begin(), carried.end());
      c.logits.insert(c.logits.end(), last.begin(), last.end());
      if (j + 1 == kDrafts) return c;
      const auto next = h.mtp(s, from + 1 + j, {c.ids.back()}, carried, hooks);
      carried = next.hidden;
      last = next.logits;
    }
  }
  void expect_chain(const Chain& c, const std::string& prefix) {
    EXPECT_EQ(c.ids, golden_.ints(prefix + "_ids"));
    EXPECT_LE(max_abs_diff(c.logits, golden_.floats(prefix + "_logits")), kLimit) << prefix;
    EXPECT_LE(max_abs_diff(c.hidden, golden_.floats(prefix + "_hidden")), kLimit) << prefix;
  }

  const Golden golden_ = Golden::of("mtp");
};

TEST_F(MtpTest, RowsInOnePassAndSplit) {
  Harness h(golden_model_dir("tiny"), limits());
  ASSERT_NE(h.model(), nullptr);
  Sequence s = h.start(256);
  SelectionHook hook(h);
  const auto rows = absorb_prompt(h, s, &hook);
  EXPECT_LE(max_abs_diff(rows.logits, golden_.floats("mtp_logits")), kLimit);
  EXPECT_LE(max_abs_diff(rows.hidden, golden_.floats("mtp_hidden")), kLimit);
  EXPECT_EQ(hook.tokens(), golden_sets(golden_, "mtp_index"));
  EXPECT_EQ(hook.experts_seen(), golden_sets(golden_, "mtp_experts"));

  h.model()->reset_slot(s.slot);
  const auto ids = golden_.ints("next_ids");
  const auto main = golden_.floats("main_hidden");
  std::vector<float> logits;
  size_t at = 0;
  for (const size_t rows_now :
       {size_t{21}, size_t{22}, size_t{1}, size_t{1}, size_t{1}, size_t{1}, size_t{19}, size_t{137}}) {
    const std::vector<float> part(main.begin() + static_cast<int64_t>(at * kHidden),
                                  main.begin() + static_cast<int64_t>((at + rows_now) * kHidden));
    const auto r = h.mtp(s, static_cast<int32_t>(at), slice(ids, at, at + rows_now), part);
    logits.insert(logits.end(), r.logits.begin(), r.logits.end());
    at += rows_now;
  }
  EXPECT_EQ(differing_bits(logits, rows.logits), 0u);
}

TEST_F(MtpTest, MainModelFeedsIt) {
  // The model's own final-normed rows, as they lie in hidden(), in place of the recorded ones.
  Harness h(golden_model_dir("tiny"), limits());
  ASSERT_NE(h.model(), nullptr);
  Sequence s = h.start(256);
  h.forward({{&s, golden_.ints("input_ids")}});
  const auto own = h.hidden(kRows);
  EXPECT_LE(max_abs_diff(own, golden_.floats("main_hidden")), 1e-4);
  const auto rows = h.mtp(s, 0, golden_.ints("next_ids"), own);
  EXPECT_LE(max_abs_diff(rows.logits, golden_.floats("mtp_logits")), kLimit);
}

TEST_F(MtpTest, DraftChain) {
  Harness h(golden_model_dir("tiny"), limits());
  ASSERT_NE(h.model(), nullptr);
  Sequence s = h.start(256);
  SelectionHook hook(h);
  const auto rows = absorb_prompt(h, s, &hook);
  expect_chain(draft(h, s, 202, row(rows.hidden, 202, kHidden), row(rows.logits, 202, kVocab), &hook),
               "draft");
  const std::vector<std::set<int32_t>> chosen(hook.tokens().begin() + 202, hook.tokens().end());
  EXPECT_EQ(chosen, golden_sets(golden_, "draft_index"));
}

TEST_F(MtpTest, DraftChainWithExtendedSelection) {
  Harness h(golden_model_dir("tiny"), limits());
  ASSERT_NE(h.model(), nullptr);
  Sequence s = h.start(256);
  SelectionHook hook(h);
  const auto rows = absorb_prompt(h, s, &hook);
  hook.extend_from(202);
  expect_chain(draft(h, s, 202, row(rows.hidden, 202, kHidden), row(rows.logits, 202, kVocab), &hook),
               "draft_shared_extended");
  const std::vector<std::set<int32_t>> chosen(hook.tokens().begin() + 202, hook.tokens().end());
  EXPECT_EQ(chosen, golden_sets(golden_, "draft_shared_extended_index"));
}

/// Attends as if every row stood at a given position with that position's selection.
class PinnedAttention : public OpsProxy {
 public:
  using OpsProxy::OpsProxy;
  void bind(const Batch& batch) override {
    batch_ = batch;
    OpsProxy::bind(batch);
  }
  void pool_select(Stage s, const IndexerWeights& w, const Act* q, const Act* hw, Plane pools,
                   Selection out) override {
    OpsProxy::pool_select(s, w, q, hw, pools, out);
    if (pinned < 0) {
      // Keep the last row's choice.
      kept_.assign(static_cast<size_t>(out.max_pools), 0);
      const size_t last = static_cast<size_t>(batch_.rows - 1);
      download(kept_.data(), out.pools + last * kept_.size(), kept_.size() * 4);
      download(&kept_count_, out.count + last, 4);
    } else {
      upload(out.pools, kept_.data(), kept_.size() * 4);
      upload(out.count, &kept_count_, 4);
    }
  }
  void sparse_attention(Stage s, const AttentionWeights& w, const Act* q, Plane latents, const Selection& sel,
                        int32_t kpool, Act* out) override {
    if (pinned < 0) return OpsProxy::sparse_attention(s, w, q, latents, sel, kpool, out);
    Segment segment = batch_.segments[0];
    segment.start = pinned;
    Batch moved = batch_;
    moved.segments = {&segment, 1};
    OpsProxy::bind(moved);
    OpsProxy::sparse_attention(s, w, q, latents, sel, kpool, out);
    OpsProxy::bind(batch_);
  }
  int32_t pinned = -1;

 private:
  Batch batch_;
  std::vector<int32_t> kept_;
  int32_t kept_count_ = 0;
};

TEST_F(MtpTest, DraftChainWithSharedSelection) {
  auto owned = std::make_unique<PinnedAttention>(make_cpu_ops(2));
  PinnedAttention* ops = owned.get();
  Harness h(golden_model_dir("tiny"), limits(), std::move(owned));
  ASSERT_NE(h.model(), nullptr);
  Sequence s = h.start(256);
  const auto rows = absorb_prompt(h, s);
  ops->pinned = 202;
  expect_chain(draft(h, s, 202, row(rows.hidden, 202, kHidden), row(rows.logits, 202, kVocab)),
               "draft_shared");
}

TEST_F(MtpTest, AbsorptionAfterAChainIsTrimmed) {
  Harness h(golden_model_dir("tiny"), limits());
  ASSERT_NE(h.model(), nullptr);
  for (const bool restore : {true, false}) {
    SCOPED_TRACE(restore);
    Sequence s = h.start(256);
    const auto rows = absorb_prompt(h, s);
    std::vector<std::byte> state(h.model()->slot_bytes());
    h.model()->save_slot(s.slot, state.data());
    draft(h, s, 202, row(rows.hidden, 202, kHidden), row(rows.logits, 202, kVocab));
    if (restore) h.model()->restore_slot(s.slot, state.data());
    SelectionHook hook(h);
    const auto real = h.mtp(s, 203, golden_.ints("absorb_next_ids"), golden_.floats("absorb_hidden"), &hook);
    const double diff = max_abs_diff(real.logits, golden_.floats("absorb_logits"));
    if (!restore) {
      EXPECT_GT(diff, 1e-3) << "provisional entries left in the index tail must show";
    } else {
      EXPECT_LE(diff, kLimit);
      EXPECT_LE(max_abs_diff(real.hidden, golden_.floats("absorb_mtp_hidden")), kLimit);
      EXPECT_EQ(hook.tokens(), golden_sets(golden_, "absorb_index"));
      expect_chain(draft(h, s, 205, row(real.hidden, 2, kHidden), row(real.logits, 2, kVocab)),
                   "absorb_draft");
    }
    h.release(s);
  }
}

TEST_F(MtpTest, Trap35UnnormedOutputCarriedOnIsVisible) {
  Harness h(golden_model_dir("tiny"), limits());
  ASSERT_NE(h.model(), nullptr);
  Sequence s = h.start(256);
  absorb_prompt(h, s);
  const auto wrong =
      h.mtp(s, 203, {golden_.ints("draft_ids")[0]}, row(golden_.floats("mtp_out"), 202, kHidden));
  EXPECT_GT(max_abs_diff(wrong.hidden, row(golden_.floats("draft_hidden"), 1, kHidden)), 1e-2);
}

/// Loads eh_proj with its two halves swapped.
class SwappedHalves : public OpsProxy {
 public:
  using OpsProxy::OpsProxy;
  class Source : public MatrixSource {
   public:
    explicit Source(MatrixSource& in) : in_(in) {}
    Status read_rows(MatrixPart part, int64_t first, int64_t count, void* dst) override {
      RETURN_IF_ERROR(in_.read_rows(part, first, count, dst));
      auto* words = static_cast<uint16_t*>(dst);
      for (int64_t r = 0; r < count; ++r) {
        std::swap_ranges(words + r * 2 * kHidden, words + r * 2 * kHidden + kHidden,
                         words + r * 2 * kHidden + kHidden);
      }
      return Status::success();
    }

   private:
    MatrixSource& in_;
  };
  Result<Matrix> load_matrix(const MatrixSpec& spec, MatrixSource& source, std::byte* dst) override {
    if (spec.n != kHidden || spec.k != 2 * kHidden || spec.slices != 1)
      return OpsProxy::load_matrix(spec, source, dst);
    ++swapped;
    Source swap(source);
    return OpsProxy::load_matrix(spec, swap, dst);
  }
  int swapped = 0;
};

TEST_F(MtpTest, Trap36MisalignedInputsAreVisible) {
  {
    auto owned = std::make_unique<SwappedHalves>(make_cpu_ops(2));
    SwappedHalves* ops = owned.get();
    Harness h(golden_model_dir("tiny"), limits(), std::move(owned));
    ASSERT_NE(h.model(), nullptr);
    EXPECT_EQ(ops->swapped, 1);
    Sequence s = h.start(256);
    EXPECT_GT(max_abs_diff(absorb_prompt(h, s).logits, golden_.floats("mtp_logits")), 0.1)
        << "halves swapped";
  }
  Harness h(golden_model_dir("tiny"), limits());
  ASSERT_NE(h.model(), nullptr);
  const auto want = golden_.floats("mtp_logits");
  const auto next = golden_.ints("next_ids");
  Sequence s = h.start(256);
  const auto own_tokens = h.mtp(s, 0, golden_.ints("input_ids"), golden_.floats("main_hidden"));
  EXPECT_GT(max_abs_diff(own_tokens.logits, want), 0.1) << "token i instead of i+1";
  // Row 0's embedding is zeroed: its result does not depend on the token, every other row's does.
  h.model()->reset_slot(s.slot);
  const auto first = row(golden_.floats("main_hidden"), 0, kHidden);
  const auto a = h.mtp(s, 0, {next[0]}, first);
  h.model()->reset_slot(s.slot);
  const auto b = h.mtp(s, 0, {(next[0] + 7) % kVocab}, first);
  EXPECT_EQ(differing_bits(a.logits, b.logits), 0u);
  EXPECT_LE(max_abs_diff(a.logits, row(want, 0, kVocab)), kLimit);
  const auto second = row(golden_.floats("main_hidden"), 1, kHidden);
  const auto c = h.mtp(s, 1, {next[1]}, second);
  const auto d = h.mtp(s, 1, {(next[1] + 7) % kVocab}, second);
  EXPECT_GT(differing_bits(c.logits, d.logits), 400u);
}

TEST_F(MtpTest, ModelWithoutTheLayerSaysSo) {
  Harness h(golden_model_dir("tiny-variant"), {8, 8, 1, 1});
  ASSERT_NE(h.model(), nullptr);
  EXPECT_FALSE(h.model()->has_mtp());
  const Status status = h.model()->mtp_forward({}, nullptr, {});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace firesteel::test
