// Replies of POST /v1/messages, whole and streamed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "api/reply.h"
#include "http/exchange.h"

namespace firesteel::api {

struct MessagesReplyOptions {
  std::string model;
  bool stream = false;
  int64_t prompt_tokens = 0;  // what message_start says before anything is known of the cache
};

std::unique_ptr<ReplyWriter> make_messages_writer(std::shared_ptr<http::Exchange> exchange,
                                                  MessagesReplyOptions options);

}  // namespace firesteel::api
