#include "grammar/matcher.h"

#include <algorithm>
#include <string>
#include <utility>

namespace firesteel::grammar {

namespace {

/// Work for one mask, in steps of up to a hundred nanoseconds. Grammars of everyday take thousands at most.
constexpr int64_t kMaxMaskSteps = 300'000;
constexpr int64_t kTableSteps = 500;  // applying one table

void set_bit(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) >> 5] |= 1u << (static_cast<uint32_t>(id) & 31);
}

}  // namespace

Matcher::Matcher(std::shared_ptr<const CompiledGrammar> grammar)
    : grammar_(std::move(grammar)),
      stacks_(&grammar_->grammar()),
      walk_(&grammar_->vocabulary(), &stacks_, &work_),
      memos_(kMemos) {
  const Grammar& g = grammar_->grammar();
  configs_.push_back({g.rule(g.root()).start, 0, Stacks::kBottom, 0});
  const bool complete = stacks_.close(&configs_, 0);
  steps_.push_back({0, stacks_.mark(), complete, false});
}

Matcher::Matcher(const Matcher& other)
    : grammar_(other.grammar_),
      stacks_(other.stacks_),
      configs_(other.configs_),
      steps_(other.steps_),
      accepted_(other.accepted_),
      walk_(&grammar_->vocabulary(), &stacks_, &work_),
      memos_(other.memos_),
      next_memo_(other.next_memo_) {}

Matcher& Matcher::operator=(const Matcher& other) {
  if (this == &other) return *this;
  grammar_ = other.grammar_;
  stacks_ = other.stacks_;
  configs_ = other.configs_;
  steps_ = other.steps_;
  accepted_ = other.accepted_;
  walk_ = TrieWalk(&grammar_->vocabulary(), &stacks_, &work_);
  memos_ = other.memos_;
  next_memo_ = other.next_memo_;
  return *this;
}

/// Appends the set after `bytes` as the new last one; false leaves everything as it was.
bool Matcher::read(std::string_view bytes) {
  const size_t end = configs_.size();
  const Stacks::Mark before = stacks_.mark();
  size_t begin = steps_.back().begin, last = end;
  bool complete = false;
  for (char c : bytes) {
    const Stacks::Mark mark = stacks_.mark();
    complete = stacks_.step(&configs_, begin, last, static_cast<uint8_t>(c));
    if (configs_.size() == last) {
      configs_.resize(end);
      stacks_.release(before);
      return false;
    }
    stacks_.canonicalize(&configs_, last, mark);
    begin = last;
    last = configs_.size();
  }
  configs_.erase(configs_.begin() + static_cast<ptrdiff_t>(end),
                 configs_.begin() + static_cast<ptrdiff_t>(begin));
  steps_.push_back({end, before, complete, false});
  return true;
}

bool Matcher::accept(int32_t token) {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  if (token < 0 || token >= vocabulary.size() || is_finished()) return false;
  if (vocabulary.is_end(token)) {
    if (!is_complete()) return false;
    steps_.push_back({configs_.size(), stacks_.mark(), true, true});
  } else if (vocabulary.bytes(token).empty() || !read(vocabulary.bytes(token))) {
    return false;
  }
  ++accepted_;
  forget();
  return true;
}

bool Matcher::allows(int32_t token) { return accept(token) && rollback(1); }

/// Drops history that is too old to return to, many steps at a time.
void Matcher::forget() {
  if (steps_.size() <= 2 * kMaxRollback + 1) return;
  const size_t drop = steps_.size() - 1 - kMaxRollback;
  const size_t gone = steps_[drop].begin;
  steps_.erase(steps_.begin(), steps_.begin() + static_cast<ptrdiff_t>(drop));
  configs_.erase(configs_.begin(), configs_.begin() + static_cast<ptrdiff_t>(gone));
  for (Step& step : steps_) step.begin -= gone;
}

bool Matcher::rollback(size_t tokens) {
  if (tokens >= steps_.size()) return false;
  for (; tokens > 0; --tokens, --accepted_) {
    configs_.resize(steps_.back().begin);
    stacks_.release(steps_.back().mark);
    steps_.pop_back();
  }
  for (Memo& memo : memos_) {
    if (memo.node >= stacks_.mark().nodes) memo.table = nullptr;
  }
  return true;
}

void Matcher::fill_mask(std::span<uint32_t> mask) {
  std::fill(mask.begin(), mask.end(), 0);
  if (is_finished()) return;
  fill_from_tables(mask);
  if (is_complete()) {
    for (int32_t id : grammar_->vocabulary().end_ids()) set_bit(mask, id);
  }
}

void Matcher::fill_from_tables(std::span<uint32_t> mask) {
  const Grammar& g = grammar_->grammar();
  int64_t steps = kMaxMaskSteps;
  work_.clear();
  for (size_t i = steps_.back().begin; i < configs_.size(); ++i) {
    const Config& config = configs_[i];
    if (config.entered) continue;  // part of its caller's table, or of the walk below
    const StateTable* table = grammar_->table(config.state);
    if (table == nullptr) {
      work_.push_back(config);
      continue;
    }
    if ((steps -= kTableSteps) <= 0) break;
    const Rule& rule = g.rule(g.state(config.state).rule);
    table->apply(rule.max == kUnbounded ? kUnbounded : rule.max - config.count, mask, &scratch_);
  }
  if (!work_.empty()) fill_by_walking(mask, &steps);
  for (size_t i = steps_.back().begin; i < configs_.size(); ++i) {
    const Config config = configs_[i];
    const StateTable* table = config.entered ? nullptr : grammar_->table(config.state);
    if (table != nullptr && !table->exits.empty() && config.node != Stacks::kBottom)
      fill_exits(*table, config, mask, &steps);
  }
}

/// The configurations in work_, all at once.
void Matcher::fill_by_walking(std::span<uint32_t> mask, int64_t* steps) {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  const Stacks::Mark mark = stacks_.mark();
  for (Config& config : work_) config.entered = 2;  // its rule's end is a configuration of its own
  stacks_.close(&work_, 0);
  const ByteSet bytes = first_bytes(grammar_->grammar(), work_, 0);
  walk_.run(0, vocabulary.node_count(), 0, 0, bytes, steps, [&](uint32_t node, bool) {
    for (int32_t id : vocabulary.tokens_at(node)) set_bit(mask, id);
  });
  work_.clear();
  stacks_.release(mark);
}

/// Tokens that go on in the caller after the rule of `config` ended within them.
void Matcher::fill_exits(const StateTable& table, const Config& config, std::span<uint32_t> mask,
                         int64_t* steps) {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  const Grammar& g = grammar_->grammar();
  const Rule& rule = g.rule(g.state(config.state).rule);
  if (!rule.counted) {
    for (const Memo& memo : memos_) {
      if (memo.table != &table || memo.node != config.node) continue;
      for (int32_t id : memo.ids) set_bit(mask, id);
      return;
    }
  }
  Memo& memo = memos_[next_memo_];
  memo.ids.clear();
  const Stacks::Mark mark = stacks_.mark();
  work_.clear();
  stacks_.after(&work_, config.node);
  const ByteSet bytes = first_bytes(g, work_, 0);
  *steps -= static_cast<int64_t>(table.exits.size());
  for (const StateTable::Exit& exit : table.exits) {
    if (*steps <= 0) break;
    if (rule.counted) {
      const uint64_t count = static_cast<uint64_t>(config.count) + exit.count;
      if (count < rule.min || count > rule.max) continue;
    }
    walk_.run(exit.node, vocabulary.skip(exit.node), vocabulary.depth(exit.node) - 1, 0, bytes, steps,
              [&](uint32_t node, bool) {
                for (int32_t id : vocabulary.tokens_at(node)) {
                  set_bit(mask, id);
                  memo.ids.push_back(id);
                }
              });
  }
  work_.clear();
  stacks_.release(mark);
  memo.table = nullptr;
  if (rule.counted || *steps <= 0) return;
  memo.table = &table;
  memo.node = config.node;
  next_memo_ = (next_memo_ + 1) % kMemos;
}

std::string Matcher::forced_bytes(size_t limit) {
  std::string out;
  if (is_finished() || is_complete()) return out;
  const Stacks::Mark mark = stacks_.mark();
  work_.assign(configs_.begin() + static_cast<ptrdiff_t>(steps_.back().begin), configs_.end());
  size_t begin = 0;
  while (out.size() < limit) {
    const ByteSet bytes = first_bytes(grammar_->grammar(), work_, begin);
    int only = -1, ways = 0;
    for (int b = 0; b < 256 && ways < 2; ++b) {
      if (!bytes.has(static_cast<uint8_t>(b))) continue;
      only = b;
      ++ways;
    }
    if (ways != 1 || only >= 0xF8) break;
    const size_t end = work_.size();
    const bool complete = stacks_.step(&work_, begin, end, static_cast<uint8_t>(only));
    begin = end;
    out += static_cast<char>(only);
    if (complete) break;
  }
  work_.clear();
  stacks_.release(mark);
  return out;
}

size_t Matcher::bytes() const {
  size_t total = stacks_.bytes() + (configs_.capacity() + work_.capacity()) * sizeof(Config) +
                 steps_.capacity() * sizeof(Step) + scratch_.capacity() * sizeof(uint32_t);
  for (const Memo& memo : memos_) total += memo.ids.capacity() * sizeof(int32_t);
  return total;
}

}  // namespace firesteel::grammar
