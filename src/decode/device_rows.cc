#include "decode/device_rows.h"

#include <algorithm>

#include "base/check.h"
#include "decode/sampler_impl.h"
#include "decode/token_constraint.h"

namespace firesteel {

using namespace sampler_internal;  // NOLINT(google-build-using-namespace)

DeviceRows::DeviceRows(Drawer* drawer, bool alone, int32_t first_id, int32_t widest, int32_t max_rows)
    : drawer_(drawer), alone_(alone), first_id_(first_id) {
  if (drawer == nullptr) return;
  const auto rows = static_cast<size_t>(max_rows);
  most_ = std::min(rows, static_cast<size_t>(drawer->max_draw_rows(widest)));
  at_.reserve(most_);
  asked_.reserve(most_);
  maxima_.reserve(most_);
  answers_.resize(most_);
  found_.resize(most_);
  best_.resize(rows);
  host_row_.resize(static_cast<size_t>(widest));
}

bool DeviceRows::takes(const SamplingParams& params) const {
  return most_ > 0 && (path_of(params) != Path::kTopK || params.top_k <= kMaxDrawCandidates);
}

DrawRow DeviceRows::question(const SampleRow& row, int32_t stage) const {
  const SamplingParams& params = row.key.params;
  DrawRow ask;
  ask.logits = row.logits.data();
  ask.mask = row.mask;
  ask.temperature = temperature_of(params);
  ask.log_min_p = min_p_floor(params, 0.0);
  ask.top_p = params.top_p;
  ask.noise = row_key(row.key.seed, row.key.position);
  ask.count = shard_capacity(params, static_cast<int32_t>(row.logits.size()), stage);
  const bool first_alone = params.min_p > 1.0;  // is all that can be kept
  switch (path_of(params)) {
    case Path::kGreedy:
      ask.kind = DrawKind::kBest;
      break;
    case Path::kOpen:
      ask.kind = first_alone ? DrawKind::kBest : DrawKind::kWinner;
      break;
    case Path::kNucleus:
      ask.kind = !alone_ ? DrawKind::kCandidates : first_alone ? DrawKind::kBest : DrawKind::kNucleus;
      ask.masses = !alone_;
      break;
    case Path::kTopK:
      ask.kind = DrawKind::kCandidates;
      break;
  }
  return ask;
}

size_t DeviceRows::collect(std::span<const SampleRow> rows, size_t from, size_t last, int32_t stage,
                           bool all) {
  at_.clear();
  asked_.clear();
  for (; from < last && at_.size() < most_; ++from) {
    if (!rows[from].on_device) continue;
    const DrawRow ask = question(rows[from], stage);
    if (!all && ask.kind == DrawKind::kBest) continue;
    at_.push_back(from);
    asked_.push_back(ask);
  }
  return from;
}

Status DeviceRows::find_best(std::span<const SampleRow> rows) {
  for (size_t from = 0; from < rows.size();) {
    from = collect(rows, from, rows.size(), 0, true);
    if (at_.empty()) return {};
    const auto width = static_cast<int32_t>(rows[at_[0]].logits.size());
    RETURN_IF_ERROR(drawer_->draw_best({first_id_, width}, asked_, std::span(found_).first(at_.size())));
    for (size_t k = 0; k < at_.size(); ++k) best_[at_[k]] = found_[k];
  }
  return {};
}

Status DeviceRows::candidates(std::span<const SampleRow> rows, size_t first, size_t last,
                              std::span<const float> maxima, int32_t stage, const Use& use) {
  if (!alone_)  // the first tokens are known
    for (size_t i = first; i < last; ++i) {
      if (!rows[i].on_device || question(rows[i], stage).kind != DrawKind::kBest) continue;
      const bool any = best_[i].value > kMasked;
      use(i, {std::span(&best_[i], any ? 1 : 0), 0, !any || rows[i].logits.size() == 1});
    }
  for (size_t from = first; from < last;) {
    from = collect(rows, from, last, stage, alone_);
    if (at_.empty()) return {};
    maxima_.clear();
    if (!alone_)
      for (const size_t at : at_) maxima_.push_back(maxima[at]);
    const auto width = static_cast<int32_t>(rows[at_[0]].logits.size());
    const std::span<DrawResult> answers = std::span(answers_).first(at_.size());
    RETURN_IF_ERROR(drawer_->draw({first_id_, width}, asked_, maxima_, answers));
    for (size_t k = 0; k < at_.size(); ++k) {
      const auto count = static_cast<int32_t>(answers[k].best.size());
      const bool complete = asked_[k].kind == DrawKind::kWinner || count < asked_[k].count || count == width;
      use(at_[k], {answers[k].best, answers[k].mass, complete});
    }
  }
  return {};
}

SampleRow DeviceRows::fetch(const SampleRow& row) {
  CHECK(row.logits.size() <= host_row_.size());
  const std::span<float> logits = std::span(host_row_).first(row.logits.size());
  drawer_->download(logits.data(), row.logits.data(), logits.size_bytes());
  if (!row.mask.empty()) apply_mask(row.mask, first_id_, logits);
  return {logits, row.key};
}

}  // namespace firesteel
