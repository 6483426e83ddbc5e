// A compiled grammar: rules as deterministic byte automata that call each other (a recursive transition
// network), and the builder that front ends fill.
//
// Grammar is immutable and knows no vocabulary: any number of threads. GrammarBuilder belongs to one
// compilation.
//
// A *counted* rule matches between `min` and `max` copies of one item without a state for each: its states
// are those of the item, state `start` stands between two items, and a matcher keeps a count beside the
// state. Items are such that the end of one is certain (no item is a prefix of another).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "grammar/automaton.h"

namespace firesteel::grammar {

inline constexpr uint32_t kUnbounded = ~0u;

struct Rule {
  uint32_t start = 0;  // its first state; a rule's states are consecutive
  uint32_t state_count = 0;
  bool counted = false;
  bool has_calls = false;
  uint32_t min = 0, max = kUnbounded;  // of a counted rule
};

class Grammar {
 public:
  static constexpr uint32_t kDead = ~0u;
  struct State {
    uint32_t first_edge = 0, first_call = 0;
    uint16_t edge_count = 0;  // at most 256
    uint16_t call_count = 0;
    uint32_t rule = 0;
    uint32_t dense = kDead;  // index of a table of 256 targets where ranges would be slow
    bool accept = false;     // the rule may end here (a counted one: within its bounds)
  };
  using Edge = Automaton::Edge;
  using Call = Automaton::Call;

  uint32_t root() const { return root_; }
  const Rule& rule(uint32_t r) const { return rules_[r]; }
  uint32_t rule_count() const { return static_cast<uint32_t>(rules_.size()); }
  const State& state(uint32_t s) const { return states_[s]; }
  uint32_t state_count() const { return static_cast<uint32_t>(states_.size()); }
  /// Target of the byte, or kDead.
  uint32_t next(const State& state, uint8_t byte) const {
    if (state.dense != kDead) return dense_[static_cast<size_t>(state.dense) * 256 + byte];
    for (uint32_t e = state.first_edge, end = e + state.edge_count; e < end; ++e) {
      if (byte >= edges_[e].low && byte <= edges_[e].high) return edges_[e].target;
    }
    return kDead;
  }
  const Edge* edges(const State& state) const { return edges_.data() + state.first_edge; }
  const Call* calls(const State& state) const { return calls_.data() + state.first_call; }
  size_t bytes() const;

 private:
  friend class GrammarBuilder;
  uint32_t root_ = 0;
  std::vector<Rule> rules_;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<Call> calls_;
  std::vector<uint32_t> dense_;
};

class GrammarBuilder {
 public:
  explicit GrammarBuilder(CompileBudget* budget) : nfa_(budget) {}
  CompileBudget* budget() { return nfa_.budget(); }
  Nfa& nfa() { return nfa_; }

  /// A new rule whose states the caller connects.
  uint32_t add_rule();
  uint32_t start(uint32_t rule) const { return rules_[rule].start; }
  uint32_t end(uint32_t rule) const { return rules_[rule].end; }

  /// The counted rule of an item automaton that is known by `name`; equal names and bounds give the same
  /// rule. kNoRule when the item is not one whose end is certain.
  static constexpr uint32_t kNoRule = ~0u;
  uint32_t counted(const std::string& name, const Automaton& item, uint32_t min, uint32_t max);
  /// The counted rule, if it was made before.
  uint32_t find_counted(const std::string& name, uint32_t min, uint32_t max) const;

  /// kInvalidArgument when no text at all is in the language, kLimit when the budget is spent.
  Result<std::shared_ptr<const Grammar>> finish(uint32_t root);

 private:
  struct Draft {
    uint32_t start, end;
    bool counted = false;
    uint32_t min = 0, max = 0;
    Automaton item;
  };
  std::vector<bool> reaching(bool without_bytes) const;
  void append(const Automaton& automaton, uint32_t id, const std::vector<uint32_t>& names,
              Grammar* out) const;
  Nfa nfa_;
  std::vector<Draft> rules_;
  std::map<std::pair<std::string, std::pair<uint32_t, uint32_t>>, uint32_t> counted_;
};

}  // namespace firesteel::grammar
