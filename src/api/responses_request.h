// POST /v1/responses: a body as the chat request that it is equivalent to. Worker threads.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "api/chat_request.h"
#include "api/responses_items.h"
#include "api/responses_store.h"
#include "api/responses_tools.h"

namespace firesteel::api {

/// JSON text that one conversation may be made of beside the request's own body: what it continues, and the
/// items that it refers to.
inline constexpr size_t kMaxEarlierBytes = 96u << 20;

struct ResponsesRequest {
  Json chat;      // the body of POST /v1/chat/completions that gives the same reply
  Json settings;  // fields that the response object repeats, as far as the body alone decides them
  ItemTranslator items;
  ResponsesTools tools;
  bool store = true;
  bool truncate = false;                                   // drop the oldest messages until it fits
  std::vector<std::shared_ptr<const ResponseTurn>> turns;  // that it continues
  std::string input;  // what it adds, as text of a JSON list of items; "" when it is not stored

  /// An error about the chat request as one about this.
  ApiError translate(ApiError error) const;
};

/// `body` is an object. What the chat request checks itself is not checked here.
std::variant<ResponsesRequest, ApiError> translate_responses_request(
    Json body, ResponseStore& store, size_t max_earlier_bytes = kMaxEarlierBytes);

}  // namespace firesteel::api
