// The set of all ways to read the bytes so far: states of rules, and who called those rules.
//
// Callers are kept as a graph. A node stands for "rule r, begun at this byte" and has an edge to every place
// that called it there; however many ways lead to the same rule at the same byte, it is read once. So the
// work for a byte is bounded by the grammar and the depth, also for ambiguous and left-recursive grammars.
//
// Nodes and edges are appended and given back in the order of a stack, which is what rolling back and walking
// a trie need. One owner, one thread; memory grows with the nesting that the grammar really has (equal nodes
// are shared by canonicalize()).
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/grammar.h"

namespace firesteel::grammar {

/// One way: a state, the count of a counted rule, the node of the call that the state's rule belongs to.
struct Config {
  uint32_t state = 0;
  uint32_t count = 0;
  uint32_t node = 0;
  uint32_t entered = 0;  // 1: a rule just called here, nothing of it read
};

class Stacks {
 public:
  static constexpr uint32_t kBottom = 0;       // the node nobody called
  static constexpr size_t kMaxConfigs = 1024;  // of one set: ways beyond it are dropped, which only narrows

  explicit Stacks(const Grammar* grammar);

  struct Mark {
    uint32_t nodes, edges;
  };
  Mark mark() const { return {static_cast<uint32_t>(nodes_.size()), static_cast<uint32_t>(edges_.size())}; }
  void release(Mark mark);

  /// Appends the closed set that begins with the given configurations already at [begin, end of *configs).
  /// True: one of them ends a rule that nobody called.
  bool close(std::vector<Config>* configs, size_t begin);
  /// Appends the closed set after one byte from the set at [begin, end). Same result.
  bool step(std::vector<Config>* configs, size_t begin, size_t end, uint8_t byte);
  /// Appends the closed set of what follows when the rule of `node` has ended. Same result.
  bool after(std::vector<Config>* configs, uint32_t node);
  /// Replaces nodes made since `since` by older equal ones in the set at [begin, end of *configs).
  void canonicalize(std::vector<Config>* configs, size_t begin, Mark since);

  size_t bytes() const;

 private:
  struct Node {
    uint32_t rule;
    uint32_t first_edge;
    uint32_t hash = 0;
    uint32_t next_equal = 0;  // next node of the same bucket
    bool shared = false;      // in a bucket
  };
  struct Edge {
    uint32_t state;  // where the caller goes on
    uint32_t node;   // the caller's own node
    uint32_t next;
  };
  static constexpr uint32_t kNone = ~0u;
  static constexpr size_t kScan = 16;  // sets up to this size are searched one by one
  static constexpr size_t kSlots = 4096;

  bool add(std::vector<Config>* configs, size_t begin, Config config);
  /// Once a counted rule may end, a smaller count can do all that a larger one can: one of them is enough.
  uint32_t count_key(const Config& config) const;
  void call(std::vector<Config>* configs, size_t begin, uint32_t rule, uint32_t state, uint32_t node,
            uint32_t first_new);
  bool close_from(std::vector<Config>* configs, size_t begin);
  uint32_t find_equal(uint32_t node) const;

  const Grammar* grammar_;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<uint32_t> buckets_;
  std::vector<uint32_t> slot_epoch_, slot_index_;
  uint32_t epoch_ = 0;
  bool hashed_ = false;
  std::vector<uint32_t> renamed_;
  std::vector<Edge> moved_;
};

}  // namespace firesteel::grammar
