#include "grammar/tables.h"

#include <algorithm>

#include "grammar/table_builder.h"

namespace firesteel::grammar {

namespace {

void set_bit(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) >> 5] |= 1u << (static_cast<uint32_t>(id) & 31);
}

void clear_bit(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) >> 5] &= ~(1u << (static_cast<uint32_t>(id) & 31));
}

void merge(std::span<uint32_t> mask, const std::vector<uint32_t>& bits) {
  for (size_t w = 0; w < bits.size(); ++w) mask[w] |= bits[w];
}

}  // namespace

void StateTable::apply(uint32_t items, std::span<uint32_t> mask, std::vector<uint32_t>* scratch) const {
  if (base != nullptr) {
    *scratch = base->bits;
    for (int32_t id : cleared) clear_bit(*scratch, id);
    merge(mask, *scratch);
    for (int32_t id : added) set_bit(mask, id);
    return;
  }
  for (int32_t id : ids) set_bit(mask, id);
  if (counted && bits.empty()) {
    for (size_t i = beyond.size(); i-- > 0 && beyond[i].items <= items;) set_bit(mask, beyond[i].id);
    return;
  }
  if (bits.empty() || items == 0) return;
  if (!within.empty() && items <= kLevels) return merge(mask, within[items - 1]);
  if (beyond.empty() || beyond.front().items <= items) return merge(mask, bits);
  *scratch = bits;
  for (const Need& need : beyond) {
    if (need.items <= items) break;
    clear_bit(*scratch, need.id);
  }
  merge(mask, *scratch);
}

size_t StateTable::bytes() const {
  size_t total = sizeof(StateTable) + bits.capacity() * sizeof(uint32_t) +
                 (ids.capacity() + cleared.capacity() + added.capacity()) * sizeof(int32_t) +
                 exits.capacity() * sizeof(Exit) + beyond.capacity() * sizeof(Need);
  for (const auto& level : within) total += level.capacity() * sizeof(uint32_t);
  return total;
}

bool TableStore::find(const std::string& key, std::shared_ptr<const StateTable>* table) const {
  const std::lock_guard lock(mutex_);
  const auto it = tables_.find(key);
  if (it == tables_.end()) return false;
  *table = it->second;
  return true;
}

void TableStore::put(const std::string& key, std::shared_ptr<const StateTable> table) {
  const size_t size = key.size() + 64 + (table ? table->bytes() : 0);
  const std::lock_guard lock(mutex_);
  if (bytes_ + size > kMaxBytes) {
    tables_.clear();
    bytes_ = 0;
  }
  if (tables_.emplace(key, std::move(table)).second) bytes_ += size;
}

Result<std::shared_ptr<const CompiledGrammar>> CompiledGrammar::create(
    std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary,
    CompileBudget* budget) {
  auto out = std::make_shared<CompiledGrammar>();
  out->tables_.resize(grammar->state_count());
  out->bytes_ = grammar->bytes() + out->tables_.size() * sizeof(out->tables_[0]);
  TableBuilder builder(*grammar, *vocabulary, budget);
  size_t table_bytes = 0;
  for (uint32_t s = 0; s < grammar->state_count(); ++s) {
    if (!budget->spend(64)) return budget->error();
    out->tables_[s] = builder.build(s);
    if (out->tables_[s]) table_bytes += out->tables_[s]->bytes();
    if (table_bytes > budget->limits().table_bytes) budget->exhaust("needs too much memory");
    if (!budget->ok()) return budget->error();
  }
  out->bytes_ += table_bytes;
  out->grammar_ = std::move(grammar);
  out->vocabulary_ = std::move(vocabulary);
  return std::shared_ptr<const CompiledGrammar>(std::move(out));
}

}  // namespace firesteel::grammar
