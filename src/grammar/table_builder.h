// Builds the tables of a grammar's states (grammar/tables.h). One compilation, one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grammar/tables.h"
#include "grammar/trie_walk.h"

namespace firesteel::grammar {

class TableBuilder {
 public:
  TableBuilder(const Grammar& grammar, const Vocabulary& vocabulary, CompileBudget* budget);
  /// Null when walking the trie from the state is cheap, or when the budget is spent.
  std::shared_ptr<const StateTable> build(uint32_t state);

 private:
  /// Tokens found by a walk, in the order of the trie.
  struct Found {
    std::vector<StateTable::Need> tokens;
    std::vector<StateTable::Exit> exits;
    size_t visited = 0;
  };
  void find_followers();
  void find_sizes();
  void add_exits(uint32_t node, uint32_t count, const ByteSet& follow,
                 std::vector<StateTable::Exit>* exits) const;
  bool certainly_cheap(uint32_t state) const;
  bool describe(uint32_t state, std::string* key) const;
  void walk_alone(uint32_t state, Found* found);
  void walk_with_calls(uint32_t state, Found* found);
  std::shared_ptr<StateTable> difference(uint32_t state, uint32_t base_state,
                                         const std::shared_ptr<const StateTable>& base);
  bool alike(uint32_t a, uint32_t b) const;
  std::shared_ptr<StateTable> pack(Found found, bool counted) const;

  const Grammar& grammar_;
  const Vocabulary& vocabulary_;
  CompileBudget* budget_;
  Stacks stacks_;
  std::vector<Config> configs_;
  TrieWalk walk_;
  // States of the current rule that got a whole mask: others may differ from one of them only a little.
  struct Reference {
    uint32_t state;
    std::shared_ptr<const StateTable> table;
  };
  std::vector<Reference> references_;
  std::vector<bool> small_;      // rules that reach few enough states to be described
  std::vector<ByteSet> follow_;  // of each rule: bytes that its callers can read after it
};

}  // namespace firesteel::grammar
