// Replies of POST /v1/chat/completions, whole and streamed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/reply.h"
#include "api/settings.h"
#include "http/exchange.h"

namespace firesteel {
class Tokenizer;
}

namespace firesteel::api {

struct ChatReplyOptions {
  std::string model;
  int choices = 1;
  bool stream = false;
  StreamUsage stream_usage = StreamUsage::kOnFinish;
  bool continuous_usage = false;
  bool legacy_function = false;        // a call goes out as message.function_call
  bool exclude_reasoning = false;      // counted in usage, not shown
  std::string echo;                    // begins the content of every choice
  std::vector<int32_t> prompt_tokens;  // shown when return_token_ids is set
  bool return_token_ids = false;
  const Tokenizer* tokenizer = nullptr;  // log-probabilities are wanted; outlives the writer
};

std::unique_ptr<ReplyWriter> make_chat_writer(std::shared_ptr<http::Exchange> exchange,
                                              ChatReplyOptions options);

}  // namespace firesteel::api
