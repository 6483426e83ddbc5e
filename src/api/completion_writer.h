// Replies of POST /v1/completions, whole and streamed.
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

struct CompletionReplyOptions {
  std::string model;
  int choices = 1;
  bool stream = false;
  StreamUsage stream_usage = StreamUsage::kOnFinish;
  bool continuous_usage = false;
  std::vector<std::string> echo;  // put before each choice's text; empty: nothing
  const Tokenizer* tokenizer = nullptr;  // log-probabilities are wanted; outlives the writer
  std::vector<int32_t> first_ids;        // with both: the first token of each choice's prompt
};

std::unique_ptr<ReplyWriter> make_completion_writer(std::shared_ptr<http::Exchange> exchange,
                                                    CompletionReplyOptions options);

}  // namespace firesteel::api
