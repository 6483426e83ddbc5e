// Reports 24 to 36: histories and templates.
#include "reports_fixture.h"

namespace firesteel::api {
namespace {

/// A tool step of a history; `arguments` as JSON.
Json step(const std::string& arguments, const Json& content = nullptr) {
  Json call = {{"id", "1"}, {"type", "function"}, {"function", {{"name", "bash"}}}};
  call["function"]["arguments"] = Json::parse(arguments);
  return {{"role", "assistant"}, {"content", content}, {"tool_calls", {call}}};
}
Json result(const Json& content) { return {{"role", "tool"}, {"tool_call_id", "1"}, {"content", content}}; }

TEST_F(Reports, N24AMalformedPastCallBlocksNothing) {
  Json body = with_tools({bash()});
  body["messages"] = {user("a"), step(R"("{\"command\": \"ls")"), result("err"), user("go on")};
  EXPECT_EQ(answer(body, "</think>On.").content, "On.");
  const std::string prompt = prompt_of(body);
  EXPECT_EQ(prompt.find("<|observation|>"), std::string::npos);
  EXPECT_EQ(prompt.find("err"), std::string::npos);
  EXPECT_NE(prompt.find("<|user|>a"), std::string::npos);
  EXPECT_NE(prompt.find("<|user|>go on"), std::string::npos);
}

TEST_F(Reports, N26StringifiedArgumentsAreTheObject) {
  Json text = with_tools({bash()});
  text["messages"] = {user("a"), step(R"("{\"command\":\"ls\"}")"), result("x"), user("b")};
  Json object = text;
  object["messages"][1] = step(R"({"command":"ls"})");
  EXPECT_EQ(prompt_of(text), prompt_of(object));
  EXPECT_NE(prompt_of(text).find(call("bash", "command", "ls")), std::string::npos);
}

TEST_F(Reports, N27NullContentPrintsNothing) {
  Json body = with_tools({bash()});
  body["messages"] = {user("a"), step(R"({"command":"ls"})"), result(nullptr), user("b")};
  body["return_token_strs"] = true;
  const Json out = post("/tokenize", body);
  for (const Json& token : out["token_strs"]) EXPECT_NE(token, "None");
  EXPECT_EQ(prompt_of(body).find("None"), std::string::npos);
}

TEST_F(Reports, N28ReasoningUnderEitherName) {
  Json body = with_tools({bash()});
  Json named = step(R"({"command":"ls"})", ""), renamed = named;
  named["reasoning_content"] = "I look.";
  renamed["reasoning"] = "I look.";
  body["messages"] = {user("a"), named, result("x")};
  const std::string prompt = prompt_of(body);
  EXPECT_NE(prompt.find("<think>I look.</think><tool_call>"), std::string::npos);
  body["messages"][1] = renamed;
  EXPECT_EQ(prompt_of(body), prompt);
}

TEST_F(Reports, N29EarlierReasoningStaysUnlessCleared) {
  Json body = with_tools({bash()});
  Json first = step(R"({"command":"ls"})", "");
  first["reasoning_content"] = "I look.";
  body["messages"] = {user("a"), first, result("x")};
  const std::string before = prompt_of(body);
  const std::string shared = before.substr(0, before.rfind("<|assistant|>"));
  body["messages"].push_back(user("next"));
  EXPECT_TRUE(prompt_of(body).starts_with(shared)) << "a new user message changes nothing before it";
  body["chat_template_kwargs"] = {{"clear_thinking", true}};
  EXPECT_EQ(prompt_of(body).find("I look."), std::string::npos);
}

TEST_F(Reports, N30To33WaysToSwitchThinkingOff) {
  const auto thinks = [&](const std::string& fields) {
    const std::string prompt = prompt_of(chat(fields));
    return prompt.ends_with("<|assistant|><think>");
  };
  EXPECT_FALSE(thinks(R"("chat_template_kwargs":{"thinking":{"type":"disabled"}})"));
  EXPECT_FALSE(thinks(R"("chat_template_kwargs":{"thinking":false})"));
  EXPECT_TRUE(thinks(R"("chat_template_kwargs":{"thinking":{"type":"adaptive"}})"));
  EXPECT_TRUE(thinks(R"("chat_template_kwargs":{"thinking":"x"})"));
  EXPECT_FALSE(thinks(R"("extra_body":{"chat_template_kwargs":{"enable_thinking":false}})"));
  EXPECT_FALSE(thinks(R"("reasoning_effort":"none")"));
  EXPECT_FALSE(thinks(R"("thinking":{"type":"disabled"})"));
  const Got got = answer(off(), "Hello.");
  EXPECT_EQ(got.reasoning, "");
  EXPECT_EQ(got.content, "Hello.");
}

TEST_F(Reports, N32DeveloperAndLateSystemMessages) {
  const Json rule = {{"role", "developer"}, {"content", "Answer in one word"}};
  Json body = chat();
  for (const Json& messages :
       {Json{rule, user("Hi")}, Json{user("Hi"), rule, user("Capital of France?")},
        Json{{{"role", "system"}, {"content", "A"}}, {{"role", "system"}, {"content", "B"}}, user("Hi")}}) {
    body["messages"] = messages;
    EXPECT_EQ(answer(body, "</think>Yes").content, "Yes");
    if (messages[0] != user("Hi")) continue;
    EXPECT_NE(prompt_of(body).find("<|user|>Hi<|system|>Answer in one word<|user|>"), std::string::npos);
  }
}

TEST_F(Reports, N35And36ManyToolTurns) {
  Json body = with_tools({bash()});
  body["messages"] = Json::array();
  for (int turn = 0; turn < 25; ++turn) {
    body["messages"].push_back(user("turn " + std::to_string(turn)));
    Got got = answer(body, "I count.</think>Look:" + call("bash", "command", std::to_string(turn)));
    ASSERT_EQ(got.reasoning, "I count.");
    ASSERT_EQ(got.content, "Look:");
    Json message = got.chunks[0]["choices"][0]["message"];
    body["messages"].push_back(message);
    body["messages"].push_back(
        {{"role", "tool"}, {"tool_call_id", message["tool_calls"][0]["id"]}, {"content", "ok"}});
    got = answer(body, "</think>Done <b>.");
    ASSERT_EQ(got.content, "Done <b>.");
    body["messages"].push_back({{"role", "assistant"}, {"content", got.content}});
  }
  EXPECT_EQ(count(prompt_of(body), "<think>I count.</think>Look:<tool_call>bash"), 25u);
}

TEST_F(Reports, N36OddOutputIsTextAndNeverAnError) {
  std::mt19937 rng(36);
  const std::vector<std::string> parts = {
      "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "bash",
      "{\"name\":",  "</think>",     "\n",        "\xF0\x9F",   "[MASK]",      "<|system|>",   "text "};
  for (int round = 0; round < 60; ++round) {
    std::string text;
    for (size_t n = rng() % 12; n > 0; --n) text += parts[rng() % parts.size()];
    answer(with_tools({bash()}), "x" + text);
  }
}

}  // namespace
}  // namespace firesteel::api
