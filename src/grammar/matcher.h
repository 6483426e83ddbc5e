// Follows one reply through a grammar: which tokens may come next, and back again when drafts are refused.
//
// Owned by one reply and used by one thread at a time (the engine's); copying one copies its state. Nothing
// here compiles or takes a lock. accept(), fill_mask() and rollback() reuse their memory; it grows with the
// nesting of the reply and with the depth of history, not with its length.
//
// The contract with the engine:
//   - Start after `</think>` has been chosen (or at the first token when thinking is off). Feed every chosen
//   token
//     to accept().
//   - Drafts: accept() them one by one; the first refused one cuts the chain. fill_mask() before each
//   accept()
//     gives the mask of each row. Then rollback() what verification did not keep.
//   - What a mask allows, accept() accepts. End ids are allowed exactly where the grammar may end.
//   - A mask without a bit cannot happen with a vocabulary that has all single bytes, except when a very
//   ambiguous
//     grammar meets the limits below; the engine ends such a request with an internal error.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/stacks.h"
#include "grammar/tables.h"
#include "grammar/trie_walk.h"

namespace firesteel::grammar {

class Matcher {
 public:
  static constexpr size_t kMaxRollback = 256;  // accepted tokens that can be taken back

  explicit Matcher(std::shared_ptr<const CompiledGrammar> grammar);
  Matcher(const Matcher& other);
  Matcher& operator=(const Matcher& other);

  /// True: the token fits and the state moved on. False: nothing changed. Ids out of range do not fit.
  bool accept(int32_t token);
  /// True when accept() would; the state stays.
  bool allows(int32_t token);
  /// One bit per token id, bit i of word i / 32; `mask` has vocabulary().mask_words() words and is
  /// overwritten.
  void fill_mask(std::span<uint32_t> mask);
  /// Takes back the last `tokens` accepted ones. False (and nothing done) when so many are not kept.
  bool rollback(size_t tokens);
  size_t accepted() const { return accepted_; }

  /// The text so far is a whole one: an end id would be accepted.
  bool is_complete() const { return steps_.back().complete && !steps_.back().finished; }
  /// An end id was accepted; nothing fits any more.
  bool is_finished() const { return steps_.back().finished; }
  /// The bytes that must come next whatever is chosen, at most `limit`: empty where there is a choice.
  std::string forced_bytes(size_t limit);

  const CompiledGrammar& grammar() const { return *grammar_; }
  /// Bytes of memory this matcher holds.
  size_t bytes() const;

 private:
  struct Step {
    size_t begin;       // of its set in configs_
    Stacks::Mark mark;  // what was there before it
    bool complete, finished;
  };
  bool read(std::string_view bytes);
  void forget();
  void fill_from_tables(std::span<uint32_t> mask);
  void fill_exits(const StateTable& table, const Config& config, std::span<uint32_t> mask, int64_t* steps);
  void fill_by_walking(std::span<uint32_t> mask, int64_t* steps);

  std::shared_ptr<const CompiledGrammar> grammar_;
  Stacks stacks_;
  std::vector<Config> configs_;  // sets of the kept steps, one after the other
  std::vector<Step> steps_;      // [0]: the oldest state that can be returned to
  size_t accepted_ = 0;
  std::vector<Config> work_;
  TrieWalk walk_;
  std::vector<uint32_t> scratch_;
  // The tokens behind a rule's end depend on its table and its caller only: the last few answers.
  struct Memo {
    const StateTable* table = nullptr;
    uint32_t node = 0;
    std::vector<int32_t> ids;
  };
  static constexpr size_t kMemos = 8;
  std::vector<Memo> memos_;
  size_t next_memo_ = 0;
};

}  // namespace firesteel::grammar
