// One streamed chat reply of any OpenAI-compatible server, with the time of every visible piece. Blocking;
// one stream is used by one thread, several may run at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "app/bench_stats.h"
#include "app/chat_server.h"
#include "base/result.h"
#include "http/client.h"

namespace firesteel {

struct ChatAsk {
  std::string question;
  int tokens = 400;     // of the reply
  bool exactly = true;  // no fewer: min_tokens, ignore_eos and no stop strings
};

struct ChatStream {
  StreamTimes times;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = -1;  // -1: the server does not say
  int64_t rounds = -1;         // of the engine, likewise
  std::string text;            // what was visible, reasoning included
  std::string finish_reason;
  bool plain = false;  // the server refused the fields that fix the length, and was asked without them
};

/// The body of a request; `exact`: with the fields that fix the length.
std::string chat_body(const ChatServer& server, const ChatAsk& ask, bool exact);

/// A connection that waits for its moment, so that several can start together.
class ChatCall {
 public:
  static Result<ChatCall> open(const ChatServer& server, ChatAsk ask);
  /// Sends and reads to the end. kIo and kUnavailable for what the server or the network does wrong: a status
  /// other than 200, an error event, a stream without its end or without usage.
  Result<ChatStream> run();

 private:
  ChatCall(const ChatServer& server, ChatAsk ask, std::unique_ptr<http::Client> client)
      : server_(server), ask_(std::move(ask)), client_(std::move(client)) {}
  Result<ChatStream> attempt(bool exact, int* status);

  ChatServer server_;
  ChatAsk ask_;
  std::unique_ptr<http::Client> client_;
};

}  // namespace firesteel
