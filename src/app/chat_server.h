// An OpenAI-compatible server as the tools of this program ask it (benches, checks). Blocking; any thread.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "http/client.h"

namespace firesteel {

struct ChatServer {
  http::Url url;
  std::string model, key;                      // key "": none
  std::chrono::milliseconds silence{600'000};  // longest wait for the next bytes
};

inline constexpr std::chrono::milliseconds kConnectTimeout{10'000};

/// Both http://host and http://host/v1 are what people call a server's URL. kInvalidArgument, kUnsupported:
/// parse_url()'s.
Result<http::Url> parse_server_url(const std::string& text);
/// The key, if there is one.
http::Headers headers_for(const ChatServer& server);
/// The first model that the server lists. kUnavailable when it lists none or refuses, kIo when it is not
/// there.
Result<std::string> first_model(const ChatServer& server);

/// The member, or null when it is absent, JSON null, or `object` is null or no object.
const nlohmann::ordered_json* member(const nlohmann::ordered_json* object, const char* name);
/// "message" of an error body, or what can be shown of the body, in one line.
std::string error_text(const std::string& body);

}  // namespace firesteel
