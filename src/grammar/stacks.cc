#include "grammar/stacks.h"

#include <algorithm>

namespace firesteel::grammar {

namespace {

uint32_t mix(uint32_t a, uint32_t b) {
  uint64_t h = (static_cast<uint64_t>(a) << 32 | b) * 0x9E3779B97F4A7C15ull;
  return static_cast<uint32_t>(h >> 32) ^ static_cast<uint32_t>(h);
}

}  // namespace

Stacks::Stacks(const Grammar* grammar)
    : grammar_(grammar), buckets_(1024, kNone), slot_epoch_(kSlots, 0), slot_index_(kSlots, 0) {
  nodes_.push_back({kNone, kNone});
}

size_t Stacks::bytes() const {
  return nodes_.capacity() * sizeof(Node) + edges_.capacity() * sizeof(Edge) +
         (buckets_.capacity() + slot_epoch_.capacity() + slot_index_.capacity()) * sizeof(uint32_t);
}

void Stacks::release(Mark mark) {
  while (nodes_.size() > mark.nodes) {
    const Node& node = nodes_.back();
    if (node.shared) buckets_[node.hash & (buckets_.size() - 1)] = node.next_equal;
    nodes_.pop_back();
  }
  edges_.resize(mark.edges);
}

uint32_t Stacks::count_key(const Config& config) const {
  if (config.count == 0) return 0;
  return std::min(config.count, grammar_->rule(grammar_->state(config.state).rule).min);
}

/// False: it is there already (the smaller count stays), or the set is full.
bool Stacks::add(std::vector<Config>* configs, size_t begin, Config config) {
  const size_t size = configs->size() - begin;
  const uint32_t key = count_key(config);
  const auto merged = [&](Config& c) {
    if (c.state != config.state || c.node != config.node || count_key(c) != key) return false;
    c.count = std::min(c.count, config.count);
    return true;
  };
  if (size < kScan) {
    for (size_t i = begin; i < configs->size(); ++i) {
      if (merged((*configs)[i])) return false;
    }
    hashed_ = false;
    configs->push_back(config);
    return true;
  }
  if (size >= kMaxConfigs) return false;
  const auto free_slot = [&](const Config& c, bool look) -> uint32_t {
    uint32_t slot = mix(mix(c.state, c.node), count_key(c)) & (kSlots - 1);
    for (; slot_epoch_[slot] == epoch_; slot = (slot + 1) & (kSlots - 1)) {
      if (look && merged((*configs)[slot_index_[slot]])) return kNone;
    }
    return slot;
  };
  const auto insert = [&](uint32_t slot, size_t index) {
    slot_epoch_[slot] = epoch_;
    slot_index_[slot] = static_cast<uint32_t>(index);
  };
  if (!hashed_) {
    hashed_ = true;
    if (++epoch_ == 0) {
      std::fill(slot_epoch_.begin(), slot_epoch_.end(), 0);
      epoch_ = 1;
    }
    for (size_t i = begin; i < configs->size(); ++i) insert(free_slot((*configs)[i], false), i);
  }
  const uint32_t slot = free_slot(config, true);
  if (slot == kNone) return false;
  insert(slot, configs->size());
  configs->push_back(config);
  return true;
}

void Stacks::call(std::vector<Config>* configs, size_t begin, uint32_t rule, uint32_t state, uint32_t node,
                  uint32_t first_new) {
  uint32_t callee = first_new;
  while (callee < nodes_.size() && nodes_[callee].rule != rule) ++callee;
  const bool fresh = callee == nodes_.size();
  if (fresh) nodes_.push_back({rule, kNone});
  for (uint32_t e = nodes_[callee].first_edge; e != kNone; e = edges_[e].next) {
    if (edges_[e].state == state && edges_[e].node == node) return;
  }
  edges_.push_back({state, node, nodes_[callee].first_edge});
  nodes_[callee].first_edge = static_cast<uint32_t>(edges_.size() - 1);
  if (fresh) add(configs, begin, {grammar_->rule(rule).start, 0, callee, 1});
}

bool Stacks::close(std::vector<Config>* configs, size_t begin) {
  hashed_ = false;
  return close_from(configs, begin);
}

bool Stacks::close_from(std::vector<Config>* configs, size_t begin) {
  const auto first_new = static_cast<uint32_t>(nodes_.size());
  bool left = false;
  for (size_t i = begin; i < configs->size(); ++i) {
    const Config config = (*configs)[i];
    const auto& state = grammar_->state(config.state);
    // A rule that ends before it has read anything was skipped where it is called.
    if (state.accept && config.entered == 0) {
      const Rule& rule = grammar_->rule(state.rule);
      if (!rule.counted || config.count >= rule.min) {
        left |= config.node == kBottom;
        for (uint32_t e = nodes_[config.node].first_edge; e != kNone; e = edges_[e].next)
          add(configs, begin, {edges_[e].state, 0, edges_[e].node, 0});
      }
    }
    const auto* calls = grammar_->calls(state);
    for (uint32_t c = 0; c < state.call_count; ++c)
      call(configs, begin, calls[c].rule, calls[c].target, config.node, first_new);
  }
  return left;
}

bool Stacks::step(std::vector<Config>* configs, size_t begin, size_t end, uint8_t byte) {
  const size_t out = configs->size();
  hashed_ = false;
  bool plain = true;
  for (size_t i = begin; i < end; ++i) {
    const Config config = (*configs)[i];
    const auto& state = grammar_->state(config.state);
    const uint32_t target = grammar_->next(state, byte);
    if (target == Grammar::kDead) continue;
    uint32_t count = config.count;
    const Rule& rule = grammar_->rule(state.rule);
    if (rule.counted) {
      if (config.state == rule.start && count >= rule.max) continue;
      if (target == rule.start) ++count;
      if (rule.max == kUnbounded) count = std::min(count, rule.min);
    }
    const auto& next = grammar_->state(target);
    plain &= !next.accept && next.call_count == 0;
    add(configs, out, {target, count, config.node, 0});
  }
  return !plain && close_from(configs, out);
}

bool Stacks::after(std::vector<Config>* configs, uint32_t node) {
  const size_t out = configs->size();
  hashed_ = false;
  for (uint32_t e = nodes_[node].first_edge; e != kNone; e = edges_[e].next)
    add(configs, out, {edges_[e].state, 0, edges_[e].node, 0});
  return close_from(configs, out) || node == kBottom;
}

uint32_t Stacks::find_equal(uint32_t node) const {
  const Node& n = nodes_[node];
  for (uint32_t other = buckets_[n.hash & (buckets_.size() - 1)]; other != kNone;
       other = nodes_[other].next_equal) {
    const Node& o = nodes_[other];
    if (o.hash != n.hash || o.rule != n.rule) continue;
    uint32_t a = n.first_edge, b = o.first_edge;
    while (a != kNone && b != kNone && edges_[a].state == edges_[b].state &&
           edges_[a].node == edges_[b].node) {
      a = edges_[a].next;
      b = edges_[b].next;
    }
    if (a == kNone && b == kNone) return other;
  }
  return kNone;
}

void Stacks::canonicalize(std::vector<Config>* configs, size_t begin, Mark since) {
  const uint32_t count = static_cast<uint32_t>(nodes_.size()) - since.nodes;
  if (count == 0) return;
  // Callers were made before the rules they call, unless the call is left-recursive; then nothing is shared.
  bool recursive = false;
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t e = nodes_[since.nodes + i].first_edge; e != kNone; e = edges_[e].next)
      recursive |= edges_[e].node >= since.nodes + i;
  }
  if (recursive) return;
  renamed_.assign(count, kNone);
  uint32_t next_node = since.nodes;
  for (uint32_t i = 0; i < count; ++i) {
    Node& node = nodes_[since.nodes + i];
    node.hash = mix(node.rule, 77);
    for (uint32_t e = node.first_edge; e != kNone; e = edges_[e].next) {
      if (edges_[e].node >= since.nodes) edges_[e].node = renamed_[edges_[e].node - since.nodes];
      node.hash = mix(node.hash, mix(edges_[e].state, edges_[e].node));
    }
    const uint32_t equal = find_equal(since.nodes + i);
    if (equal != kNone) {
      renamed_[i] = equal;
      continue;
    }
    nodes_[next_node] = node;
    Node& kept = nodes_[next_node];
    kept.shared = true;
    uint32_t& head = buckets_[kept.hash & (buckets_.size() - 1)];
    kept.next_equal = head;
    head = next_node;
    renamed_[i] = next_node++;
  }
  nodes_.resize(next_node);
  moved_.assign(edges_.begin() + since.edges, edges_.end());
  edges_.resize(since.edges);  // the edges of nodes that were kept come back
  for (uint32_t n = since.nodes; n < next_node; ++n) {
    uint32_t* link = &nodes_[n].first_edge;
    for (uint32_t e = *link; e != kNone; e = moved_[e - since.edges].next) {
      *link = static_cast<uint32_t>(edges_.size());
      edges_.push_back(moved_[e - since.edges]);
      link = &edges_.back().next;
    }
  }
  for (size_t i = begin; i < configs->size(); ++i) {
    uint32_t& node = (*configs)[i].node;
    if (node >= since.nodes) node = renamed_[node - since.nodes];
  }
}

}  // namespace firesteel::grammar
