#include "app/chat_server.h"

#include <algorithm>

#include "base/json.h"

namespace firesteel {

using Json = nlohmann::ordered_json;

const Json* member(const Json* object, const char* name) {
  if (object == nullptr || !object->is_object()) return nullptr;
  const auto it = object->find(name);
  return it == object->end() || it->is_null() ? nullptr : &*it;
}

std::string error_text(const std::string& body) {
  const auto json = parse_json(body);
  const Json* message = json.ok() ? member(member(&*json, "error"), "message") : nullptr;
  std::string text = message != nullptr && message->is_string() ? message->get<std::string>() : body;
  text.resize(std::min<size_t>(text.size(), 300));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 32) c = ' ';
  }
  return text;
}

Result<http::Url> parse_server_url(const std::string& text) {
  ASSIGN_OR_RETURN(http::Url url, http::parse_url(text));
  if (url.path.ends_with("/v1")) url.path.resize(url.path.size() - 3);
  return url;
}

http::Headers headers_for(const ChatServer& server) {
  http::Headers out;
  if (!server.key.empty()) out.push_back({"Authorization", "Bearer " + server.key});
  return out;
}

Result<std::string> first_model(const ChatServer& server) {
  ASSIGN_OR_RETURN(const http::ClientReply reply,
                   http::fetch(server.url, {"GET", "/v1/models", headers_for(server), ""}, kConnectTimeout));
  if (reply.status != 200) {
    return Error{ErrorCode::kUnavailable,
                 "/v1/models answers " + std::to_string(reply.status) + ": " + error_text(reply.body)};
  }
  const auto json = parse_json(reply.body);
  const Json* data = json.ok() ? member(&*json, "data") : nullptr;
  const Json* id =
      data != nullptr && data->is_array() && !data->empty() ? member(&data->front(), "id") : nullptr;
  if (id == nullptr || !id->is_string()) {
    return Error{ErrorCode::kUnavailable, "/v1/models lists no model: give --model"};
  }
  return id->get<std::string>();
}

}  // namespace firesteel
