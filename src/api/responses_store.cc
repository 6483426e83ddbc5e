#include "api/responses_store.h"

namespace firesteel::api {
namespace {

constexpr size_t kOverhead = 256;  // of an object and its places in the indexes

int64_t cost_of(const StoredResponse& r) {
  return static_cast<int64_t>(kOverhead + r.fields.capacity() + r.turns.capacity() * sizeof(r.turns[0]) +
                              r.item_ids.size() * kOverhead);
}

int64_t cost_of(const ResponseTurn& t) {
  return static_cast<int64_t>(kOverhead + t.input.capacity() + t.output.capacity());
}

// `value` behind a pointer that counts its bytes for as long as it lives.
template <typename T>
std::shared_ptr<const T> counted(T value, const std::shared_ptr<std::atomic<int64_t>>& bytes) {
  const int64_t cost = cost_of(value);
  bytes->fetch_add(cost);
  return std::shared_ptr<const T>(new T(std::move(value)), [bytes, cost](const T* t) {
    delete t;
    bytes->fetch_sub(cost);
  });
}

}  // namespace

ResponseStore::ResponseStore(size_t max_responses, int64_t max_bytes)
    : max_responses_(max_responses), max_bytes_(max_bytes) {}

std::shared_ptr<const ResponseTurn> ResponseStore::make_turn(std::string input, std::string output) {
  return counted(ResponseTurn{std::move(input), std::move(output)}, bytes_);
}

void ResponseStore::put(const std::string& id, StoredResponse response) {
  auto kept = counted(std::move(response), bytes_);
  std::lock_guard lock(mutex_);
  if (const auto old = by_id_.find(id); old != by_id_.end()) erase(old->second);
  entries_.emplace_front(id, std::move(kept));
  by_id_[id] = entries_.begin();
  for (const std::string& item : entries_.front().second->item_ids) by_item_[item] = entries_.begin();
  while (!entries_.empty() && (entries_.size() > max_responses_ || bytes_->load() > max_bytes_)) {
    erase(std::prev(entries_.end()));
  }
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->second;
}

std::shared_ptr<const StoredResponse> ResponseStore::find_item(const std::string& item_id) {
  std::lock_guard lock(mutex_);
  const auto found = by_item_.find(item_id);
  if (found == by_item_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->second;
}

bool ResponseStore::erase(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  erase(found->second);
  return true;
}

size_t ResponseStore::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

void ResponseStore::erase(Entries::iterator entry) {
  for (const std::string& item : entry->second->item_ids) by_item_.erase(item);
  by_id_.erase(entry->first);
  entries_.erase(entry);
}

}  // namespace firesteel::api
