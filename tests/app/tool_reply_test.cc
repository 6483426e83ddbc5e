// What a strict client makes of replies with tool calls: right ones, and each way to be wrong.
#include "app/tool_reply.h"

#include <gtest/gtest.h>

namespace firesteel {
namespace {

std::string whole(const std::string& message, const std::string& finish = "tool_calls") {
  return R"({"choices":[{"index":0,"finish_reason":")" + finish + R"(","message":)" + message +
         R"(}],"usage":{"prompt_tokens":1,"completion_tokens":1}})";
}
std::string call(const std::string& id, const std::string& name, const std::string& arguments) {
  return R"({"id":")" + id + R"(","type":"function","function":{"name":")" + name + R"(","arguments":")" +
         arguments + R"("}})";
}
std::string calls(const std::string& list) {
  return R"({"role":"assistant","content":null,"tool_calls":[)" + list + "]}";
}
std::string fault_of(const std::string& body) { return read_whole_reply(body).fault; }

const char kRole[] = R"({"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]})";
std::string delta(const std::string& d, const std::string& finish = "null") {
  return R"({"choices":[{"delta":)" + d + R"(,"finish_reason":)" + finish + "}]}";
}
ToolReply streamed(const std::vector<std::string>& events) {
  StreamedReply stream;
  for (const std::string& data : events) stream.add({"", data});
  return stream.take();
}

TEST(ToolReply, Whole) {
  const ToolReply reply =
      read_whole_reply(whole(calls(call("a", "f", "{}") + "," + call("b", "g", R"({\"x\":1})"))));
  EXPECT_EQ(reply.fault, "");
  ASSERT_EQ(reply.calls.size(), 2u);
  EXPECT_EQ(reply.calls[1].name, "g");
  EXPECT_EQ(reply.calls[1].arguments, R"({"x":1})");
  EXPECT_EQ(reply.finish_reason, "tool_calls");
}

TEST(ToolReply, FaultsOfWholeReplies) {
  EXPECT_NE(fault_of("x"), "");
  EXPECT_NE(fault_of(R"({"choices":[]})"), "");
  EXPECT_EQ(fault_of(whole(calls(call("a", "f", "{}") + "," + call("a", "f", "{}")))),
            "two calls have the id a");
  EXPECT_EQ(fault_of(whole(calls(call("", "f", "{}")))), "a call has no id");
  EXPECT_EQ(fault_of(whole(calls(call("a", "", "{}")))), "a call has no name");
  EXPECT_EQ(fault_of(whole(calls(call("a", "f", "{")))), "the arguments of f are no JSON object: \"{\"");
  EXPECT_EQ(fault_of(whole(calls(call("a", "f", "[]")))), "the arguments of f are no JSON object: \"[]\"");
  EXPECT_EQ(fault_of(whole(calls(call("a", "f", "{}")), "stop")), "finish_reason is stop beside a call");
  EXPECT_EQ(fault_of(whole(R"({"role":"assistant","content":"x"})")),
            "finish_reason is tool_calls without a call");
  EXPECT_EQ(fault_of(whole(R"({"role":"assistant","content":"<tool_call>f"})", "stop")),
            "<tool_call> is in the content");
  EXPECT_EQ(fault_of(whole(R"({"role":"assistant","content":"x","reasoning_content":"</think>"})", "stop")),
            "</think> is in the reasoning");
  EXPECT_EQ(fault_of(whole(R"({"role":"user","content":"x"})", "stop")), "the role is \"user\"");
  EXPECT_EQ(fault_of(R"({"choices":[{"finish_reason":"stop","message":{"role":"assistant"}}]})"),
            "there is no usage");
}

TEST(ToolReply, StreamedInPieces) {
  const ToolReply reply =
      streamed({kRole, delta(R"({"reasoning_content":"r"})"), delta(R"({"content":"c"})"),
                delta(R"({"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]})"),
                delta(R"({"tool_calls":[{"index":0,"id":"a","function":{"arguments":"{\"x\":"}}]})"),
                delta(R"({"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]})"),
                delta(R"({"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}]})"),
                delta("{}", R"("tool_calls")"), R"({"choices":[],"usage":{}})", "[DONE]"});
  EXPECT_EQ(reply.fault, "");
  EXPECT_EQ(reply.reasoning, "r");
  EXPECT_EQ(reply.content, "c");
  ASSERT_EQ(reply.calls.size(), 2u);
  EXPECT_EQ(reply.calls[0].id, "a");
  EXPECT_EQ(reply.calls[0].arguments, R"({"x":1})");
}

TEST(ToolReply, FaultsOfStreams) {
  const std::string end = delta("{}", R"("stop")");
  EXPECT_EQ(streamed({kRole, end}).fault, "the stream ends without [DONE]");
  EXPECT_EQ(streamed({kRole, "[DONE]"}).fault, "there is no finish_reason");
  EXPECT_EQ(streamed({delta("{}"), end, "[DONE]"}).fault, "the first delta has no role");
  EXPECT_EQ(streamed({kRole, end, end, "[DONE]"}).fault, "a choice goes on after its finish_reason");
  EXPECT_EQ(streamed({kRole, end, "[DONE]", kRole}).fault, "an event follows [DONE]");
  EXPECT_EQ(streamed({kRole, R"({"error":{"message":"lost"}})", "[DONE]"}).fault, "the stream failed: lost");
  EXPECT_EQ(streamed({kRole, "{", "[DONE]"}).fault, "an event is no JSON: \"{\"");
  for (const char* index : {"1", "-1", "\"0\"", "null"}) {
    const std::string first = std::string(R"({"tool_calls":[{"index":)") + index + R"(,"id":"a"}]})";
    EXPECT_EQ(streamed({kRole, delta(first), "[DONE]"}).fault, "the calls' indices do not count up from 0")
        << index;
  }
  const std::string named = delta(R"({"tool_calls":[{"index":0,"id":"a","function":{"name":"f"}}]})");
  EXPECT_EQ(streamed({kRole, named, named, "[DONE]"}).fault, "a call's name comes twice");
}

}  // namespace
}  // namespace firesteel
