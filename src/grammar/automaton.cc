#include "grammar/automaton.h"

#include <algorithm>
#include <bit>
#include <string>
#include <unordered_map>

namespace firesteel::grammar {

uint32_t Nfa::new_state() {
  first_.push_back(kNone);
  return static_cast<uint32_t>(first_.size() - 1);
}

void Nfa::add(uint32_t from, Edge edge) {
  if (!budget_->spend()) return;
  if (edges_.size() >= budget_->limits().nfa_edges) return budget_->exhaust("is too large");
  edge.next = first_[from];
  first_[from] = static_cast<uint32_t>(edges_.size());
  edges_.push_back(edge);
}

void Nfa::bytes(uint32_t from, std::string_view text, uint32_t to) {
  if (text.empty()) return empty(from, to);
  for (size_t i = 0; i < text.size() && budget_->ok(); ++i) {
    const uint32_t next = i + 1 == text.size() ? to : new_state();
    const auto b = static_cast<uint8_t>(text[i]);
    byte(from, b, b, next);
    from = next;
  }
}

bool Automaton::matches(std::string_view bytes) const {
  if (states.empty()) return false;
  uint32_t at = 0;
  for (char c : bytes) {
    const auto b = static_cast<uint8_t>(c);
    const auto& edges = states[at].edges;
    const auto hit =
        std::find_if(edges.begin(), edges.end(), [b](const Edge& e) { return e.low <= b && b <= e.high; });
    if (hit == edges.end()) return false;
    at = hit->target;
  }
  return states[at].accept;
}

namespace {

/// Numbers sets of states as they come up.
class SetTable {
 public:
  /// Id of the set; a new one is the next number.
  uint32_t intern(const std::vector<uint32_t>& set) {
    key_.assign(reinterpret_cast<const char*>(set.data()), set.size() * sizeof(uint32_t));
    const auto [it, fresh] = ids_.try_emplace(key_, static_cast<uint32_t>(sets_.size()));
    if (fresh) sets_.push_back(set);
    return it->second;
  }
  size_t size() const { return sets_.size(); }
  const std::vector<uint32_t>& operator[](size_t id) const { return sets_[id]; }

 private:
  std::string key_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<std::vector<uint32_t>> sets_;
};

/// A set of byte values.
class ByteSet {
 public:
  void add(int byte) { words_[byte / 64] |= uint64_t{1} << byte % 64; }
  /// The least member that is not below `byte` (0 to 256); 256 without one.
  int first_from(int byte) const {
    for (int w = byte / 64; w < 4; ++w) {
      const uint64_t rest = words_[w] & (w == byte / 64 ? ~uint64_t{0} << byte % 64 : ~uint64_t{0});
      if (rest != 0) return w * 64 + std::countr_zero(rest);
    }
    return 256;
  }

 private:
  uint64_t words_[4] = {};
};

/// Leaves only states that are reached from state 0 and reach an end, and joins neighbouring ranges.
void trim(Automaton* a, CompileBudget* budget) {
  auto& states = a->states;
  std::vector<std::vector<uint32_t>> sources(states.size());
  std::vector<uint32_t> queue;
  std::vector<bool> alive(states.size(), false);
  for (uint32_t s = 0; s < states.size(); ++s) {
    for (const auto& e : states[s].edges) sources[e.target].push_back(s);
    for (const auto& c : states[s].calls) sources[c.target].push_back(s);
    if (states[s].accept) {
      alive[s] = true;
      queue.push_back(s);
    }
  }
  while (!queue.empty() && budget->spend()) {
    const uint32_t s = queue.back();
    queue.pop_back();
    for (uint32_t source : sources[s]) {
      if (alive[source]) continue;
      alive[source] = true;
      queue.push_back(source);
    }
  }
  if (states.empty() || !alive[0]) {
    states.clear();
    return;
  }
  std::vector<uint32_t> renamed(states.size(), 0);
  uint32_t kept = 0;
  for (uint32_t s = 0; s < states.size(); ++s) {
    if (alive[s]) renamed[s] = kept++;
  }
  for (uint32_t s = 0; s < states.size(); ++s) {
    if (!alive[s]) continue;
    Automaton::State state;
    state.accept = states[s].accept;
    for (Automaton::Edge e : states[s].edges) {
      if (!alive[e.target]) continue;
      e.target = renamed[e.target];
      if (!state.edges.empty() && state.edges.back().target == e.target &&
          state.edges.back().high + 1 == e.low) {
        state.edges.back().high = e.high;
      } else {
        state.edges.push_back(e);
      }
    }
    for (const auto& c : states[s].calls) {
      if (alive[c.target]) state.calls.push_back({c.rule, renamed[c.target]});
    }
    states[renamed[s]] = std::move(state);
  }
  states.resize(kept);
}

class Determinizer {
 public:
  Determinizer(const Nfa& nfa, uint32_t end, const RuleFacts& facts)
      : nfa_(nfa), end_(end), facts_(facts), budget_(nfa.budget()) {}

  Automaton run(uint32_t start) {
    Automaton out;
    std::vector<uint32_t> seed{start};
    id_of(&seed);
    for (size_t s = 0; s < sets_.size() && budget_->ok(); ++s) {
      if (sets_.size() > budget_->limits().states) budget_->exhaust("needs too many states");
      out.states.push_back(expand(s));
    }
    if (!budget_->ok()) return {};
    trim(&out, budget_);
    return out;
  }

 private:
  /// Closes `*set` and numbers it.
  uint32_t id_of(std::vector<uint32_t>* set) {
    ++epoch_;
    if (seen_.size() < nfa_.state_count()) seen_.resize(nfa_.state_count(), 0);
    for (uint32_t s : *set) seen_[s] = epoch_;
    for (size_t i = 0; i < set->size(); ++i) {
      for (uint32_t e = nfa_.first_edge((*set)[i]); e != Nfa::kNone; e = nfa_.edge(e).next) {
        if (!budget_->spend()) return 0;
        const auto& edge = nfa_.edge(e);
        const bool through =
            edge.kind == Nfa::Kind::kEmpty ||
            (edge.kind == Nfa::Kind::kCall && facts_.nullable[edge.rule] && facts_.productive[edge.rule]);
        if (through && seen_[edge.target] != epoch_) {
          seen_[edge.target] = epoch_;
          set->push_back(edge.target);
        }
      }
    }
    // States that only pass on say nothing of their own; without them more sets are equal.
    std::erase_if(*set, [&](uint32_t s) { return s != end_ && only_empty(s); });
    std::sort(set->begin(), set->end());
    const size_t known = sets_.size();
    const uint32_t id = sets_.intern(*set);
    if (sets_.size() > known && (members_ += set->size()) > kMaxMembers)
      budget_->exhaust("needs too many states");
    return id;
  }

  bool only_empty(uint32_t s) const {
    for (uint32_t e = nfa_.first_edge(s); e != Nfa::kNone; e = nfa_.edge(e).next) {
      if (nfa_.edge(e).kind != Nfa::Kind::kEmpty) return false;
    }
    return true;
  }

  Automaton::State expand(size_t id) {
    Automaton::State state;
    ranges_.clear();
    calls_.clear();
    for (uint32_t s : sets_[id]) {
      state.accept |= s == end_;
      for (uint32_t e = nfa_.first_edge(s); e != Nfa::kNone; e = nfa_.edge(e).next) {
        if (!budget_->spend()) return state;
        const auto& edge = nfa_.edge(e);
        if (edge.kind == Nfa::Kind::kByte) ranges_.push_back({edge.low, edge.high, edge.target});
        if (edge.kind == Nfa::Kind::kCall && facts_.productive[edge.rule])
          calls_.push_back({edge.rule, edge.target});
      }
    }
    ByteSet cuts;
    for (const auto& r : ranges_) {
      cuts.add(r.low);
      if (r.high < 255) cuts.add(r.high + 1);
    }
    std::sort(ranges_.begin(), ranges_.end(), [](const auto& a, const auto& b) { return a.low < b.low; });
    for (int low = 0; low < 256;) {
      const int high = cuts.first_from(low + 1) - 1;
      std::vector<uint32_t> targets;
      for (const auto& r : ranges_) {
        if (r.low > low) break;
        if (!budget_->spend()) return state;
        if (r.high >= high) targets.push_back(r.target);
      }
      if (!targets.empty()) {
        unique(&targets);
        state.edges.push_back({static_cast<uint8_t>(low), static_cast<uint8_t>(high), id_of(&targets)});
      }
      low = high + 1;
    }
    std::sort(calls_.begin(), calls_.end(), [](const auto& a, const auto& b) { return a.rule < b.rule; });
    for (size_t i = 0; i < calls_.size();) {
      std::vector<uint32_t> targets;
      const uint32_t rule = calls_[i].rule;
      for (; i < calls_.size() && calls_[i].rule == rule; ++i) targets.push_back(calls_[i].target);
      unique(&targets);
      state.calls.push_back({rule, id_of(&targets)});
    }
    return state;
  }

  static void unique(std::vector<uint32_t>* v) {
    std::sort(v->begin(), v->end());
    v->erase(std::unique(v->begin(), v->end()), v->end());
  }

  const Nfa& nfa_;
  uint32_t end_;
  const RuleFacts& facts_;
  CompileBudget* budget_;
  static constexpr size_t kMaxMembers = 4'000'000;  // of all sets together: bounds memory
  SetTable sets_;
  size_t members_ = 0;
  std::vector<Automaton::Edge> ranges_;
  std::vector<Automaton::Call> calls_;
  std::vector<uint32_t> seen_;
  uint32_t epoch_ = 0;
};

constexpr uint32_t kDead = ~0u;

/// Runs both side by side. `keep_dead`: `a` goes on alone where `b` has no transition.
Automaton product(const Automaton& a, const Automaton& b, bool keep_dead, CompileBudget* budget) {
  Automaton out;
  if (a.empty() || (b.empty() && !keep_dead)) return out;
  std::unordered_map<uint64_t, uint32_t> ids;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto id_of = [&](uint32_t p, uint32_t q) {
    const auto [it, fresh] =
        ids.try_emplace(static_cast<uint64_t>(p) << 32 | q, static_cast<uint32_t>(pairs.size()));
    if (fresh) pairs.emplace_back(p, q);
    return it->second;
  };
  id_of(0, b.empty() ? kDead : 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs.size() > budget->limits().states) budget->exhaust("needs too many states");
    if (!budget->spend(4)) return {};
    const auto [p, q] = pairs[i];
    Automaton::State state;
    const bool second = q != kDead && b.states[q].accept;
    state.accept = a.states[p].accept && second != keep_dead;
    static const std::vector<Automaton::Edge> kNoEdges;
    const auto& others = q == kDead ? kNoEdges : b.states[q].edges;
    size_t j = 0;
    for (const auto& e : a.states[p].edges) {
      int low = e.low;
      while (low <= e.high) {
        if (!budget->spend()) return {};
        while (j < others.size() && others[j].high < low) ++j;
        const bool inside = j < others.size() && others[j].low <= low;
        int high = e.high;
        if (inside) high = std::min<int>(high, others[j].high);
        if (!inside && j < others.size()) high = std::min<int>(high, others[j].low - 1);
        if (inside || keep_dead) {
          state.edges.push_back({static_cast<uint8_t>(low), static_cast<uint8_t>(high),
                                 id_of(e.target, inside ? others[j].target : kDead)});
        }
        low = high + 1;
      }
    }
    out.states.push_back(std::move(state));
  }
  trim(&out, budget);
  if (!budget->ok()) out.states.clear();
  return out;
}

}  // namespace

Automaton determinize(const Nfa& nfa, uint32_t start, uint32_t end, const RuleFacts& facts) {
  return Determinizer(nfa, end, facts).run(start);
}

Automaton intersect(const Automaton& a, const Automaton& b, CompileBudget* budget) {
  return product(a, b, false, budget);
}

Automaton subtract(const Automaton& a, const Automaton& b, CompileBudget* budget) {
  return product(a, b, true, budget);
}

void embed(const Automaton& automaton, Nfa* nfa, uint32_t from, uint32_t to) {
  if (automaton.empty()) return;
  std::vector<uint32_t> names(automaton.states.size());
  for (auto& name : names) name = nfa->new_state();
  nfa->empty(from, names[0]);
  for (size_t s = 0; s < names.size() && nfa->budget()->ok(); ++s) {
    const auto& state = automaton.states[s];
    for (const auto& e : state.edges) nfa->byte(names[s], e.low, e.high, names[e.target]);
    for (const auto& c : state.calls) nfa->call(names[s], c.rule, names[c.target]);
    if (state.accept) nfa->empty(names[s], to);
  }
}

}  // namespace firesteel::grammar
