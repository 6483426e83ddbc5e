// What a request asks of the tokens of its reply beyond sampling: biases, penalties, and where thinking must
// end. A pure function of the rules, the prompt and the tokens so far, so that every rank that shares a model
// does the same.
//
// Order on a row (spec/api.md 6.1): raw logits, the grammar's mask, logit_bias, repetition, presence and
// frequency penalties; then the sampler.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace firesteel {

struct TokenBias {
  int32_t id = 0;
  float value = 0;  // added to the logit; −inf bans the token
  bool operator==(const TokenBias&) const = default;
};

/// The think block of a reply (spec/api.md 5). `close` is drawn whatever the logits say once the block is cut.
struct ThinkRules {
  bool inside = false;         // the prompt ends in an open block
  int32_t end_id = -1;         // the token that closes it
  int32_t budget = 0;          // reply tokens after which it is cut; 0: never
  bool loop_guard = false;     // cut a block that repeats itself
  std::vector<int32_t> close;  // the tokens of the cut; holds end_id. Needed for budget and loop_guard
  bool operator==(const ThinkRules&) const = default;
};

struct ReplyRules {
  std::vector<TokenBias> bias;
  double presence = 0, frequency = 0;  // of tokens of the reply
  double repetition = 1;               // of tokens of prompt and reply; > 0
  ThinkRules think;
  bool penalizes() const { return presence != 0 || frequency != 0 || repetition != 1; }
  bool operator==(const ReplyRules&) const = default;
};

/// The rules of one reply as it grows. take() and adjust() allocate nothing. One thread at a time.
class RuleState {
 public:
  /// Nothing is asked.
  RuleState() = default;
  /// `prompt` is read here; `rules` must outlive the state.
  RuleState(const ReplyRules& rules, std::span<const int32_t> prompt, int32_t max_tokens);

  /// adjust() would change nothing.
  bool plain() const { return rules_ == nullptr || (rules_->bias.empty() && !rules_->penalizes()); }
  /// Bias and penalties on the logits of ids [first_id, first_id + size).
  void adjust(std::span<float> logits, int32_t first_id) const;
  /// The token that comes next whatever is drawn, or -1.
  int32_t forced() const;
  /// A token of the reply.
  void take(int32_t token);
  /// The next token belongs to the answer: no think block is open or being closed.
  bool answering() const { return !inside_ && forced_ < 0; }
  /// The block was cut by budget or loop guard.
  bool cut() const { return cut_; }

 private:
  struct Seen {
    int32_t id;
    int32_t count;   // in the reply
    int32_t next;    // of the same bucket, -1: none
  };
  static constexpr int32_t kWindow = 256, kMaxCycle = 16;

  void count(int32_t token, int32_t by);
  bool loops(int32_t token);

  const ReplyRules* rules_ = nullptr;
  bool inside_ = false, cut_ = false;
  int32_t forced_ = -1;  // index into close
  int32_t generated_ = 0;
  std::vector<Seen> seen_;         // distinct tokens that penalties concern
  std::vector<int32_t> buckets_;   // heads of chains in seen_; a power of two of them
  std::array<int32_t, kWindow> recent_{};          // of the block, a ring
  std::array<int32_t, kMaxCycle + 1> runs_{};      // tokens in a row equal to the one `cycle` before
};

}  // namespace firesteel
