// The readable definition of what a grammar accepts: every way is a whole stack of its own, every token is
// tried byte by byte. Slow, and only for grammars without left recursion. The matcher must agree with it bit
// for bit.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/vocabulary.h"

namespace firesteel::grammar {

class ReferenceMatcher {
 public:
  explicit ReferenceMatcher(const Grammar* grammar) : g_(grammar) {
    add(&ways_, {{g_->rule(g_->root()).start, 0}});
  }

  bool accept_byte(uint8_t byte) {
    std::set<Stack> next;
    for (Stack stack : ways_) {
      if (stack.empty()) continue;
      auto& [state, count] = stack.back();
      const Rule& rule = g_->rule(g_->state(state).rule);
      if (rule.counted && state == rule.start && count >= rule.max) continue;
      const uint32_t target = g_->next(g_->state(state), byte);
      if (target == Grammar::kDead) continue;
      state = target;
      if (rule.counted && target == rule.start) ++count;
      add(&next, std::move(stack));
    }
    ways_ = std::move(next);
    return !ways_.empty();
  }
  bool accept(std::string_view bytes) {
    for (char c : bytes) {
      if (!accept_byte(static_cast<uint8_t>(c))) return false;
    }
    return !bytes.empty();
  }
  bool is_complete() const { return ways_.contains({}); }

  std::vector<uint32_t> mask(const Vocabulary& vocabulary) const {
    std::vector<uint32_t> out(vocabulary.mask_words(), 0);
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      ReferenceMatcher copy = *this;
      const bool fits = vocabulary.is_end(id) ? is_complete() : copy.accept(vocabulary.bytes(id));
      if (fits) out[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    }
    return out;
  }

 private:
  using Stack = std::vector<std::pair<uint32_t, uint32_t>>;  // (state, count), innermost last; empty: the end

  /// Adds the stack and all that it becomes without reading: rules that end, rules that are called.
  void add(std::set<Stack>* ways, Stack stack) {
    if (!ways->insert(stack).second || stack.empty()) return;
    const auto [state, count] = stack.back();
    const auto& s = g_->state(state);
    const Rule& rule = g_->rule(s.rule);
    if (s.accept && (!rule.counted || (count >= rule.min && count <= rule.max))) {
      Stack ended = stack;
      ended.pop_back();
      add(ways, std::move(ended));
    }
    for (uint32_t c = 0; c < s.call_count; ++c) {
      Stack called = stack;
      called.back() = {g_->calls(s)[c].target, 0};
      called.emplace_back(g_->rule(g_->calls(s)[c].rule).start, 0);
      add(ways, std::move(called));
    }
  }

  const Grammar* g_;
  std::set<Stack> ways_;
};

}  // namespace firesteel::grammar
