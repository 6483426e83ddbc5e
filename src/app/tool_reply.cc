#include "app/tool_reply.h"

#include <algorithm>
#include <utility>

#include "base/json.h"

namespace firesteel {
namespace {

using Json = nlohmann::ordered_json;

std::string shown(const std::string& text) {
  constexpr size_t kShown = 100;
  return dump_json(Json(text.substr(0, kShown))) + (text.size() > kShown ? "…" : "");
}

/// Appends a text field if it is there; notes what is neither a string nor null.
void append_text(const Json* object, const char* name, ToolReply& reply, std::string* out) {
  const Json* value = member(object, name);
  if (value == nullptr) return;
  if (!value->is_string()) return reply.fail(std::string(name) + " is no string: " + shown(value->dump()));
  *out += value->get_ref<const std::string&>();
}

}  // namespace

void ToolReply::fail(std::string what) {
  if (fault.empty()) fault = std::move(what);
}

void ToolReply::check() {
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    if (call.id.empty()) fail("a call has no id");
    if (call.name.empty()) fail("a call has no name");
    for (size_t k = 0; k < i; ++k) {
      if (calls[k].id == call.id) fail("two calls have the id " + call.id);
    }
    const auto arguments = parse_json(call.arguments);
    if (!arguments.ok() || !arguments->is_object()) {
      fail("the arguments of " + call.name + " are no JSON object: " + shown(call.arguments));
    }
  }
  if (finish_reason.empty()) fail("there is no finish_reason");
  if (!calls.empty() && finish_reason != "tool_calls" && finish_reason != "length") {
    fail("finish_reason is " + finish_reason + " beside a call");
  }
  if (calls.empty() && finish_reason == "tool_calls") fail("finish_reason is tool_calls without a call");
  for (const char* markup : {"<tool_call>", "</tool_call>", "<arg_key>", "<arg_value>", "</think>"}) {
    if (content.find(markup) != std::string::npos) fail(std::string(markup) + " is in the content");
    if (reasoning.find(markup) != std::string::npos) fail(std::string(markup) + " is in the reasoning");
  }
}

ToolReply read_whole_reply(const std::string& body) {
  ToolReply reply;
  const auto json = parse_json(body);
  const Json* choices = json.ok() ? member(&*json, "choices") : nullptr;
  if (choices == nullptr || !choices->is_array() || choices->size() != 1) {
    reply.fail("the reply is no JSON object with one choice: " + shown(body));
    return reply;
  }
  const Json* choice = &choices->front();
  const Json* message = member(choice, "message");
  const Json* usage = member(&*json, "usage");
  if (message == nullptr) reply.fail("the choice has no message");
  if (member(usage, "prompt_tokens") == nullptr || member(usage, "completion_tokens") == nullptr) {
    reply.fail("there is no usage");
  }
  std::string role;
  append_text(message, "role", reply, &role);
  if (role != "assistant") reply.fail("the role is " + shown(role));
  append_text(message, "reasoning_content", reply, &reply.reasoning);
  append_text(message, "content", reply, &reply.content);
  append_text(choice, "finish_reason", reply, &reply.finish_reason);
  if (const Json* calls = member(message, "tool_calls"); calls != nullptr && calls->is_array()) {
    for (const Json& entry : *calls) {
      ToolReply::Call& call = reply.calls.emplace_back();
      append_text(&entry, "id", reply, &call.id);
      append_text(member(&entry, "function"), "name", reply, &call.name);
      append_text(member(&entry, "function"), "arguments", reply, &call.arguments);
    }
  }
  reply.check();
  return reply;
}

void StreamedReply::add(const http::EventReader::Event& event) {
  if (done_) return reply_.fail("an event follows [DONE]");
  if (event.data == "[DONE]") {
    done_ = true;
    return;
  }
  const auto chunk = parse_json(event.data);
  if (!chunk.ok()) return reply_.fail("an event is no JSON: " + shown(event.data));
  if (member(&*chunk, "error") != nullptr) return reply_.fail("the stream failed: " + error_text(event.data));
  const Json* choices = member(&*chunk, "choices");
  if (choices == nullptr || !choices->is_array()) return reply_.fail("a chunk has no choices");
  for (const Json& choice : *choices) add_choice(choice);
}

void StreamedReply::add_choice(const Json& choice) {
  if (finishes_ > 0) reply_.fail("a choice goes on after its finish_reason");
  const Json* delta = member(&choice, "delta");
  if (delta == nullptr) return reply_.fail("a choice has no delta");
  if (!role_ && member(delta, "role") == nullptr) reply_.fail("the first delta has no role");
  role_ = true;
  append_text(delta, "reasoning_content", reply_, &reply_.reasoning);
  append_text(delta, "content", reply_, &reply_.content);
  if (const Json* calls = member(delta, "tool_calls"); calls != nullptr && calls->is_array()) {
    for (const Json& call : *calls) add_call(call);
  }
  if (member(&choice, "finish_reason") == nullptr) return;
  ++finishes_;
  append_text(&choice, "finish_reason", reply_, &reply_.finish_reason);
}

void StreamedReply::add_call(const Json& delta) {
  const Json* index = member(&delta, "index");
  const auto known = static_cast<int64_t>(reply_.calls.size());
  const int64_t at = index != nullptr && index->is_number_integer() ? index->get<int64_t>() : -1;
  if (at < 0 || at > known) return reply_.fail("the calls' indices do not count up from 0");
  if (at == known) {
    // Some servers repeat the id with every piece: the first counts.
    append_text(&delta, "id", reply_, &reply_.calls.emplace_back().id);
  }
  ToolReply::Call& call = reply_.calls[static_cast<size_t>(at)];
  std::string name;
  append_text(member(&delta, "function"), "name", reply_, &name);
  if (!name.empty() && !call.name.empty()) reply_.fail("a call's name comes twice");
  call.name += name;
  append_text(member(&delta, "function"), "arguments", reply_, &call.arguments);
}

ToolReply StreamedReply::take() {
  if (!done_) reply_.fail("the stream ends without [DONE]");
  reply_.check();
  return std::move(reply_);
}

Result<ToolReply> ask_for_tools(const ChatServer& server, Json body, bool streamed) {
  body["stream"] = streamed;
  http::ClientRequest request{"POST", "/v1/chat/completions", headers_for(server), dump_json(body)};
  ASSIGN_OR_RETURN(const auto client, http::Client::connect(server.url, kConnectTimeout));
  StreamedReply stream;
  http::EventReader reader([&](const http::EventReader::Event& event) { stream.add(event); });
  bool small_enough = true;
  http::Client::BodySink sink;
  if (streamed) sink = [&](std::string_view piece) { return small_enough = reader.push(piece); };
  ASSIGN_OR_RETURN(const http::ClientReply reply, client->exchange(request, server.silence, sink));
  if (reply.status != 200) {
    const auto json = parse_json(reply.body);
    const Json* code = json.ok() ? member(member(&*json, "error"), "code") : nullptr;
    const bool not_done = code != nullptr && *code == "unsupported_parameter";
    return Error{not_done ? ErrorCode::kUnsupported : ErrorCode::kUnavailable,
                 "the server answers " + std::to_string(reply.status) + ": " + error_text(reply.body)};
  }
  if (!small_enough) return Error{ErrorCode::kLimit, "an event of the stream is too large"};
  if (!streamed) return read_whole_reply(reply.body);
  if (!reply.header("content-type").starts_with("text/event-stream")) {
    return Error{ErrorCode::kUnavailable, "the server does not stream"};
  }
  return stream.take();
}

}  // namespace firesteel
