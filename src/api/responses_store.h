// Responses that clients may continue from, fetch or delete by their id. In memory only: the least recently
// used ones go when there are too many or they hold too much. Owned by the Service; every method may be
// called from any thread.
//
// A conversation is a list of turns that its responses share, so that a long one is not copied at every turn,
// and stays whole when its first responses are forgotten.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace firesteel::api {

/// What one request added and what was replied, as texts of JSON lists of items.
struct ResponseTurn {
  std::string input, output;
};

struct StoredResponse {
  std::vector<std::shared_ptr<const ResponseTurn>> turns;  // of the whole conversation; the last is its own
  std::string fields;                                      // its object's text, up to where `output` follows
  std::vector<std::string> item_ids;                       // of its output

  /// The response object.
  std::string body() const { return fields + ",\"output\":" + turns.back()->output + "}"; }
};

class ResponseStore {
 public:
  static constexpr size_t kMaxResponses = 1024;
  static constexpr int64_t kMaxBytes = 256ll << 20;

  explicit ResponseStore(size_t max_responses = kMaxResponses, int64_t max_bytes = kMaxBytes);

  /// Counts the turn's bytes for as long as somebody holds it.
  std::shared_ptr<const ResponseTurn> make_turn(std::string input, std::string output);
  /// `response` has at least one turn. What does not fit beside it is forgotten; so is itself, when it is too
  /// large.
  void put(const std::string& id, StoredResponse response);
  /// Null: not here (any more).
  std::shared_ptr<const StoredResponse> find(const std::string& id);
  /// The response whose output has the item, or null.
  std::shared_ptr<const StoredResponse> find_item(const std::string& item_id);
  bool erase(const std::string& id);

  size_t size() const;
  /// Of everything kept, and of turns that are still in use elsewhere.
  int64_t bytes() const { return bytes_->load(); }

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const StoredResponse>>;
  using Entries = std::list<Entry>;  // most recently used first
  void erase(Entries::iterator entry);

  const size_t max_responses_;
  const int64_t max_bytes_;
  const std::shared_ptr<std::atomic<int64_t>> bytes_ = std::make_shared<std::atomic<int64_t>>(0);

  mutable std::mutex mutex_;  // of everything below
  Entries entries_;
  std::unordered_map<std::string, Entries::iterator> by_id_, by_item_;
};

}  // namespace firesteel::api
