#include "grammar/expr.h"

#include <algorithm>
#include <utility>

namespace firesteel::grammar {

ExprId ExprPool::add(Node node) {
  nodes_.push_back(std::move(node));
  return static_cast<ExprId>(nodes_.size() - 1);
}

ExprId ExprPool::bytes(std::string_view raw) {
  texts_.emplace_back(raw);
  return add({ExprKind::kBytes, 0, 0, static_cast<uint32_t>(texts_.size() - 1), {}});
}

ExprId ExprPool::text(std::string_view utf8) {
  texts_.emplace_back(utf8);
  return add({ExprKind::kText, 0, 0, static_cast<uint32_t>(texts_.size() - 1), {}});
}

ExprId ExprPool::chars(CharSet set) {
  set.normalize();
  if (set.empty()) return never();
  sets_.push_back(std::move(set));
  return add({ExprKind::kChars, 0, 0, static_cast<uint32_t>(sets_.size() - 1), {}});
}

ExprId ExprPool::rule(uint32_t rule) { return add({ExprKind::kRule, 0, 0, rule, {}}); }

ExprId ExprPool::seq(std::vector<ExprId> children) {
  if (children.size() == 1) return children[0];
  return add({ExprKind::kSeq, 0, 0, 0, std::move(children)});
}

ExprId ExprPool::alt(std::vector<ExprId> children) {
  if (children.size() == 1) return children[0];
  // Alternatives of one character each are one set, which repeats far more cheaply.
  CharSet set;
  const bool single = std::all_of(children.begin(), children.end(), [&](ExprId child) {
    const Node& n = nodes_[child];
    if (n.kind == ExprKind::kChars) {
      set.add(sets_[n.index]);
      return true;
    }
    size_t at = 0;
    const int32_t c =
        n.kind == ExprKind::kText && !texts_[n.index].empty() ? read_utf8(texts_[n.index], &at) : -1;
    if (c < 0 || at != texts_[n.index].size()) return false;
    set.add(static_cast<uint32_t>(c), static_cast<uint32_t>(c));
    return true;
  });
  if (single && !children.empty()) return chars(std::move(set));
  return add({ExprKind::kAlt, 0, 0, 0, std::move(children)});
}

ExprId ExprPool::repeat(ExprId child, uint32_t min, uint32_t max) {
  return add({ExprKind::kRepeat, min, max, 0, {child}});
}

namespace {

void lower_utf8(const CharSet& set, Nfa* nfa, uint32_t from, uint32_t to) {
  for (const Utf8Run& run : utf8_runs(set)) {
    uint32_t at = from;
    for (int i = 0; i < run.length; ++i) {
      const uint32_t next = i + 1 == run.length ? to : nfa->new_state();
      nfa->byte(at, run.low[i], run.high[i], next);
      at = next;
    }
  }
}

void hex_digit(Nfa* nfa, uint32_t from, uint32_t value, uint32_t to) {
  const auto put = [&](char c) { nfa->byte(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to); };
  if (value < 10) return put(static_cast<char>('0' + value));
  put(static_cast<char>('a' + value - 10));
  put(static_cast<char>('A' + value - 10));
}

void any_hex(Nfa* nfa, uint32_t from, uint32_t to) {
  nfa->byte(from, '0', '9', to);
  nfa->byte(from, 'a', 'f', to);
  nfa->byte(from, 'A', 'F', to);
}

constexpr std::pair<uint32_t, char> kShortEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                                       {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};

CharSet needs_escape() {
  CharSet set;
  set.add(0, 0x1F);
  set.add('"', '"');
  set.add('\\', '\\');
  set.normalize();
  return set;
}

}  // namespace

void lower_chars(const CharSet& set, Encoding encoding, Nfa* nfa, uint32_t from, uint32_t to) {
  if (encoding == Encoding::kUtf8) return lower_utf8(set, nfa, from, to);
  static const CharSet kEscaped = needs_escape();
  lower_utf8(set.minus(kEscaped), nfa, from, to);
  const CharSet escaped = set.intersect(kEscaped);
  if (escaped.empty()) return;
  const uint32_t slash = nfa->new_state();
  nfa->byte(from, '\\', '\\', slash);
  uint32_t hex[2] = {Nfa::kNone, Nfa::kNone};  // after \u000 and \u001
  for (const CharRange& range : escaped.ranges()) {
    for (uint32_t c = range.low; c <= range.high; ++c) {
      const auto* known = std::find_if(std::begin(kShortEscapes), std::end(kShortEscapes),
                                       [c](const auto& e) { return e.first == c; });
      if (known != std::end(kShortEscapes)) {
        nfa->byte(slash, static_cast<uint8_t>(known->second), static_cast<uint8_t>(known->second), to);
        continue;
      }
      uint32_t& last = hex[c >> 4];
      if (last == Nfa::kNone) {
        last = nfa->new_state();
        nfa->bytes(slash, c >> 4 ? "u001" : "u000", last);
      }
      hex_digit(nfa, last, c & 15, to);
    }
  }
}

void lower_json_char(Nfa* nfa, uint32_t from, uint32_t to) {
  lower_utf8(CharSet::all().minus(needs_escape()), nfa, from, to);
  const uint32_t slash = nfa->new_state(), u = nfa->new_state();
  nfa->byte(from, '\\', '\\', slash);
  for (char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'})
    nfa->byte(slash, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
  nfa->byte(slash, 'u', 'u', u);
  const uint32_t three = nfa->new_state(), two = nfa->new_state(), one = nfa->new_state();
  const uint32_t d = nfa->new_state();  // D: then 0-7, or a high surrogate, which a low one must follow
  for (uint32_t v = 0; v < 16; ++v) hex_digit(nfa, u, v, v == 13 ? d : three);
  any_hex(nfa, three, two);
  any_hex(nfa, two, one);
  any_hex(nfa, one, to);
  const uint32_t high = nfa->new_state(), high2 = nfa->new_state(), pair = nfa->new_state();
  const uint32_t low = nfa->new_state(), low2 = nfa->new_state();
  for (uint32_t v = 0; v < 8; ++v) hex_digit(nfa, d, v, two);
  for (uint32_t v = 8; v < 12; ++v) hex_digit(nfa, d, v, high);
  any_hex(nfa, high, high2);
  any_hex(nfa, high2, pair);
  nfa->bytes(pair, "\\u", low);
  hex_digit(nfa, low, 13, low2);
  for (uint32_t v = 12; v < 16; ++v) hex_digit(nfa, low2, v, two);
}

/// Adds the characters that a text of the expression can begin with; true when it may be empty.
bool Lowering::add_first(ExprId id, CharSet* first) const {
  const auto& node = pool_.node(id);
  if (!nfa_->budget()->spend()) return false;
  switch (node.kind) {
    case ExprKind::kChars:
      first->add(pool_.set(node));
      return false;
    case ExprKind::kText: {
      size_t at = 0;
      const std::string& text = pool_.text(node);
      const int32_t c = text.empty() ? -1 : read_utf8(text, &at);
      if (c >= 0) first->add(static_cast<uint32_t>(c), static_cast<uint32_t>(c));
      return text.empty();
    }
    case ExprKind::kSeq:
      return std::all_of(node.children.begin(), node.children.end(),
                         [&](ExprId child) { return add_first(child, first); });
    case ExprKind::kAlt: {
      bool empty = false;
      for (ExprId child : node.children) empty |= add_first(child, first);
      return empty;
    }
    case ExprKind::kRepeat:
      return add_first(node.children[0], first) || node.min == 0;
    case ExprKind::kEmpty:
      return true;
    case ExprKind::kNever:
    case ExprKind::kAnchor:
      return false;
    default:
      first->add(0, kMaxCodePoint);
      return false;
  }
}

void Lowering::sequence(const ExprPool::Node& node, uint32_t from, uint32_t to, const CharSet& follow) {
  if (node.children.empty()) nfa_->empty(from, to);
  for (size_t i = 0; i < node.children.size(); ++i) {
    const uint32_t next = i + 1 == node.children.size() ? to : nfa_->new_state();
    CharSet after;
    if (pool_.node(node.children[i]).kind != ExprKind::kText) {
      bool empty = true;
      for (size_t j = i + 1; empty && j < node.children.size(); ++j)
        empty = add_first(node.children[j], &after);
      if (empty) after.add(follow);
      after.normalize();
    }
    lower(node.children[i], from, next, after);
    from = next;
  }
}

void Lowering::repeat(const ExprPool::Node& node, uint32_t from, uint32_t to, const CharSet& follow) {
  constexpr uint32_t kWrittenOut = 4;  // fewer copies than this are cheaper as states
  // Where an item may as well be what follows, every count of a counted rule is a way of its own; states are
  // then cheaper for longer.
  constexpr uint32_t kWrittenOutUnclear = 64;
  const ExprId child = node.children[0];
  const auto& item = pool_.node(child);
  const bool single = item.kind == ExprKind::kChars || item.kind == ExprKind::kJsonChar;
  const uint32_t largest = node.max == kUnbounded ? std::max(node.min, 2u) : node.max;
  CharSet own;
  if (calls_ && single && largest > kWrittenOut && largest <= kWrittenOutUnclear) add_first(child, &own);
  own.normalize();
  if (calls_ && single && largest > kWrittenOut && own.intersect(follow).empty()) {
    std::string name(1, item.kind == ExprKind::kJsonChar ? 'j' : encoding_ == Encoding::kJson ? 'e' : 'u');
    if (item.kind == ExprKind::kChars) {
      for (const auto& r : pool_.set(item).ranges())
        name += std::to_string(r.low) + "-" + std::to_string(r.high) + ",";
    }
    uint32_t rule = builder_->find_counted(name, node.min, node.max);
    if (rule == GrammarBuilder::kNoRule)
      rule =
          builder_->counted(name, regular(pool_, child, encoding_, builder_->budget()), node.min, node.max);
    if (rule != GrammarBuilder::kNoRule) return nfa_->call(from, rule, to);
  }
  CharSet after = follow;
  if (!single && largest > 1) {
    add_first(child, &after);
    after.normalize();
  }
  uint32_t at = from;
  for (uint32_t i = 0; i < node.min && nfa_->budget()->ok(); ++i) {
    const uint32_t next = nfa_->new_state();
    lower(child, at, next, after);
    at = next;
  }
  if (node.max == kUnbounded) {
    const uint32_t loop = nfa_->new_state();
    nfa_->empty(at, loop);
    lower(child, loop, loop, after);
    nfa_->empty(loop, to);
    return;
  }
  for (uint32_t i = node.min; i < node.max && nfa_->budget()->ok(); ++i) {
    const uint32_t next = nfa_->new_state();
    nfa_->empty(at, to);
    lower(child, at, next, after);
    at = next;
  }
  nfa_->empty(at, to);
}

void Lowering::lower(ExprId id, uint32_t from, uint32_t to, const CharSet& follow) {
  if (!nfa_->budget()->spend()) return;
  const auto& node = pool_.node(id);
  switch (node.kind) {
    case ExprKind::kEmpty:
      return nfa_->empty(from, to);
    case ExprKind::kNever:
    case ExprKind::kAnchor:
      return;
    case ExprKind::kBytes:
      return nfa_->bytes(from, pool_.text(node), to);
    case ExprKind::kText: {
      const std::string& text = pool_.text(node);
      if (encoding_ == Encoding::kUtf8) return nfa_->bytes(from, text, to);
      for (size_t i = 0; i < text.size();) {
        const int32_t c = read_utf8(text, &i);
        const uint32_t next = nfa_->new_state();
        if (c >= 0) lower_chars(CharSet::of(static_cast<uint32_t>(c)), encoding_, nfa_, from, next);
        from = next;
      }
      return nfa_->empty(from, to);
    }
    case ExprKind::kChars:
      return lower_chars(pool_.set(node), encoding_, nfa_, from, to);
    case ExprKind::kJsonChar:
      return lower_json_char(nfa_, from, to);
    case ExprKind::kSeq:
      return sequence(node, from, to, follow);
    case ExprKind::kAlt:
      for (ExprId child : node.children) {
        // Own end states: a loop at the end of one branch must not lead into another.
        const uint32_t begin = nfa_->new_state(), end = nfa_->new_state();
        nfa_->empty(from, begin);
        lower(child, begin, end, follow);
        nfa_->empty(end, to);
      }
      return;
    case ExprKind::kRepeat:
      return repeat(node, from, to, follow);
    case ExprKind::kRule:
      if (calls_) nfa_->call(from, node.index, to);
      return;
  }
}

Automaton regular(const ExprPool& pool, ExprId id, Encoding encoding, CompileBudget* budget) {
  Nfa nfa(budget);
  const uint32_t from = nfa.new_state(), to = nfa.new_state();
  Lowering(pool, encoding, &nfa).lower(id, from, to);
  return determinize(nfa, from, to, {});
}

}  // namespace firesteel::grammar
