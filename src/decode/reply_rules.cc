#include "decode/reply_rules.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace firesteel {

RuleState::RuleState(const ReplyRules& rules, std::span<const int32_t> prompt, int32_t max_tokens)
    : rules_(&rules), inside_(rules.think.inside) {
  if (!rules.penalizes()) return;
  std::vector<int32_t> distinct;
  if (rules.repetition != 1) {
    distinct.assign(prompt.begin(), prompt.end());
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  }
  const size_t most = distinct.size() + static_cast<size_t>(max_tokens);
  seen_.reserve(most);
  buckets_.assign(std::bit_ceil(most), -1);
  for (const int32_t id : distinct) count(id, 0);
}

void RuleState::count(int32_t token, int32_t by) {
  const uint32_t hash = static_cast<uint32_t>(token) * 2654435761u;
  int32_t& head = buckets_[(hash >> 7) & (buckets_.size() - 1)];
  for (int32_t i = head; i >= 0; i = seen_[static_cast<size_t>(i)].next) {
    if (seen_[static_cast<size_t>(i)].id != token) continue;
    seen_[static_cast<size_t>(i)].count += by;
    return;
  }
  CHECK(seen_.size() < seen_.capacity());
  seen_.push_back({token, by, head});
  head = static_cast<int32_t>(seen_.size()) - 1;
}

void RuleState::adjust(std::span<float> logits, int32_t first_id) const {
  if (plain()) return;
  const auto at = [&](int32_t id) -> float* {
    const int64_t i = int64_t{id} - first_id;
    return i >= 0 && i < static_cast<int64_t>(logits.size()) ? &logits[static_cast<size_t>(i)] : nullptr;
  };
  for (const TokenBias& bias : rules_->bias)
    if (float* v = at(bias.id)) *v += bias.value;
  for (const Seen& seen : seen_) {
    float* const v = at(seen.id);
    if (v == nullptr) continue;
    double value = *v;
    if (rules_->repetition != 1) value = value > 0 ? value / rules_->repetition : value * rules_->repetition;
    if (seen.count > 0) value -= rules_->frequency * seen.count + rules_->presence;
    *v = static_cast<float>(value);
  }
}

int32_t RuleState::forced() const {
  return forced_ < 0 ? -1 : rules_->think.close[static_cast<size_t>(forced_)];
}

void RuleState::take(int32_t token) {
  if (rules_ == nullptr) return;
  ++generated_;
  if (rules_->penalizes()) count(token, 1);
  const ThinkRules& think = rules_->think;
  if (forced_ >= 0 && ++forced_ == static_cast<int32_t>(think.close.size())) {
    forced_ = -1;
    inside_ = false;
  }
  if (!inside_ || forced_ >= 0) return;
  if (token == think.end_id) {
    inside_ = false;
    return;
  }
  const bool loop = think.loop_guard && loops(token);
  if (loop || (think.budget > 0 && generated_ >= think.budget)) {
    cut_ = true;
    forced_ = 0;
  }
}

/// The block ends in 256 tokens that repeat a cycle of at most 16, or half of its last 256 are this token. While
/// inside the block all tokens so far belong to it.
bool RuleState::loops(int32_t token) {
  const auto before = [&](int32_t distance) {
    return recent_[static_cast<size_t>((generated_ - 1 - distance) % kWindow)];
  };
  bool cycle = false;
  for (int32_t length = 1; length <= kMaxCycle; ++length) {
    int32_t& run = runs_[static_cast<size_t>(length)];
    run = generated_ > length && before(length) == token ? run + 1 : 0;
    cycle = cycle || run >= kWindow - length;
  }
  recent_[static_cast<size_t>((generated_ - 1) % kWindow)] = token;
  if (generated_ < kWindow) return false;
  const auto is_half = [&](int32_t id) { return std::count(recent_.begin(), recent_.end(), id) >= kWindow / 2; };
  // In a window that moved on by one token only that one can have become half of it.
  return cycle || is_half(token) ||
         (generated_ == kWindow && std::any_of(recent_.begin(), recent_.end(), is_half));
}

}  // namespace firesteel
