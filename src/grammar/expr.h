// Expressions: what the regex and EBNF parsers produce and what the JSON schema compiler composes.
//
// Nodes live in a pool and name each other by index, so that a sub-expression can be used many times. Depth
// is bounded by the parsers (kMaxExprDepth), which makes recursion over them safe. One thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/char_set.h"
#include "grammar/grammar.h"

namespace firesteel::grammar {

inline constexpr int kMaxExprDepth = 200;

using ExprId = uint32_t;

enum class ExprKind : uint8_t {
  kEmpty,
  kNever,
  kBytes,
  kText,
  kChars,
  kJsonChar,
  kSeq,
  kAlt,
  kRepeat,
  kRule,
  kAnchor
};

/// How characters become bytes: as UTF-8, or as the inside of a JSON string, where what must be escaped is
/// written with its shortest escape and everything else as it is.
enum class Encoding : uint8_t { kUtf8, kJson };

class ExprPool {
 public:
  struct Node {
    ExprKind kind = ExprKind::kEmpty;
    uint32_t min = 0, max = 0;     // repeat
    uint32_t index = 0;            // of the set, text or rule
    std::vector<ExprId> children;  // seq, alt, repeat
  };

  ExprId empty() { return add({ExprKind::kEmpty, 0, 0, 0, {}}); }
  ExprId never() { return add({ExprKind::kNever, 0, 0, 0, {}}); }
  ExprId bytes(std::string_view raw);  // as they are, in either encoding
  ExprId text(std::string_view utf8);
  ExprId chars(CharSet set);
  /// One character of a JSON string in any spelling that JSON allows (but no lone surrogates).
  ExprId json_char() { return add({ExprKind::kJsonChar, 0, 0, 0, {}}); }
  ExprId rule(uint32_t rule);
  ExprId seq(std::vector<ExprId> children);
  ExprId alt(std::vector<ExprId> children);
  ExprId repeat(ExprId child, uint32_t min, uint32_t max);
  /// A regex's ^ or $, until regex.cc has resolved it.
  ExprId anchor(bool end) { return add({ExprKind::kAnchor, 0, 0, end ? 1u : 0u, {}}); }

  const Node& node(ExprId id) const { return nodes_[id]; }
  const CharSet& set(const Node& node) const { return sets_[node.index]; }
  const std::string& text(const Node& node) const { return texts_[node.index]; }

 private:
  ExprId add(Node node);
  std::vector<Node> nodes_;
  std::vector<CharSet> sets_;
  std::vector<std::string> texts_;
};

/// Writes expressions into the automata of a builder.
class Lowering {
 public:
  /// With `calls` false, bounded repetitions are written out and rules are not allowed: the result is
  /// regular.
  Lowering(const ExprPool& pool, Encoding encoding, GrammarBuilder* builder, bool calls)
      : pool_(pool), encoding_(encoding), builder_(builder), nfa_(&builder->nfa()), calls_(calls) {}
  Lowering(const ExprPool& pool, Encoding encoding, Nfa* nfa)
      : pool_(pool), encoding_(encoding), builder_(nullptr), nfa_(nfa), calls_(false) {}

  /// `follow`: characters that can come next after the expression, as far as known. It only decides how
  /// repetitions are built.
  void lower(ExprId id, uint32_t from, uint32_t to, const CharSet& follow = {});

 private:
  void repeat(const ExprPool::Node& node, uint32_t from, uint32_t to, const CharSet& follow);
  void sequence(const ExprPool::Node& node, uint32_t from, uint32_t to, const CharSet& follow);
  bool add_first(ExprId id, CharSet* first) const;
  const ExprPool& pool_;
  Encoding encoding_;
  GrammarBuilder* builder_;
  Nfa* nfa_;
  bool calls_;
};

/// Edges for one character of a set.
void lower_chars(const CharSet& set, Encoding encoding, Nfa* nfa, uint32_t from, uint32_t to);
void lower_json_char(Nfa* nfa, uint32_t from, uint32_t to);

/// The automaton of an expression without rules.
Automaton regular(const ExprPool& pool, ExprId id, Encoding encoding, CompileBudget* budget);

}  // namespace firesteel::grammar
