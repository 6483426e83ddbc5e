// What is worked out ahead for the states of a grammar where many tokens are possible.
//
// A StateTable holds, for one state as if its rule had been called by nobody: the tokens that can be read
// whole without leaving the rule, and the trie nodes at which the rule may end in the middle of a token (the
// caller decides what may follow). Tables are immutable. TableStore shares them between grammars: equal
// machines, equal tables (a plain JSON string is in nearly every schema). Thread safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/vocabulary.h"

namespace firesteel::grammar {

struct StateTable {
  /// The rule may end just before this node of the trie, whose byte can follow the rule somewhere in the
  /// grammar.
  struct Exit {
    uint32_t node;
    uint32_t count;  // items read so far (counted rules)
    bool operator==(const Exit&) const = default;
  };
  struct Need {
    int32_t id;
    uint32_t items;
  };
  static constexpr uint32_t kLevels = 12;

  // One of three forms: a mask; a short list of ids; another table and what differs from it.
  std::vector<uint32_t> bits;
  std::vector<int32_t> ids;
  std::shared_ptr<const StateTable> base;
  std::vector<int32_t> cleared, added;

  std::vector<Exit> exits;  // ascending by node

  // Counted rules: few tokens as `beyond` alone; else also masks of what needs at most r+1 items, r below
  // kLevels.
  bool counted = false;
  std::vector<std::vector<uint32_t>> within;
  std::vector<Need> beyond;  // descending by items

  /// Sets the tokens for a state that may read `items` more items (kUnbounded: all). `scratch` has
  /// mask_words() words.
  void apply(uint32_t items, std::span<uint32_t> mask, std::vector<uint32_t>* scratch) const;
  size_t bytes() const;
};

class TableStore {
 public:
  /// True when the state is known; its table is null where none is worth keeping.
  bool find(const std::string& key, std::shared_ptr<const StateTable>* table) const;
  void put(const std::string& key, std::shared_ptr<const StateTable> table);

 private:
  static constexpr size_t kMaxBytes = 64u << 20;  // full: starts again
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const StateTable>> tables_;
  size_t bytes_ = 0;
};

/// A grammar with its tables for one vocabulary. Immutable, any number of threads and matchers.
class CompiledGrammar {
 public:
  /// Builds the tables of every state that needs one, so that no mask is slow later; a grammar for which that
  /// takes more than the budget is refused (kLimit).
  static Result<std::shared_ptr<const CompiledGrammar>> create(std::shared_ptr<const Grammar> grammar,
                                                               std::shared_ptr<const Vocabulary> vocabulary,
                                                               CompileBudget* budget);
  const Grammar& grammar() const { return *grammar_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  /// Null: walk the trie.
  const StateTable* table(uint32_t state) const { return tables_[state].get(); }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::vector<std::shared_ptr<const StateTable>> tables_;
  size_t bytes_ = 0;
};

}  // namespace firesteel::grammar
