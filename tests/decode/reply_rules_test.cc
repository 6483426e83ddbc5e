// Biases, penalties, and where a think block is cut.
#include "decode/reply_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace firesteel {
namespace {

const std::vector<int32_t> kPrompt = {3, 3, 5};

std::vector<float> adjusted(const RuleState& state, std::vector<float> logits, int32_t first_id = 0) {
  state.adjust(logits, first_id);
  return logits;
}

TEST(ReplyRules, NeutralRulesLeaveEveryBit) {
  const ReplyRules rules;
  RuleState state(rules, kPrompt, 10);
  EXPECT_TRUE(state.plain());
  EXPECT_TRUE(state.answering());
  const std::vector<float> logits = {-0.0f, 1.5f, std::numeric_limits<float>::quiet_NaN()};
  const auto same = adjusted(state, logits);
  EXPECT_TRUE(std::signbit(same[0]));
  EXPECT_TRUE(std::isnan(same[2]));
  EXPECT_EQ(state.forced(), -1);
}

TEST(ReplyRules, BiasThenPenalties) {
  ReplyRules rules;
  rules.bias = {{1, 4.0f}, {2, -std::numeric_limits<float>::infinity()}, {4, -1.0f}};
  rules.presence = 0.5;
  rules.frequency = 0.25;
  rules.repetition = 2;
  RuleState state(rules, kPrompt, 10);
  state.take(1);
  state.take(1);
  state.take(4);
  // 1: (2 + 4)/2 − 2·0.25 − 0.5; 2: banned; 3: of the prompt; 4: (−2 − 1)·2 − 0.75; 5: of the prompt; 6: untouched.
  const std::vector<float> want = {1, 2, -std::numeric_limits<float>::infinity(), 1, -6.75f, -4, 2};
  const std::vector<float> logits = {1, 2, 2, 2, -2, -2, 2};
  EXPECT_EQ(adjusted(state, logits), want);
  // The same for a rank that holds ids 3 to 5.
  EXPECT_EQ(adjusted(state, {2, -2, -2}, 3), (std::vector<float>{1, -6.75f, -4}));
}

TEST(ReplyRules, CountsManyTokens) {
  ReplyRules rules;
  rules.frequency = 1;
  RuleState state(rules, {}, 3000);
  for (int32_t i = 0; i < 3000; ++i) state.take(i % 1000 * 7);
  std::vector<float> logits(7000, 0.0f);
  state.adjust(logits, 0);
  for (size_t id = 0; id < logits.size(); ++id) EXPECT_EQ(logits[id], id % 7 == 0 ? -3.0f : 0.0f) << id;
}

ReplyRules thinking(int32_t budget, bool guard = false) {
  ReplyRules rules;
  rules.think = {true, 9, budget, guard, {7, 9, 8}};
  return rules;
}

TEST(ReplyRules, TheBudgetForcesTheClosingTokens) {
  const ReplyRules rules = thinking(3);
  RuleState state(rules, kPrompt, 100);
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(state.forced(), -1);
    EXPECT_FALSE(state.answering());
    state.take(1);
  }
  for (const int32_t close : rules.think.close) {
    EXPECT_TRUE(state.cut());
    EXPECT_EQ(state.forced(), close);
    EXPECT_FALSE(state.answering());
    state.take(close);
  }
  EXPECT_TRUE(state.answering());
  for (int32_t i = 0; i < 50; ++i) {
    EXPECT_EQ(state.forced(), -1);
    state.take(1);
  }
}

TEST(ReplyRules, ABlockThatClosesItselfIsNotCut) {
  const ReplyRules rules = thinking(5);
  RuleState state(rules, kPrompt, 100);
  state.take(1);
  state.take(9);
  EXPECT_TRUE(state.answering());
  for (int32_t i = 0; i < 20; ++i) state.take(2);
  EXPECT_FALSE(state.cut());
}

TEST(ReplyRules, AClosingTokenAtTheBudgetIsEnough) {
  const ReplyRules rules = thinking(2);
  RuleState state(rules, kPrompt, 100);
  state.take(1);
  state.take(9);
  EXPECT_EQ(state.forced(), -1);
  EXPECT_FALSE(state.cut());
}

int32_t tokens_until_cut(const std::vector<int32_t>& tokens) {
  const ReplyRules rules = thinking(0, true);
  RuleState state(rules, kPrompt, static_cast<int32_t>(tokens.size()));
  for (size_t i = 0; i < tokens.size(); ++i) {
    state.take(tokens[i]);
    if (state.cut()) return static_cast<int32_t>(i) + 1;
  }
  return -1;
}

std::vector<int32_t> counting(int32_t n) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < n; ++i) out.push_back(100 + i);
  return out;
}

TEST(LoopGuard, AnExactCycleOf256TokensIsCut) {
  for (int32_t length = 1; length <= 20; ++length) {
    std::vector<int32_t> tokens = counting(500);
    for (int32_t i = 0; i < 600; ++i) tokens.push_back(10 + i % length);
    // Where one token is half of the window that rule speaks first.
    const int32_t want = length == 1 ? 500 + 128 : length == 2 ? 500 + 255 : length <= 16 ? 500 + 256 : -1;
    EXPECT_EQ(tokens_until_cut(tokens), want) << length;
  }
}

TEST(LoopGuard, ABrokenCycleIsNot) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 2000; ++i) tokens.push_back(i % 250 == 249 ? 1000 + i : 10 + i % 9);
  EXPECT_EQ(tokens_until_cut(tokens), -1);
}

TEST(LoopGuard, OneTokenThatIsHalfOfTheWindow) {
  std::vector<int32_t> often, rarely;
  for (int32_t i = 0; i < 600; ++i) {
    often.push_back(i % 2 == 0 ? 5 : 100 + i);
    rarely.push_back(i % 17 < 8 ? 5 : 100 + i);
  }
  EXPECT_EQ(tokens_until_cut(often), 256);
  EXPECT_EQ(tokens_until_cut(rarely), -1);
  EXPECT_EQ(tokens_until_cut(std::vector<int32_t>(255, 5)), -1) << "a block of fewer tokens is left alone";
}

}  // namespace
}  // namespace firesteel
