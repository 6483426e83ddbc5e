#include "api/reply_memory.h"

#include <openssl/evp.h>

#include <memory>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "text/tool_calls.h"

namespace firesteel::api {
namespace {

using Json = nlohmann::ordered_json;

/// SHA-256 of a growing sequence of texts, each with its length, so that no two sequences look alike.
class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  Digest(const Digest& other) : Digest() { CHECK(EVP_MD_CTX_copy_ex(context_.get(), other.context_.get()) == 1); }
  Digest& operator=(const Digest&) = delete;

  void add(std::string_view text) {
    const uint64_t size = text.size();
    CHECK(EVP_DigestUpdate(context_.get(), &size, sizeof size) == 1);
    CHECK(EVP_DigestUpdate(context_.get(), text.data(), text.size()) == 1);
  }
  /// Of what was added so far; more may follow.
  std::string value() const {
    Digest copy(*this);
    unsigned char out[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    CHECK(EVP_DigestFinal_ex(copy.context_.get(), out, &size) == 1);
    return {reinterpret_cast<const char*>(out), size};
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

std::string text_of(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// The same text for the same object, whatever the order of its keys.
std::string canonical(const Json& arguments) {
  return nlohmann::json(arguments).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string canonical_call(const std::string& name, const Json& arguments) {
  const std::string text = canonical(arguments);
  return std::to_string(name.size()) + ":" + name + std::to_string(text.size()) + ":" + text;
}

std::string signature_of(const std::string& before, const std::string& calls) {
  Digest digest;
  digest.add(before);
  digest.add(calls);
  return digest.value();
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::string calls_of(const Json& message) {
  std::string out;
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return out;
  for (const Json& call : *calls)
    out += canonical_call(call["function"]["name"].get<std::string>(), call["function"]["arguments"]);
  return out;
}

void add_message(const Json& message, Digest* digest) {
  const std::string& role = message["role"].get_ref<const std::string&>();
  digest->add(role);
  const Json& content = message["content"];
  if (!content.is_string()) {
    digest->add(text_of(content));
  } else {
    const std::string_view text = content.get_ref<const std::string&>();
    digest->add(role == "assistant" ? trimmed(text) : text);  // as the template shows it
  }
  digest->add(calls_of(message));
}

}  // namespace

std::string ReplyMemory::restore(Conversation* conversation) {
  Digest digest;
  for (Json& message : conversation->messages) {
    const std::string calls = calls_of(message);
    if (!calls.empty()) {
      std::vector<std::string> ids;
      for (const Json& call : message["tool_calls"]) ids.push_back(call.value("id", ""));
      const std::string signature = signature_of(digest.value(), calls);
      add_message(message, &digest);
      std::lock_guard lock(mutex_);
      const Reply* const reply = find(ids, signature);
      if (reply == nullptr) continue;
      if (!message.contains("reasoning_content") && !reply->reasoning.empty())
        message["reasoning_content"] = reply->reasoning;
      if (reply->calls != calls) continue;  // the client changed them
      for (size_t i = 0; i < ids.size(); ++i) {
        if (auto written = written_call(reply->markup[i])) {
          message["tool_calls"][i]["function"]["name"] = std::move(written->name);
          message["tool_calls"][i]["function"]["arguments"] = std::move(written->arguments);
        }
      }
      continue;
    }
    add_message(message, &digest);
  }
  return digest.value();
}

void ReplyMemory::remember(const std::string& before, std::string reasoning,
                           const std::vector<RememberedCall>& calls) {
  Reply reply;
  reply.reasoning = std::move(reasoning);
  reply.bytes = sizeof(Reply) + reply.reasoning.size();
  for (const RememberedCall& call : calls) {
    const auto arguments = parse_json(call.arguments);
    if (!arguments.ok()) return;
    reply.calls += canonical_call(call.name, *arguments);
    reply.ids.push_back(call.id);
    reply.markup.push_back(call.markup);
    reply.bytes += call.id.size() + call.markup.size();
  }
  reply.signature = signature_of(before, reply.calls);
  reply.bytes += reply.calls.size() + reply.signature.size();
  if (calls.empty() || reply.bytes > most_bytes_) return;
  std::lock_guard lock(mutex_);
  if (const auto old = by_signature_.find(reply.signature); old != by_signature_.end()) forget(old->second);
  bytes_ += reply.bytes;
  replies_.push_front(std::move(reply));
  for (const std::string& id : replies_.front().ids) by_id_[id] = replies_.begin();
  by_signature_[replies_.front().signature] = replies_.begin();
  while (replies_.size() > most_ || bytes_ > most_bytes_) forget(std::prev(replies_.end()));
}

size_t ReplyMemory::replies() const {
  std::lock_guard lock(mutex_);
  return replies_.size();
}

/// The reply whose calls have just these ids, else the one of this signature.
const ReplyMemory::Reply* ReplyMemory::find(const std::vector<std::string>& ids, const std::string& signature) {
  Place place = replies_.end();
  if (const auto by_id = by_id_.find(ids.front()); by_id != by_id_.end() && by_id->second->ids == ids)
    place = by_id->second;
  else if (const auto by_text = by_signature_.find(signature); by_text != by_signature_.end())
    place = by_text->second;
  else
    return nullptr;
  replies_.splice(replies_.begin(), replies_, place);
  return &*place;
}

void ReplyMemory::forget(Place place) {
  bytes_ -= place->bytes;
  for (const std::string& id : place->ids)
    if (const auto at = by_id_.find(id); at != by_id_.end() && at->second == place) by_id_.erase(at);
  by_signature_.erase(place->signature);
  replies_.erase(place);
}

}  // namespace firesteel::api
