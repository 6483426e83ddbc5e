#include "grammar/table_builder.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace firesteel::grammar {

namespace {

constexpr size_t kCheapVisits = 200;   // nodes: below this no table is worth its memory
constexpr size_t kShortList = 1500;    // tokens: below this a list is smaller than a mask
constexpr size_t kMaxDescribed = 300;  // states of a machine that is compared with others
constexpr size_t kMaxReferences = 6;   // whole masks of a rule that later states are compared with
constexpr int64_t kMaxSteps = 20'000'000;

void sort_exits(std::vector<StateTable::Exit>* exits) {
  std::sort(exits->begin(), exits->end(), [](const auto& a, const auto& b) { return a.node < b.node; });
}

}  // namespace

TableBuilder::TableBuilder(const Grammar& grammar, const Vocabulary& vocabulary, CompileBudget* budget)
    : grammar_(grammar),
      vocabulary_(vocabulary),
      budget_(budget),
      stacks_(&grammar),
      walk_(&vocabulary, &stacks_, &configs_) {
  find_followers();
  find_sizes();
}

void TableBuilder::find_sizes() {
  std::vector<std::vector<uint32_t>> callees(grammar_.rule_count());
  for (uint32_t s = 0; s < grammar_.state_count(); ++s) {
    const auto& state = grammar_.state(s);
    auto& list = callees[state.rule];
    for (uint32_t c = 0; c < state.call_count; ++c) {
      const uint32_t callee = grammar_.calls(state)[c].rule;
      if (list.size() <= kMaxDescribed && std::find(list.begin(), list.end(), callee) == list.end())
        list.push_back(callee);
    }
  }
  small_.resize(grammar_.rule_count());
  for (uint32_t r = 0; r < grammar_.rule_count(); ++r) {
    std::vector<uint32_t> reached{r};
    size_t states = 0;
    for (size_t i = 0; i < reached.size() && states <= kMaxDescribed; ++i) {
      states += grammar_.rule(reached[i]).state_count;
      for (uint32_t callee : callees[reached[i]]) {
        if (std::find(reached.begin(), reached.end(), callee) == reached.end()) reached.push_back(callee);
      }
    }
    small_[r] = states <= kMaxDescribed;
  }
}

void TableBuilder::find_followers() {
  // What a state can read first, then what can follow a rule; both grow until nothing changes.
  std::vector<ByteSet> first(grammar_.state_count());
  follow_.resize(grammar_.rule_count());
  for (uint32_t s = 0; s < grammar_.state_count(); ++s) {
    const auto& state = grammar_.state(s);
    for (uint32_t e = 0; e < state.edge_count; ++e)
      first[s].add(grammar_.edges(state)[e].low, grammar_.edges(state)[e].high);
  }
  for (const bool following : {false, true}) {
    for (bool grew = true; grew;) {
      grew = false;
      for (uint32_t s = grammar_.state_count(); s-- > 0;) {
        const auto& state = grammar_.state(s);
        for (uint32_t c = 0; c < state.call_count; ++c) {
          const auto& call = grammar_.calls(state)[c];
          if (!following) {
            grew |= first[s].add(first[grammar_.rule(call.rule).start]);
            continue;
          }
          grew |= follow_[call.rule].add(first[call.target]);
          if (grammar_.state(call.target).accept) grew |= follow_[call.rule].add(follow_[state.rule]);
        }
      }
    }
  }
  // What ends a JSON value is much the same everywhere; one set for all lets grammars share tables.
  ByteSet punctuation;
  for (char c : {' ', '\t', '\n', ',', ':', ']', '}'})
    punctuation.add(static_cast<uint8_t>(c), static_cast<uint8_t>(c));
  for (ByteSet& set : follow_) {
    if (set.within(punctuation)) set = punctuation;
  }
}

void TableBuilder::add_exits(uint32_t node, uint32_t count, const ByteSet& follow,
                             std::vector<StateTable::Exit>* exits) const {
  for (uint32_t child = node + 1, end = vocabulary_.skip(node); child < end;
       child = vocabulary_.skip(child)) {
    if (follow.has(vocabulary_.byte(child))) exits->push_back({child, count});
  }
}

/// One byte is possible and no rule begins here: at most one child of the root is entered.
bool TableBuilder::certainly_cheap(uint32_t s) const {
  const auto& state = grammar_.state(s);
  if (state.call_count > 0) return false;
  if (state.edge_count == 0) return true;
  const auto& edge = grammar_.edges(state)[0];
  if (state.edge_count > 1 || edge.low != edge.high) return false;
  const uint32_t child = vocabulary_.root_child(edge.low);
  if (child == Vocabulary::kNone || vocabulary_.skip(child) - child < kCheapVisits) return true;
  const auto& next = grammar_.state(edge.target);
  return next.call_count == 0 && next.edge_count == 1 && !next.accept &&
         grammar_.edges(next)[0].low == grammar_.edges(next)[0].high;
}

/// A text that is equal for states from which the same machine is reached; false when it would be long.
bool TableBuilder::describe(uint32_t s, std::string* key) const {
  std::unordered_map<uint32_t, uint32_t> names;
  std::vector<uint32_t> order;
  const auto put = [key](uint32_t v) { key->append(reinterpret_cast<const char*>(&v), sizeof v); };
  const auto name = [&](uint32_t state) {
    const auto [it, fresh] = names.try_emplace(state, static_cast<uint32_t>(order.size()));
    if (fresh) order.push_back(state);
    return it->second;
  };
  const uint32_t own_rule = grammar_.state(s).rule;
  key->append(reinterpret_cast<const char*>(follow_[own_rule].words().data()), 32);
  name(s);
  for (size_t i = 0; i < order.size(); ++i) {
    if (order.size() > kMaxDescribed) return false;
    const auto& state = grammar_.state(order[i]);
    const Rule& rule = grammar_.rule(state.rule);
    put(static_cast<uint32_t>(state.accept) | static_cast<uint32_t>(rule.counted) << 1 |
        static_cast<uint32_t>(rule.start == order[i]) << 2);
    // The bounds of the state's own rule are not part of its table.
    if (rule.counted && state.rule != own_rule) {
      put(rule.min);
      put(rule.max);
    }
    put(state.edge_count);
    for (uint32_t e = 0; e < state.edge_count; ++e) {
      const auto& edge = grammar_.edges(state)[e];
      put(static_cast<uint32_t>(edge.low) << 8 | edge.high);
      put(name(edge.target));
    }
    put(state.call_count);
    for (uint32_t c = 0; c < state.call_count; ++c) {
      const auto& call = grammar_.calls(state)[c];
      put(name(grammar_.rule(call.rule).start));
      put(name(call.target));
    }
  }
  return true;
}

/// States of rules without calls: one table look-up per node.
void TableBuilder::walk_alone(uint32_t s, Found* found) {
  struct Frame {
    uint32_t state, count;
  };
  const Rule& rule = grammar_.rule(grammar_.state(s).rule);
  const ByteSet& follow = follow_[grammar_.state(s).rule];
  std::vector<Frame> frames(vocabulary_.max_depth() + 1);
  frames[0] = {s, 0};
  for (uint32_t node = 0; node < vocabulary_.node_count();) {
    const uint32_t depth = vocabulary_.depth(node);
    const Frame& from = frames[depth - 1];
    const uint32_t target = grammar_.next(grammar_.state(from.state), vocabulary_.byte(node));
    ++found->visited;
    if (!budget_->spend()) return;
    if (target == Grammar::kDead) {
      node = vocabulary_.skip(node);
      continue;
    }
    const bool whole = target == rule.start;  // of a counted rule: an item is complete
    const uint32_t count = from.count + (rule.counted && whole);
    frames[depth] = {target, count};
    for (int32_t id : vocabulary_.tokens_at(node)) found->tokens.push_back({id, count + !whole});
    if (grammar_.state(target).accept) add_exits(node, count, follow, &found->exits);
    ++node;
  }
  sort_exits(&found->exits);
}

void TableBuilder::walk_with_calls(uint32_t s, Found* found) {
  configs_.assign(1, {s, 0, Stacks::kBottom, 0});
  stacks_.release({1, 0});
  stacks_.close(&configs_, 0);
  // The rule's own end before any byte is the caller's business.
  int64_t steps = kMaxSteps;
  walk_.run(0, vocabulary_.node_count(), 0, 0, first_bytes(grammar_, configs_, 0), &steps,
            [&](uint32_t node, bool left) {
              ++found->visited;
              if (!budget_->spend(8)) steps = 0;
              for (int32_t id : vocabulary_.tokens_at(node)) found->tokens.push_back({id, 1});
              if (left) add_exits(node, 0, follow_[grammar_.state(s).rule], &found->exits);
            });
  if (steps <= 0) budget_->exhaust("is too ambiguous");
  sort_exits(&found->exits);
  configs_.clear();
  stacks_.release({1, 0});
}

std::shared_ptr<StateTable> TableBuilder::pack(Found found, bool counted) const {
  auto table = std::make_shared<StateTable>();
  table->exits = std::move(found.exits);
  table->exits.shrink_to_fit();
  table->counted = counted;
  const auto most_first = [](const auto& a, const auto& b) { return a.items > b.items; };
  if (found.tokens.size() < kShortList) {
    if (counted) {
      table->beyond = std::move(found.tokens);
      std::stable_sort(table->beyond.begin(), table->beyond.end(), most_first);
    } else {
      for (const auto& token : found.tokens) table->ids.push_back(token.id);
    }
    return table;
  }
  const auto set = [](std::vector<uint32_t>& mask, int32_t id) {
    mask[static_cast<size_t>(id) >> 5] |= 1u << (static_cast<uint32_t>(id) & 31);
  };
  table->bits.assign(vocabulary_.mask_words(), 0);
  if (counted) table->within.assign(StateTable::kLevels, std::vector<uint32_t>(vocabulary_.mask_words(), 0));
  for (const auto& token : found.tokens) {
    set(table->bits, token.id);
    if (!counted) continue;
    if (token.items > StateTable::kLevels) {
      table->beyond.push_back(token);
    } else {
      set(table->within[token.items - 1], token.id);
    }
  }
  for (size_t level = 1; level < table->within.size(); ++level) {
    for (size_t w = 0; w < table->bits.size(); ++w) table->within[level][w] |= table->within[level - 1][w];
  }
  std::stable_sort(table->beyond.begin(), table->beyond.end(), most_first);
  table->beyond.shrink_to_fit();
  return table;
}

/// Most bytes lead to the same state from both.
bool TableBuilder::alike(uint32_t a, uint32_t b) const {
  const auto &sa = grammar_.state(a), &sb = grammar_.state(b);
  int same = 0, all = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const uint32_t ta = grammar_.next(sa, static_cast<uint8_t>(byte));
    const uint32_t tb = grammar_.next(sb, static_cast<uint8_t>(byte));
    all += ta != Grammar::kDead || tb != Grammar::kDead;
    same += ta != Grammar::kDead && ta == tb;
  }
  return same * 4 >= all * 3;
}

/// Walks only where the two states have not come together again.
std::shared_ptr<StateTable> TableBuilder::difference(uint32_t s, uint32_t base_state,
                                                     const std::shared_ptr<const StateTable>& base) {
  constexpr size_t kMaxDifferences = 4000;
  struct Frame {
    uint32_t own, other;
  };
  auto table = std::make_shared<StateTable>();
  table->base = base;
  std::vector<Frame> frames(vocabulary_.max_depth() + 1);
  frames[0] = {s, base_state};
  const ByteSet& follow = follow_[grammar_.state(s).rule];
  std::vector<StateTable::Exit> gone, come;
  const auto next = [this](uint32_t from, uint8_t byte) {
    return from == Grammar::kDead ? from : grammar_.next(grammar_.state(from), byte);
  };
  for (uint32_t node = 0; node < vocabulary_.node_count();) {
    const uint32_t depth = vocabulary_.depth(node);
    const uint8_t byte = vocabulary_.byte(node);
    const uint32_t own = next(frames[depth - 1].own, byte), other = next(frames[depth - 1].other, byte);
    if (own == other) {
      node = vocabulary_.skip(node);
      continue;
    }
    frames[depth] = {own, other};
    if ((own == Grammar::kDead) != (other == Grammar::kDead)) {
      auto& list = own == Grammar::kDead ? table->cleared : table->added;
      for (int32_t id : vocabulary_.tokens_at(node)) list.push_back(id);
    }
    if (own != Grammar::kDead && grammar_.state(own).accept) add_exits(node, 0, follow, &come);
    if (other != Grammar::kDead && grammar_.state(other).accept) add_exits(node, 0, follow, &gone);
    if (table->cleared.size() + table->added.size() > kMaxDifferences) return nullptr;
    ++node;
  }
  sort_exits(&come);
  sort_exits(&gone);
  const auto earlier = [](const auto& a, const auto& b) { return a.node < b.node; };
  std::vector<StateTable::Exit> kept;
  std::set_difference(base->exits.begin(), base->exits.end(), gone.begin(), gone.end(),
                      std::back_inserter(kept), earlier);
  std::merge(kept.begin(), kept.end(), come.begin(), come.end(), std::back_inserter(table->exits), earlier);
  return table;
}

std::shared_ptr<const StateTable> TableBuilder::build(uint32_t s) {
  if (vocabulary_.max_depth() <= 1 || certainly_cheap(s)) return nullptr;
  const uint32_t rule_id = grammar_.state(s).rule;
  const Rule& rule = grammar_.rule(rule_id);
  const bool may_differ = !rule.counted && !rule.has_calls;
  if (!references_.empty() && grammar_.state(references_.front().state).rule != rule_id) references_.clear();
  std::string key;
  std::shared_ptr<const StateTable> known;
  const bool described = small_[rule_id] && describe(s, &key);
  if (described && vocabulary_.store().find(key, &known)) {
    if (known && may_differ && !known->bits.empty() && references_.size() < kMaxReferences)
      references_.push_back({s, known});
    return known;
  }
  if (may_differ) {
    for (const Reference& reference : references_) {
      if (!alike(s, reference.state)) continue;
      if (auto table = difference(s, reference.state, reference.table)) return table;
      break;
    }
  }
  Found found;
  if (rule.has_calls) {
    walk_with_calls(s, &found);
  } else {
    walk_alone(s, &found);
  }
  if (!budget_->ok()) return nullptr;
  std::shared_ptr<const StateTable> table;
  if (found.visited >= kCheapVisits) table = pack(std::move(found), rule.counted);
  if (described) vocabulary_.store().put(key, table);
  if (table && may_differ && !table->bits.empty() && references_.size() < kMaxReferences)
    references_.push_back({s, table});
  return table;
}

}  // namespace firesteel::grammar
