// Walks the vocabulary's trie and a grammar together, so that tokens with a common beginning cost it once.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "grammar/stacks.h"
#include "grammar/vocabulary.h"

namespace firesteel::grammar {

class ByteSet {
 public:
  void add(uint8_t low, uint8_t high) {
    for (int b = low; b <= high; ++b) words_[b >> 6] |= 1ull << (b & 63);
  }
  bool has(uint8_t b) const { return words_[b >> 6] >> (b & 63) & 1; }
  /// True when this grew.
  bool add(const ByteSet& other) {
    const auto before = words_;
    for (size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
    return words_ != before;
  }
  bool within(const ByteSet& other) const {
    bool inside = true;
    for (size_t w = 0; w < words_.size(); ++w) inside &= (words_[w] & ~other.words_[w]) == 0;
    return inside;
  }
  const std::array<uint64_t, 4>& words() const { return words_; }

 private:
  std::array<uint64_t, 4> words_{};
};

/// Bytes that at least one configuration of a closed set can read.
inline ByteSet first_bytes(const Grammar& grammar, const std::vector<Config>& configs, size_t begin) {
  ByteSet set;
  for (size_t i = begin; i < configs.size(); ++i) {
    const auto& state = grammar.state(configs[i].state);
    const Rule& rule = grammar.rule(state.rule);
    if (rule.counted && configs[i].state == rule.start && configs[i].count >= rule.max) continue;
    for (uint32_t e = 0; e < state.edge_count; ++e)
      set.add(grammar.edges(state)[e].low, grammar.edges(state)[e].high);
  }
  return set;
}

class TrieWalk {
 public:
  TrieWalk(const Vocabulary* vocabulary, Stacks* stacks, std::vector<Config>* configs)
      : vocabulary_(vocabulary), stacks_(stacks), configs_(configs), frames_(vocabulary->max_depth() + 1) {}

  /// From the closed set [begin, end of configs) before the nodes [first, last), which are children of one
  /// node (at depth `above`) with all below them. Calls on_node(node, left) for every node that is reached;
  /// `left` says that a rule nobody called ended there. Leaves configs and stacks as they were. `*steps`
  /// counts down; at 0 the walk ends early: what it reported stays right.
  template <typename OnNode>
  void run(uint32_t first, uint32_t last, uint32_t above, size_t begin, const ByteSet& first_bytes,
           int64_t* steps, OnNode&& on_node) {
    frames_[0] = {begin, configs_->size(), stacks_->mark()};
    for (uint32_t node = first; node<last&& * steps> 0;) {
      const uint32_t depth = vocabulary_->depth(node) - above;
      const uint8_t byte = vocabulary_->byte(node);
      if (depth == 1 && !first_bytes.has(byte)) {
        node = vocabulary_->skip(node);
        continue;
      }
      const Frame parent = frames_[depth - 1];
      configs_->resize(parent.end);
      stacks_->release(parent.mark);
      *steps -= 1 + static_cast<int64_t>(parent.end - parent.begin);
      const bool left = stacks_->step(configs_, parent.begin, parent.end, byte);
      if (configs_->size() == parent.end) {
        node = vocabulary_->skip(node);
        continue;
      }
      frames_[depth] = {parent.end, configs_->size(), stacks_->mark()};
      on_node(node, left);
      ++node;
    }
    configs_->resize(frames_[0].end);
    stacks_->release(frames_[0].mark);
  }

 private:
  struct Frame {
    size_t begin = 0, end = 0;
    Stacks::Mark mark{0, 0};
  };
  const Vocabulary* vocabulary_;
  Stacks* stacks_;
  std::vector<Config>* configs_;
  std::vector<Frame> frames_;
};

}  // namespace firesteel::grammar
