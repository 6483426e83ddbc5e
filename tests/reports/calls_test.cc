// Reports 1 to 23: tool calls out of the model. Every slicing of more replies:
// tests/text/transcripts_test.cc.
#include "reports_fixture.h"

namespace firesteel::api {
namespace {

TEST_F(Reports, N01ARealCallBehindAQuotedTag) {
  const Json body = with_tools({bash()});
  const std::string quoted = "The literal <tool_call> markup opens a call.";
  Got got = answer(body, "r</think>" + quoted + "\n" + call("bash", "command", "ls"));
  EXPECT_EQ(got.content, quoted);
  EXPECT_EQ(arguments(got), R"({"command":"ls"})");
  EXPECT_EQ(got.finish, "tool_calls");
  got = answer(body, quoted + "</think>" + call("bash", "command", "ls"));
  EXPECT_EQ(got.reasoning, quoted);
  EXPECT_EQ(got.content, "");
  EXPECT_EQ(got.calls.size(), 1u);
}

TEST_F(Reports, N02AToolThatIsNoLongerOffered) {
  Json body = with_tools({bash()});
  body["messages"] = Json::parse(
      R"([{"role":"user","content":"hi"},
          {"role":"assistant","content":"","tool_calls":[{"id":"a","type":"function",
            "function":{"name":"mcp_read","arguments":"{\"p\":\"x\"}"}}]},
          {"role":"tool","tool_call_id":"a","content":"ok"},{"role":"user","content":"again"}])");
  Got got = answer(body, "</think>" + call("mcp_read", "p", "y"));
  EXPECT_EQ(name(got), "mcp_read");
  EXPECT_EQ(arguments(got), R"({"p":"y"})");
  EXPECT_EQ(got.finish, "tool_calls");
  for (const std::string& text :
       {call("mcp.read", "p", "y"), call(std::string(65, 'a')),
        std::string(R"(<tool_call>{"name": "calc", "arguments": {"x": NaN}}</tool_call>)")}) {
    got = answer(body, "</think>" + text);
    EXPECT_EQ(got.content, text);
    EXPECT_EQ(got.finish, "stop");
  }
}

TEST_F(Reports, N03ACallWithoutItsClosingTag) {
  const Json body = with_tools({bash(), weather()});
  const std::string open = "<tool_call>bash<arg_key>command</arg_key><arg_value>pwd</arg_value>";
  EXPECT_EQ(arguments(answer(body, "</think>" + open)), R"({"command":"pwd"})");
  EXPECT_EQ(
      arguments(answer(body,
                       "</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value> "
                       "days</arg_key><arg_value>3</arg_value>")),
      R"({"city":"Oslo","days":3})");
  const std::string bad = "<tool_call>bash<arg_key>command</arg_key><arg_value>rm -rf /";
  const Got got = answer(body, "</think>" + bad);
  EXPECT_EQ(got.content, bad);
  EXPECT_EQ(got.finish, "stop");
}

TEST_F(Reports, N04ACallCutByTheLimitIsNeitherSentNorShown) {
  const std::string text =
      "Now.\n" + call("bash", "command", "cat > a <<E\n" + std::string(100, 'x') + "\nE");
  ScriptedReply reply;
  reply.ids = ids(text);
  play(reply);
  for (size_t limit = 1; limit < reply.ids.size(); ++limit) {
    for (const bool stream : {false, true}) {
      Json body = off(with_tools({bash()}));
      body["max_tokens"] = limit;
      body["stream"] = stream;
      const Got got = send(body);
      ASSERT_EQ(got.finish, "length");
      ASSERT_EQ(got.calls.size(), 0u);
      ASSERT_TRUE(std::string("Now.").starts_with(got.content)) << got.content;
    }
  }
}

TEST_F(Reports, N05ACallInTheThinkBlock) {
  const Json body = with_tools({bash()});
  const std::string text = "I should look." + call("bash", "command", "ls");
  Got got = answer(body, text);
  EXPECT_EQ(got.reasoning, "I should look.");
  EXPECT_EQ(got.calls.size(), 1u);
  EXPECT_EQ(got.finish, "tool_calls");
  got = answer(body, text + "</think>Done.");
  EXPECT_EQ(got.reasoning, text);
  EXPECT_EQ(got.content, "Done.");
  EXPECT_EQ(got.calls.size(), 0u);
}

TEST_F(Reports, N07ZeroArgumentsAreOneObject) {
  const Json body = with_tools({tool("get_current_time", R"({"type":"object","properties":{}})")});
  const std::string text = "</think><tool_call>get_current_time</tool_call>";
  for (size_t a = text.size() - 12; a < text.size(); ++a) {
    for (size_t b = a; b < text.size(); ++b) {
      ScriptedReply reply;
      for (const std::string& part : {text.substr(0, a), text.substr(a, b - a), text.substr(b)})
        append(reply.ids, ids(part));
      append(reply.ids, ids("<|observation|>"));
      play(reply);
      Json streamed = body;
      streamed["stream"] = true;
      const Got got = send(streamed);
      ASSERT_EQ(got.calls.size(), 1u);
      ASSERT_EQ(arguments(got), "{}");
    }
  }
}

TEST_F(Reports, N08ALongNameIsNotCutToAShorterOne) {
  const std::string c = R"({"type":"object","properties":{"c":{"type":"string"}}})";
  const Got got = answer(with_tools({tool("run_in", c), tool("run_in_terminal", c)}),
                         "</think>" + call("run_in_terminal", "c", "1"));
  ASSERT_EQ(got.calls.size(), 1u);
  EXPECT_EQ(name(got), "run_in_terminal");
  EXPECT_EQ(arguments(got), R"({"c":"1"})");
}

TEST_F(Reports, N09SeveralTokensInOneStep) {
  const std::string text =
      "</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>"
      "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>";
  EXPECT_EQ(arguments(answer(with_tools({weather()}), text)), R"({"city":"Oslo","days":3})");
}

TEST_F(Reports, N11To15ArgumentsHaveTheTypesOfTheSchema) {
  const Json search = tool("web_search", R"({"type":"object","properties":{"query":{"type":"string"},
      "max_results":{"type":"number"},"exclude_domains":{"type":"array","items":{"type":"string"}},
      "cursor":{"type":["string","null"]},"edits":{"type":"array","items":{"type":"object"}},
      "deep":{"type":"boolean"},"pages":{"type":"integer"},
      "domains":{"anyOf":[{"type":"array","items":{"type":"string"}},{"type":"null"}]}}})");
  const std::vector<std::array<const char*, 3>> cases = {
      {"query", "0012345", R"("0012345")"},
      {"query", "12345", R"("12345")"},
      {"max_results", "10", "10"},
      {"exclude_domains", "[]", "[]"},
      {"cursor", "123", R"("123")"},
      {"cursor", "null", "null"},
      {"domains", R"(["a"])", R"(["a"])"},
      {"edits", R"([{"a":1})", R"([{"a":1}])"},
      {"deep", "False", "false"},
      {"domains", "None", "null"},
      {"pages", "3.0", "3"},
      {"pages", "\"7\"", "7"},
      {"query", "True", R"("True")"},
      {"query", "a\nb \\n \"c\" \\", R"("a\nb \\n \"c\" \\")"}};
  for (const auto& [key, value, want] : cases)
    EXPECT_EQ(arguments(answer(with_tools({search}), "</think>" + call("web_search", key, value))),
              std::string("{\"") + key + "\":" + want + "}");
}

TEST_F(Reports, N17AReplyCutInItsCallIsNoCallOnMessagesEither) {
  ScriptedReply reply;
  reply.ids =
      ids("A plan.<tool_call>ExitPlanMode<arg_key>plan</arg_key><arg_value>" + std::string(2000, 'p'));
  play(reply);
  const Json out =
      post("/v1/messages",
           {{"model", "m"},
            {"max_tokens", 40},
            {"tools",
             {{{"name", "ExitPlanMode"},
               {"input_schema", {{"type", "object"}, {"properties", {{"plan", {{"type", "string"}}}}}}}}}},
            {"messages", {user("plan")}}});
  EXPECT_EQ(out["stop_reason"], "max_tokens");
  ASSERT_EQ(out["content"].size(), 1u) << out.dump();
  EXPECT_EQ(out["content"][0]["text"], "A plan.");
}

TEST_F(Reports, N19ParallelCallsStayApart) {
  Json body = with_tools({weather()});
  std::string text = "</think>";
  for (const char* city : {"Oslo", "Rome", "Lima"}) text += call("get_weather", "city", city);
  const Got got = answer(body, text);  // the stream's indices are checked as it is read
  ASSERT_EQ(got.calls.size(), 3u);
  EXPECT_EQ(arguments(got, 0), R"({"city":"Oslo"})");
  EXPECT_EQ(arguments(got, 1), R"({"city":"Rome"})");
  EXPECT_EQ(arguments(got, 2), R"({"city":"Lima"})");
  EXPECT_NE(got.calls[0]["id"], got.calls[1]["id"]);
  EXPECT_NE(got.calls[1]["id"], got.calls[2]["id"]);
}

TEST_F(Reports, N20ChoiceNoneAndParallelOff) {
  const std::string two = call("get_weather", "city", "Oslo") + call("get_weather", "city", "Rome");
  Json body = with_tools({weather()});
  body["tool_choice"] = "none";
  const Got got = answer(body, "</think>" + two);
  EXPECT_EQ(got.content, two);
  EXPECT_EQ(got.finish, "stop");
  EXPECT_EQ(prompt_of(body).find("get_weather"), std::string::npos);
  body = with_tools({weather()});
  body["parallel_tool_calls"] = false;
  EXPECT_EQ(answer(body, "</think>" + two).calls.size(), 1u);
}

TEST_F(Reports, N21MalformedMarkupIsNeverLost) {
  const Json edit = tool("edit", R"({"type":"object","properties":{"edits":{"type":"array"}}})");
  const Json body = with_tools({bash(), edit});
  EXPECT_EQ(answer(body, "... so </think>" + call("bash", "command", "ls")).calls.size(), 1u);
  EXPECT_EQ(name(answer(body, "</think>" + call("bashCommand", "command", "ls"))), "bashCommand");
  EXPECT_EQ(arguments(answer(body, "</think>" + call("edit", "edits", R"([{"a":1})"))),
            R"({"edits":[{"a":1}]})");
  for (const char* text : {"<tool_call>bash<arg_key>command</arg_key>ls</tool_call>",
                           "<tool_call>bash ls</tool_call>", "<tool_call>{\"name\": \"bash\"</tool_call>"})
    EXPECT_EQ(answer(body, std::string("</think>") + text).content, text);
}

TEST_F(Reports, N22HeartbeatsWhileACallIsWritten) {
  ScriptedReply reply;
  reply.ids = ids("<tool_call>bash<arg_key>command</arg_key><arg_value>" + std::string(60, 'x') +
                  "</arg_value></tool_call><|observation|>");
  reply.delay_us = 3'000'000 / static_cast<int64_t>(reply.ids.size());
  play(reply);
  Json body = off(with_tools({bash()}));
  body["stream"] = true;
  const Got got = send(body);
  EXPECT_EQ(got.calls.size(), 1u);
  int empty = 0;
  for (const Json& chunk : got.chunks)
    empty += chunk["choices"][0]["delta"].empty() && chunk["choices"][0]["finish_reason"].is_null();
  EXPECT_GE(empty, 1) << "an empty delta at least every 2 s";
}

TEST_F(Reports, N22TheNameComesWithinARound) {
  // One token a round. The name is certain with the tag behind it, and the text goes out while it is written.
  ScriptedReply reply;
  reply.ids = ids("<tool_call>bash<arg_key>command</arg_key><arg_value>" + std::string(200, 'x'));
  reply.delay_us = 1000;
  Json body = off(with_tools({bash()}));
  body["stream"] = true;
  body["stream_options"] = {{"tool_arguments", "incremental"}};
  body["max_tokens"] = ids("<tool_call>bash<arg_key>").size();
  play(reply);
  const Got begun = send(body);
  ASSERT_EQ(begun.calls.size(), 1u);
  EXPECT_EQ(name(begun), "bash");
  EXPECT_EQ(arguments(begun), "");
  body["max_tokens"] = reply.ids.size();
  const std::string text = arguments(send(body));
  EXPECT_TRUE(text.starts_with(R"({"command":"xxx)")) << text;
  EXPECT_GT(text.size(), 150u) << "all but what may begin the end";
}

TEST_F(Reports, N23ProseBeforeAnUnclosedCall) {
  const Got got =
      answer(off(with_tools({bash()})),
             "Let me look.\n<tool_call>bash<arg_key>command</arg_key><arg_value>pwd</arg_value>", "<|user|>");
  EXPECT_EQ(got.content, "Let me look.");
  EXPECT_EQ(arguments(got), R"({"command":"pwd"})");
  EXPECT_EQ(got.finish, "tool_calls");
}

}  // namespace
}  // namespace firesteel::api
