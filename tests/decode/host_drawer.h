// A Drawer whose "device" is the host: what ops/draw.h says, as plainly as it can be written.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "decode/sampler_impl.h"
#include "decode/token_constraint.h"

namespace firesteel {

class HostDrawer final : public Drawer {
 public:
  enum class Fault { kNone, kMaskIgnored, kNoiseOfAnotherRow };
  explicit HostDrawer(int32_t vocab, Fault fault = Fault::kNone) : scratch_(vocab), fault_(fault) {}

  int32_t max_draw_rows(int32_t width) const override { return width > 0 ? kRows : 0; }

  Status draw_best(const DrawShard& shard, std::span<const DrawRow> rows,
                   std::span<Candidate> best) override {
    for (size_t i = 0; i < rows.size(); ++i) {
      order(shard, rows[i], 1);
      best[i] = order_.empty() ? Candidate{sampler_internal::kMasked, -1, 0} : order_[0];
    }
    return {};
  }

  Status draw(const DrawShard& shard, std::span<const DrawRow> rows, std::span<const float> maxima,
              std::span<DrawResult> results) override {
    ++questions;
    answers_.assign(rows.size(), {});
    for (size_t i = 0; i < rows.size(); ++i) {
      results[i] = {};
      order(shard, rows[i], shard.width);
      const float top = !maxima.empty()  ? maxima[i]
                        : order_.empty() ? sampler_internal::kMasked
                                         : order_[0].value;
      if (!(top > sampler_internal::kMasked)) continue;
      for (Candidate& c : order_) {
        c.mass = sampler_internal::fixed_mass(c.value / rows[i].temperature, top / rows[i].temperature);
        results[i].mass += c.mass;
      }
      answers_[i] = answer(rows[i], top, results[i].mass);
      results[i].best = answers_[i];
    }
    return {};
  }

  void download(void* host, const void* src, size_t bytes) override {
    ++fetched;
    std::memcpy(host, src, bytes);
  }

  int questions = 0, fetched = 0;

 private:
  static constexpr int32_t kRows = 3;  // fewer than rounds have

  /// The first tokens of the masked row to order_.
  void order(const DrawShard& shard, const DrawRow& row, int32_t count) {
    row_.assign(row.logits, row.logits + shard.width);
    if (!row.mask.empty() && fault_ != Fault::kMaskIgnored) apply_mask(row.mask, shard.first_id, row_);
    shard_max(row_, scratch_);
    const int32_t n = sampler_internal::collect_best(row_, shard.first_id, count, scratch_);
    order_.assign(scratch_.candidates.begin(), scratch_.candidates.begin() + n);
  }

  std::vector<Candidate> answer(const DrawRow& row, float top, int64_t mass) {
    size_t keep = order_.size();
    switch (row.kind) {
      case DrawKind::kBest:
        order_.resize(std::min<size_t>(1, keep));
        return order_;
      case DrawKind::kCandidates:
        order_.resize(std::min(keep, static_cast<size_t>(row.count)));
        if (!row.masses)
          for (Candidate& c : order_) c.mass = 0;
        return order_;
      case DrawKind::kNucleus: {
        const int64_t need = sampler_internal::nucleus_need(row.top_p, mass);
        int64_t sum = 0;
        for (keep = 0; keep < order_.size() && sum < need;) sum += order_[keep++].mass;
        break;
      }
      case DrawKind::kWinner:
        break;
    }
    const uint64_t noise = row.noise + (fault_ == Fault::kNoiseOfAnotherRow ? 1 : 0);
    sampler_internal::Winner<sampler_internal::Noise52> winner(noise);
    const double floor = top / row.temperature + row.log_min_p;
    for (size_t i = 0; i < keep; ++i)
      if (order_[i].value / row.temperature >= floor)
        winner.offer(order_[i].value, order_[i].id, order_[i].value / row.temperature);
    if (winner.id() < 0) return {};
    return {{winner.value(), winner.id(), 0}};
  }

  SamplerScratch scratch_;
  const Fault fault_;
  std::vector<float> row_;
  std::vector<Candidate> order_;
  std::vector<std::vector<Candidate>> answers_;
};

}  // namespace firesteel
