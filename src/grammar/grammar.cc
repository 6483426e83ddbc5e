#include "grammar/grammar.h"

#include <algorithm>

namespace firesteel::grammar {

namespace {

constexpr size_t kRangesToScan = 4;       // a state with more ranges gets a table of targets
constexpr size_t kMaxWideStates = 32768;  // tables of 1 KiB: bounds memory

}  // namespace

size_t Grammar::bytes() const {
  return rules_.size() * sizeof(Rule) + states_.size() * sizeof(State) + edges_.size() * sizeof(Edge) +
         calls_.size() * sizeof(Call) + dense_.size() * sizeof(uint32_t);
}

uint32_t GrammarBuilder::add_rule() {
  if (rules_.size() >= budget()->limits().rules) budget()->exhaust("has too many rules");
  Draft draft;
  draft.start = nfa_.new_state();
  draft.end = nfa_.new_state();
  rules_.push_back(std::move(draft));
  return static_cast<uint32_t>(rules_.size() - 1);
}

uint32_t GrammarBuilder::find_counted(const std::string& name, uint32_t min, uint32_t max) const {
  const auto it = counted_.find({name, {min, max}});
  return it == counted_.end() ? kNoRule : it->second;
}

uint32_t GrammarBuilder::counted(const std::string& name, const Automaton& item, uint32_t min, uint32_t max) {
  if (const uint32_t known = find_counted(name, min, max); known != kNoRule) return known;
  if (item.empty() || item.states[0].accept) return kNoRule;
  for (const auto& state : item.states) {
    if (!state.calls.empty() || (state.accept && !state.edges.empty())) return kNoRule;
    for (const auto& e : state.edges) {
      if (e.target == 0) return kNoRule;
    }
  }
  const uint32_t rule = add_rule();
  rules_[rule].counted = true;
  rules_[rule].min = min;
  rules_[rule].max = max;
  rules_[rule].item = item;
  counted_[{name, {min, max}}] = rule;
  return rule;
}

/// Which rules match something (or, without bytes, nothing): one search from all starts at once. A call waits
/// until its rule is known to reach its end.
std::vector<bool> GrammarBuilder::reaching(bool without_bytes) const {
  std::vector<bool> fact(rules_.size(), false);
  std::vector<std::vector<uint32_t>> waiting(rules_.size());
  std::vector<uint32_t> rule_of_end(nfa_.state_count(), kNoRule);
  std::vector<bool> seen(nfa_.state_count(), false);
  std::vector<uint32_t> queue;
  for (uint32_t r = 0; r < rules_.size(); ++r) {
    rule_of_end[rules_[r].end] = r;
    seen[rules_[r].start] = true;
    queue.push_back(rules_[r].start);
    if (rules_[r].counted) fact[r] = !without_bytes || rules_[r].min == 0;
  }
  const auto visit = [&](uint32_t s) {
    if (seen[s]) return;
    seen[s] = true;
    queue.push_back(s);
  };
  while (!queue.empty()) {
    const uint32_t s = queue.back();
    queue.pop_back();
    if (const uint32_t r = rule_of_end[s]; r != kNoRule && !fact[r]) {
      fact[r] = true;
      for (uint32_t target : waiting[r]) visit(target);
      waiting[r].clear();
    }
    for (uint32_t e = nfa_.first_edge(s); e != Nfa::kNone; e = nfa_.edge(e).next) {
      if (!nfa_.budget()->spend()) return fact;
      const auto& edge = nfa_.edge(e);
      if (edge.kind == Nfa::Kind::kByte && without_bytes) continue;
      if (edge.kind == Nfa::Kind::kCall && !fact[edge.rule]) {
        waiting[edge.rule].push_back(edge.target);
      } else {
        visit(edge.target);
      }
    }
  }
  return fact;
}

void GrammarBuilder::append(const Automaton& automaton, uint32_t id, const std::vector<uint32_t>& names,
                            Grammar* out) const {
  const Draft& draft = rules_[id];
  Rule& rule = out->rules_[names[id]];
  rule.start = out->state_count();
  rule.counted = draft.counted;
  rule.min = draft.min;
  rule.max = draft.counted ? draft.max : kUnbounded;
  // The ends of a counted rule's item are all its start.
  std::vector<uint32_t> place(automaton.states.size());
  uint32_t next = rule.start;
  for (size_t s = 0; s < place.size(); ++s) {
    place[s] = draft.counted && s > 0 && automaton.states[s].accept ? rule.start : next++;
  }
  rule.state_count = next - rule.start;
  for (size_t s = 0; s < place.size(); ++s) {
    const auto& from = automaton.states[s];
    if (place[s] == rule.start && s > 0) continue;
    Grammar::State state;
    state.rule = names[id];
    state.first_edge = static_cast<uint32_t>(out->edges_.size());
    state.first_call = static_cast<uint32_t>(out->calls_.size());
    state.accept = draft.counted ? s == 0 : from.accept;
    for (const auto& e : from.edges) out->edges_.push_back({e.low, e.high, place[e.target]});
    for (const auto& c : from.calls) out->calls_.push_back({names[c.rule], place[c.target]});
    state.edge_count = static_cast<uint16_t>(from.edges.size());
    state.call_count = static_cast<uint16_t>(from.calls.size());
    rule.has_calls |= !from.calls.empty();
    if (from.edges.size() > kRangesToScan) {
      state.dense = static_cast<uint32_t>(out->dense_.size() / 256);
      out->dense_.resize(out->dense_.size() + 256, Grammar::kDead);
      for (const auto& e : from.edges) {
        std::fill(out->dense_.end() - 256 + e.low, out->dense_.end() - 255 + e.high, place[e.target]);
      }
    }
    out->states_.push_back(state);
  }
}

Result<std::shared_ptr<const Grammar>> GrammarBuilder::finish(uint32_t root) {
  const RuleFacts facts{reaching(true), reaching(false)};
  if (!budget()->ok()) return budget()->error();
  if (!facts.productive[root])
    return Error{ErrorCode::kInvalidArgument, "no reply at all satisfies the grammar"};
  // Only what the root needs, numbered in the order of need.
  auto out = std::make_shared<Grammar>();
  std::vector<uint32_t> names(rules_.size(), kNoRule), order{root};
  std::vector<Automaton> automata;
  names[root] = 0;
  uint32_t states = 0;
  size_t wide = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const Draft& draft = rules_[order[i]];
    automata.push_back(draft.counted ? draft.item : determinize(nfa_, draft.start, draft.end, facts));
    states += static_cast<uint32_t>(automata.back().states.size());
    if (states > budget()->limits().states) budget()->exhaust("needs too many states");
    if (!budget()->ok()) return budget()->error();
    for (const auto& state : automata.back().states) {
      wide += state.edges.size() > kRangesToScan;
      for (const auto& c : state.calls) {
        if (names[c.rule] != kNoRule) continue;
        names[c.rule] = static_cast<uint32_t>(order.size());
        order.push_back(c.rule);
      }
    }
  }
  if (wide > kMaxWideStates) budget()->exhaust("needs too much memory");
  if (!budget()->ok()) return budget()->error();
  out->rules_.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) append(automata[i], order[i], names, out.get());
  return std::shared_ptr<const Grammar>(std::move(out));
}

}  // namespace firesteel::grammar
