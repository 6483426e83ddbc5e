// Replies of POST /v1/completions, whole and streamed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/reply.h"
#include "api/settings.h"
#include "http/exchange.h"

namespace firesteel::api {

struct CompletionReplyOptions {
  std::string model;
  int choices = 1;
  bool stream = false;
  StreamUsage stream_usage = StreamUsage::kOnFinish;
  bool continuous_usage = false;
  std::vector<std::string> echo;  // put before each choice's text; empty: nothing
};

std::unique_ptr<ReplyWriter> make_completion_writer(std::shared_ptr<http::Exchange> exchange,
                                                    CompletionReplyOptions options);

}  // namespace firesteel::api
