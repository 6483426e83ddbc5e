#include "app/bench_stream.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/json.h"
#include "http/event_reader.h"

namespace firesteel {
namespace {

using Json = nlohmann::ordered_json;

int64_t whole_number(const Json* value, int64_t otherwise) {
  return value != nullptr && value->is_number_integer() ? value->get<int64_t>() : otherwise;
}

/// Puts a stream together out of its events.
class Assembler {
 public:
  explicit Assembler(int64_t sent) { out_.times.sent = sent; }

  void add(const http::EventReader::Event& event, int64_t at) {
    if (event.data == "[DONE]") {
      done_ = true;
      return;
    }
    const auto chunk = parse_json(event.data);
    if (!chunk.ok()) return fail("an event is no JSON: " + event.data.substr(0, 200));
    if (member(&*chunk, "error") != nullptr) return fail(error_text(event.data));
    if (const Json* usage = member(&*chunk, "usage"); usage != nullptr && usage->is_object()) {
      out_.times.tokens = whole_number(member(usage, "completion_tokens"), 0);
      out_.prompt_tokens = whole_number(member(usage, "prompt_tokens"), 0);
      out_.cached_tokens = whole_number(member(member(usage, "prompt_tokens_details"), "cached_tokens"), -1);
      has_usage_ = true;
    }
    out_.rounds = whole_number(member(member(&*chunk, "server_stats"), "rounds"), out_.rounds);
    const Json* choices = member(&*chunk, "choices");
    if (choices == nullptr || !choices->is_array() || choices->empty()) return;
    const Json* choice = &choices->front();
    bool visible = false;
    for (const char* field : {"reasoning_content", "reasoning", "content"}) {
      const Json* text = member(member(choice, "delta"), field);
      if (text == nullptr || !text->is_string() || text->get_ref<const std::string&>().empty()) continue;
      out_.text += text->get_ref<const std::string&>();
      visible = true;
    }
    if (visible) out_.times.visible.push_back(at);
    if (const Json* reason = member(choice, "finish_reason"); reason != nullptr && reason->is_string()) {
      out_.finish_reason = reason->get<std::string>();
    }
  }

  Result<ChatStream> take() {
    if (error_) return *error_;
    if (!done_) return Error{ErrorCode::kIo, "the stream ended without [DONE]"};
    if (!has_usage_)
      return Error{ErrorCode::kUnavailable, "the stream carries no usage, so its tokens cannot be counted"};
    return std::move(out_);
  }
  bool failed() const { return error_.has_value(); }

 private:
  void fail(std::string message) {
    if (!error_) error_ = Error{ErrorCode::kUnavailable, "the stream failed: " + std::move(message)};
  }
  ChatStream out_;
  bool done_ = false, has_usage_ = false;
  std::optional<Error> error_;
};

}  // namespace

std::string chat_body(const ChatServer& server, const ChatAsk& ask, bool exact) {
  Json body;
  body["model"] = server.model;
  body["messages"] = Json::array({{{"role", "user"}, {"content", ask.question}}});
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  body["temperature"] = 0;
  body["top_p"] = 1;
  body["max_tokens"] = ask.tokens;
  body["chat_template_kwargs"] = {{"enable_thinking", false}};
  if (exact) {
    body["min_tokens"] = ask.tokens;
    body["ignore_eos"] = true;
    body["stop"] = Json::array();
  }
  return dump_json(body);
}

Result<ChatCall> ChatCall::open(const ChatServer& server, ChatAsk ask) {
  ASSIGN_OR_RETURN(auto client, http::Client::connect(server.url, kConnectTimeout));
  return ChatCall(server, std::move(ask), std::move(client));
}

Result<ChatStream> ChatCall::run() {
  int status = 0;
  auto first = attempt(ask_.exactly, &status);
  if (status != 400 || !ask_.exactly) return first;
  ASSIGN_OR_RETURN(client_, http::Client::connect(server_.url, kConnectTimeout));
  auto second = attempt(false, &status);
  if (second.ok()) second->plain = true;
  return second;
}

Result<ChatStream> ChatCall::attempt(bool exact, int* status) {
  http::ClientRequest request{"POST", "/v1/chat/completions", headers_for(server_),
                              chat_body(server_, ask_, exact)};
  request.headers.push_back({"Accept", "text/event-stream"});
  Assembler assembler(now_ns());
  int64_t arrived = 0;
  http::EventReader reader([&](const http::EventReader::Event& e) { assembler.add(e, arrived); });
  bool small_enough = true;
  const auto reply = client_->exchange(request, server_.silence, [&](std::string_view piece) {
    arrived = now_ns();
    small_enough = reader.push(piece);
    return small_enough && !assembler.failed();
  });
  if (!reply.ok()) return reply.error();
  *status = reply->status;
  if (reply->status != 200) {
    return Error{reply->status == 429 ? ErrorCode::kBusy : ErrorCode::kUnavailable,
                 "the server answers " + std::to_string(reply->status) + ": " + error_text(reply->body)};
  }
  if (!small_enough) return Error{ErrorCode::kLimit, "an event of the stream is too large"};
  return assembler.take();
}

}  // namespace firesteel
