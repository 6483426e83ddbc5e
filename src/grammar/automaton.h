// Byte automata: nondeterministic ones that the front ends build, and the deterministic ones that run.
//
// A transition reads one byte or calls a rule (a whole automaton of the same grammar) and goes on where that
// one ends. An automaton without calls describes a regular language and can be intersected and subtracted.
// Owned by one compilation, one thread; a finished Automaton is a value.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "grammar/budget.h"

namespace firesteel::grammar {

/// States and edges of any number of rules; a rule is a pair of its states.
class Nfa {
 public:
  enum class Kind : uint8_t { kByte, kEmpty, kCall };
  struct Edge {
    Kind kind;
    uint8_t low, high;
    uint32_t target;
    uint32_t rule;
    uint32_t next;
  };
  static constexpr uint32_t kNone = ~0u;

  explicit Nfa(CompileBudget* budget) : budget_(budget) {}
  uint32_t new_state();
  void byte(uint32_t from, uint8_t low, uint8_t high, uint32_t to) {
    add(from, {Kind::kByte, low, high, to, 0, 0});
  }
  void empty(uint32_t from, uint32_t to) { add(from, {Kind::kEmpty, 0, 0, to, 0, 0}); }
  void call(uint32_t from, uint32_t rule, uint32_t to) { add(from, {Kind::kCall, 0, 0, to, rule, 0}); }
  void bytes(uint32_t from, std::string_view text, uint32_t to);

  uint32_t first_edge(uint32_t state) const { return first_[state]; }
  const Edge& edge(uint32_t index) const { return edges_[index]; }
  uint32_t state_count() const { return static_cast<uint32_t>(first_.size()); }
  CompileBudget* budget() const { return budget_; }

 private:
  void add(uint32_t from, Edge edge);
  CompileBudget* budget_;
  std::vector<uint32_t> first_;
  std::vector<Edge> edges_;
};

/// Deterministic over bytes; state 0 is the start. No state is dead: from each one an end can be reached.
struct Automaton {
  struct Edge {
    uint8_t low, high;
    uint32_t target;
  };
  struct Call {
    uint32_t rule, target;
  };
  struct State {
    std::vector<Edge> edges;  // ascending, disjoint
    std::vector<Call> calls;  // ascending by rule, one target each
    bool accept = false;
  };
  std::vector<State> states;  // empty: no text at all

  bool empty() const { return states.empty(); }
  /// True when the whole of `bytes` is in the language (no calls allowed).
  bool matches(std::string_view bytes) const;
};

/// What is known about rules while their callers are determinized.
struct RuleFacts {
  std::vector<bool> nullable;    // may match nothing
  std::vector<bool> productive;  // matches something
};

/// Subset construction of the part between two states. A call to a nullable rule may be skipped, one to an
/// unproductive rule is left out. On exhaustion of the budget the result is empty.
Automaton determinize(const Nfa& nfa, uint32_t start, uint32_t end, const RuleFacts& facts);

/// Both in `a` and in `b`; in `a` but not in `b`. Without calls.
Automaton intersect(const Automaton& a, const Automaton& b, CompileBudget* budget);
Automaton subtract(const Automaton& a, const Automaton& b, CompileBudget* budget);

/// Adds a copy of `automaton` between two states.
void embed(const Automaton& automaton, Nfa* nfa, uint32_t from, uint32_t to);

}  // namespace firesteel::grammar
