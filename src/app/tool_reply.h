// One chat reply with tool calls, as a strict client reads it: whole, or put together from a stream, with the
// first break of the protocol noted. For checks of any OpenAI-compatible server. Blocking; any thread.
#pragma once

#include <string>
#include <vector>

#include "app/chat_server.h"
#include "http/event_reader.h"

namespace firesteel {

struct ToolReply {
  struct Call {
    std::string id, name, arguments;  // arguments: JSON text of an object
  };
  std::string reasoning, content, finish_reason;
  std::vector<Call> calls;
  std::string fault;  // what no client should get; "": nothing

  /// Notes `what` unless something was noted before.
  void fail(std::string what);
  /// Notes what is wrong with the reply as a whole: call ids, arguments, finish reason, markup in the text.
  void check();
};

/// Reads the body of a whole reply; check() is done.
ToolReply read_whole_reply(const std::string& body);

/// Puts a streamed reply together. Calls may come whole or in pieces.
class StreamedReply {
 public:
  void add(const http::EventReader::Event& event);
  /// The end of the stream; check() is done.
  ToolReply take();

 private:
  void add_choice(const nlohmann::ordered_json& choice);
  void add_call(const nlohmann::ordered_json& delta);

  ToolReply reply_;
  int finishes_ = 0;
  bool role_ = false, done_ = false;
};

/// Sends a chat request, `body` with its "stream" set. What the server answers instead of a reply is an
/// error: kUnsupported when it says that it knows the field and does not do it (code unsupported_parameter),
/// kUnavailable otherwise; kIo for what the network does.
Result<ToolReply> ask_for_tools(const ChatServer& server, nlohmann::ordered_json body, bool streamed);

}  // namespace firesteel
