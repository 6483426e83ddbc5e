#include "model/score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace firesteel {
namespace {

constexpr int32_t kRows = 128;  // of one forward; all of them give logits

double log_sum(const float* logits, int32_t n) {
  const double top = *std::max_element(logits, logits + n);
  double sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += std::exp(logits[i] - top);
  return top + std::log(sum);
}

/// One model, its slot and pages of one text.
class Reader {
 public:
  explicit Reader(Model& model) : model_(model), pages_(static_cast<size_t>(model.limits().pages)) {
    std::iota(pages_.begin(), pages_.end(), 0);
    model.reset_slot(0);
  }

  /// Logits of the next rows.
  Result<const float*> next(std::span<const int32_t> ids, int32_t start) {
    const auto rows = static_cast<int32_t>(ids.size());
    const std::vector<Segment> segments = {{0, rows, start, 0, 0}};
    std::vector<int32_t> all(ids.size());
    std::iota(all.begin(), all.end(), 0);
    const size_t used = (static_cast<size_t>(start) + ids.size() + kPageTokens - 1) / kPageTokens;
    RETURN_IF_ERROR(model_.forward({rows, ids, segments, std::span(pages_).first(used)}, all));
    logits_.resize(ids.size() * static_cast<size_t>(model_.logit_width()));
    model_.ops().download(logits_.data(), model_.logits(), logits_.size() * sizeof(float));
    return static_cast<const float*>(logits_.data());
  }

 private:
  Model& model_;
  std::vector<int32_t> pages_;
  std::vector<float> logits_;
};

Status check(const Model& model, std::span<const int32_t> ids) {
  const auto refuse = [](std::string what) { return Error{ErrorCode::kInvalidArgument, std::move(what)}; };
  if (ids.empty()) return refuse("a text without tokens");
  const int64_t room = int64_t{model.limits().pages} * kPageTokens;
  if (static_cast<int64_t>(ids.size()) > std::min<int64_t>(room, model.config().max_positions)) {
    return refuse("a text of " + std::to_string(ids.size()) + " tokens is longer than the window");
  }
  for (const int32_t id : ids) {
    if (id < 0 || id >= model.config().vocab) return refuse("the model has no token " + std::to_string(id));
  }
  return {};
}

}  // namespace

void TextScore::add(const TextScore& other) {
  positions += other.positions;
  predicted += other.predicted;
  loss += other.loss;
  divergence += other.divergence;
  worst = std::max(worst, other.worst);
  same_choice += other.same_choice;
}

double TextScore::perplexity() const {
  return predicted == 0 ? std::numeric_limits<double>::quiet_NaN()
                        : std::exp(loss / static_cast<double>(predicted));
}

double TextScore::mean_divergence() const {
  return positions == 0 ? 0 : divergence / static_cast<double>(positions);
}

double logit_divergence(const float* p, const float* q, int32_t n) {
  const double p_sum = log_sum(p, n), q_sum = log_sum(q, n);
  double sum = 0;
  for (int32_t i = 0; i < n; ++i) {
    const double log_p = p[i] - p_sum;
    sum += std::exp(log_p) * (log_p - (q[i] - q_sum));
  }
  return std::max(0.0, sum);  // rounding may leave a little less than nothing
}

double logit_loss(const float* logits, int32_t n, int32_t id) { return log_sum(logits, n) - logits[id]; }

ModelLimits score_limits(int32_t tokens) {
  ModelLimits limits;
  limits.max_rows = limits.max_logit_rows = kRows;
  limits.pages = (tokens + kPageTokens - 1) / kPageTokens;
  limits.slots = 1;
  return limits;
}

Result<TextScore> score_text(Model& model, Model* exact, std::span<const int32_t> ids,
                             const std::function<void(int64_t done)>& progress) {
  RETURN_IF_ERROR(check(model, ids));
  if (exact != nullptr) {
    RETURN_IF_ERROR(check(*exact, ids));
    if (exact->logit_width() != model.logit_width()) {
      return Error{ErrorCode::kInvalidArgument, "the two models have different vocabularies"};
    }
  }
  const int32_t width = model.logit_width();
  const auto each =
      static_cast<size_t>(std::min({kRows, model.limits().max_rows, model.limits().max_logit_rows}));
  Reader reader(model);
  std::optional<Reader> reference;
  if (exact != nullptr) reference.emplace(*exact);
  TextScore score;
  for (size_t start = 0; start < ids.size(); start += each) {
    const auto rows = ids.subspan(start, std::min(each, ids.size() - start));
    ASSIGN_OR_RETURN(const float* mine, reader.next(rows, static_cast<int32_t>(start)));
    const float* theirs = nullptr;
    if (reference) {
      ASSIGN_OR_RETURN(theirs, reference->next(rows, static_cast<int32_t>(start)));
    }
    for (size_t r = 0; r < rows.size(); ++r) {
      const float* row = mine + r * static_cast<size_t>(width);
      ++score.positions;
      if (start + r + 1 < ids.size()) {
        ++score.predicted;
        score.loss += logit_loss(row, width, ids[start + r + 1]);
      }
      if (theirs == nullptr) continue;
      const float* other = theirs + r * static_cast<size_t>(width);
      const double divergence = logit_divergence(other, row, width);
      score.divergence += divergence;
      score.worst = std::max(score.worst, divergence);
      score.same_choice +=
          std::max_element(row, row + width) - row == std::max_element(other, other + width) - other;
    }
    if (progress) progress(score.positions);
  }
  return score;
}

}  // namespace firesteel
