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
  int best_of = 1;  // choices made for each prompt, of which…
  int keep = 1;     // … so many with the highest mean log-probability are shown; whole replies
  std::vector<std::string> echo;         // put before each choice's text; empty: nothing
  const Tokenizer* tokenizer = nullptr;  // log-probabilities are wanted; outlives the writer
  std::vector<int32_t> first_ids;        // with both: the first token of each choice's prompt
  bool return_token_ids = false;
  std::vector<std::vector<int32_t>> prompts;  // shown then, of each choice
};

std::unique_ptr<ReplyWriter> make_completion_writer(std::shared_ptr<http::Exchange> exchange,
                                                    CompletionReplyOptions options);

}  // namespace firesteel::api
