// How well a model predicts a text, and how far its predictions are from another model's: perplexity and
// Kullback-Leibler divergence. For the `eval` command and for tests; allocates freely.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "model/model.h"

namespace firesteel {

/// Sums over the positions of one or more texts. Natural logarithms.
struct TextScore {
  int64_t positions = 0;    // that were computed
  int64_t predicted = 0;    // of them, those with a next token in the text
  double loss = 0;          // Σ -log p(next token)
  double divergence = 0;    // Σ KL(exact ‖ model) over all positions
  double worst = 0;         // the largest of them
  int64_t same_choice = 0;  // positions at which both find the same token likeliest

  void add(const TextScore& other);
  double perplexity() const;       // NaN where nothing was predicted
  double mean_divergence() const;  // per position, nats
};

/// KL(p ‖ q) of the distributions that two rows of `n` logits mean, in float64; never negative.
double logit_divergence(const float* p, const float* q, int32_t n);
/// -log of the probability of `id`.
double logit_loss(const float* logits, int32_t n, int32_t id);

/// Limits for texts of up to `tokens` tokens.
ModelLimits score_limits(int32_t tokens);

/// Scores `ids` as one text from an empty context; `exact` (may be null) is what divergence is measured
/// against. Both use slot 0 and the first pages. `progress` (may be empty) is told the positions done so far.
/// kInvalidArgument: no ids, ids that a model does not know, more than either's pages hold, different
/// vocabularies.
Result<TextScore> score_text(Model& model, Model* exact, std::span<const int32_t> ids,
                             const std::function<void(int64_t done)>& progress);

}  // namespace firesteel
