// Bytes of a Responses reply, whole or streamed, and what of it is stored.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "api/reply.h"
#include "api/responses_store.h"
#include "http/exchange.h"

namespace firesteel {
class Tokenizer;
}

namespace firesteel::api {

struct ResponsesReplyOptions {
  std::string model;
  bool stream = false;
  bool exclude_reasoning = false;
  const Tokenizer* tokenizer = nullptr;  // log-probabilities are wanted; outlives the writer
  std::string settings;          // members of the response object that repeat the request: `"tools":[],…`
  std::set<std::string> custom;  // names of tools whose calls are custom_tool_call items

  std::shared_ptr<ResponseStore> store;                    // null: the response is not kept
  std::vector<std::shared_ptr<const ResponseTurn>> turns;  // that it continues
  std::string input;                                       // ResponsesRequest::input
};

std::unique_ptr<ReplyWriter> make_responses_writer(std::shared_ptr<http::Exchange> exchange,
                                                   ResponsesReplyOptions options);

}  // namespace firesteel::api
