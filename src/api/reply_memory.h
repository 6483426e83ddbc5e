// What the server remembers of its own replies with tool calls, so that a conversation that comes back reads as
// the model wrote it: the reasoning that clients leave out of their histories, and the calls' own markup where
// what the client was given was repaired (spec/api.md 4.2). Without it every earlier step would be shown an
// empty think block that the model never wrote, and a kept prefix would be read again.
//
// A reply is found by the ids of its calls, or, where a client renumbered them, by a signature over its calls
// and every message before them: it can only return to the conversation it was written for. The newest 1,024
// replies, 32 MiB. Thread safe.
#pragma once

#include <list>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/messages.h"

namespace firesteel::api {

struct RememberedCall {
  std::string id, name, arguments;  // as the client got them; arguments: JSON text
  std::string markup;               // as the model wrote them
};

class ReplyMemory {
 public:
  static constexpr size_t kReplies = 1024, kBytes = 32u << 20;
  explicit ReplyMemory(size_t replies = kReplies, size_t bytes = kBytes) : most_(replies), most_bytes_(bytes) {}

  /// Puts reasoning and markup back into the assistant turns of a normalized conversation. A turn's own reasoning
  /// wins. Returns the key of the whole conversation, of which a reply to it is remembered.
  std::string restore(Conversation* conversation);
  /// `before`: what restore() returned for the request.
  void remember(const std::string& before, std::string reasoning, const std::vector<RememberedCall>& calls);

  size_t replies() const;

 private:
  struct Reply {
    std::string signature, reasoning;
    std::string calls;  // canonical: equal texts mean equal calls, whatever their ids
    std::vector<std::string> ids, markup;
    size_t bytes = 0;
  };
  using Place = std::list<Reply>::iterator;

  const Reply* find(const std::vector<std::string>& ids, const std::string& signature);  // locked
  void forget(Place place);                                                              // locked

  const size_t most_, most_bytes_;
  mutable std::mutex mutex_;
  std::list<Reply> replies_;  // most recently used first
  std::unordered_map<std::string, Place> by_id_, by_signature_;
  size_t bytes_ = 0;
};

}  // namespace firesteel::api
