// Reports 37 to 55: thinking, structured output, streams, usage.
#include "reports_fixture.h"

namespace firesteel::api {
namespace {

std::string schema_of(const std::string& schema, bool strict = true) {
  return std::string(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":)") +
         (strict ? "true" : "false") + ",\"schema\":" + schema + "}}";
}

TEST_F(Reports, N37ABudgetLeavesAnAnswer) {
  ScriptedReply reply;
  for (int i = 0; i < 400; ++i) append(reply.ids, plain_ids(" so"));
  play(reply);
  Json body = chat(R"("max_tokens":100)");
  Got got = send(body);
  EXPECT_EQ(got.finish, "length");
  EXPECT_EQ(got.content, "");
  EXPECT_EQ(got.usage["completion_tokens_details"]["reasoning_tokens"], 100);
  body["thinking_budget"] = 50;
  got = send(body);
  EXPECT_NE(got.content, "");
  EXPECT_LE(got.usage["completion_tokens_details"]["reasoning_tokens"].get<int>(), 53);
}

TEST_F(Reports, N38ACycleInTheThinkBlock) {
  ScriptedReply reply;
  for (int i = 0; i < 300; ++i) append(reply.ids, plain_ids(i % 2 ? " ab" : " cd"));
  append(reply.ids, ids("Answer.<|user|>"));
  play(reply);
  Json body = chat(R"("max_tokens":1000)");
  const Got free = send(body);
  EXPECT_EQ(free.content, "") << "without the guard all is reasoning";
  EXPECT_FALSE(free.chunks.back()["server_stats"].contains("think_cut"));
  ApiOptions guarded = options();
  guarded.loop_guard = true;
  start(guarded, engine_info());
  for (const bool stream : {false, true}) {
    body["stream"] = stream;
    const Got got = send(body);
    EXPECT_NE(got.content.find("Answer."), std::string::npos) << got;
    EXPECT_EQ(got.chunks.back()["server_stats"].value("think_cut", false), true);
  }
}

TEST_F(Reports, N40ASecondAnswerBehindTheFirst) {
  for (const bool stream : {false, true}) {
    ScriptedReply reply;
    reply.ids = ids("Answer.<|assistant|>Second");
    play(reply);
    Json body = off();
    body["stream"] = stream;
    const Got got = send(body);
    EXPECT_EQ(got.content, "Answer.");
    EXPECT_EQ(got.finish, "stop");
  }
}

TEST_F(Reports, N42And43ASchemaLeavesReasoningAlone) {
  const std::string thought = "The ball costs 5 cents { not 10 }.";
  const std::string schema =
      R"({"type":"object","properties":{"cents":{"type":"integer"}},"required":["cents"]})";
  const std::string fields = schema_of(schema);
  play_text(thought + "</think>{\"cents\": 5}");
  for (const bool stream : {false, true}) {
    Json body = chat(fields), free = chat();
    body["stream"] = free["stream"] = stream;
    const Got held = send(body);
    EXPECT_EQ(held.content, "{\"cents\": 5}");
    EXPECT_EQ(held.reasoning, thought);
    EXPECT_EQ(held.reasoning, send(free).reasoning);
  }
  play_text("{\"cents\": 5}");
  const Got got = send(off(chat(fields)));
  EXPECT_EQ(got.content, "{\"cents\": 5}");
  EXPECT_EQ(got.reasoning, "");
}

TEST_F(Reports, N45BlanksDoNotFillAnAnswer) {
  ScriptedReply reply;
  for (int i = 0; i < 1500; ++i) append(reply.ids, plain_ids("\n"));
  play(reply);
  const std::string nested = R"({"type":"object","properties":{"a":{"type":"object","properties":
      {"b":{"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":2}},"required":["b"]}},"required":["a"]})";
  Json body = off(chat(schema_of(nested)));
  body["max_tokens"] = 1500;
  const Got got = send(body);
  EXPECT_EQ(got.finish, "stop") << "the engine wishes nothing but line ends";
  EXPECT_EQ(got.content.find(std::string(33, '\n')), std::string::npos);
  EXPECT_EQ(Json::parse(got.content)["a"]["b"].size(), 2u);
}

TEST_F(Reports, N48ReferencesIntoTheSchema) {
  const std::string schema =
      R"({"$defs":{"Step":{"type":"object","properties":{"explanation":{"type":"string"},
      "output":{"type":"string"}},"required":["explanation","output"],"additionalProperties":false}},
      "type":"object","properties":{"steps":{"type":"array","items":{"$ref":"#/$defs/Step"},"minItems":1},
      "final_answer":{"type":"string"}},"required":["steps","final_answer"],"additionalProperties":false})";
  const std::string reply =
      R"({"steps": [{"explanation": "take 7 away", "output": "8x = -30"}], "final_answer": "x = -3.75"})";
  EXPECT_EQ(answer(off(chat(schema_of(schema))), reply).content, reply);
}

TEST_F(Reports, N49KeywordsAreEnforcedOrNamed) {
  const auto wrapped = [](const std::string& keywords) {
    return schema_of(R"({"type":"object","properties":{"x":{)" + keywords + R"(}},"required":["x"]})");
  };
  for (const char* keyword :
       {R"("type":"string","not":{"const":"a"})", R"("type":"array","uniqueItems":true)"}) {
    const Got got = send(off(chat(wrapped(keyword))));
    EXPECT_EQ(got.status, 400) << keyword;
    EXPECT_EQ(got.error["code"], "invalid_grammar");
    EXPECT_NE(got.error["message"].get<std::string>().find(keyword[8] == 's' ? "not" : "uniqueItems"),
              std::string::npos)
        << got.error;
  }
  play_text(R"({"x": {"a": 1, "b": true}} and more text that a grammar must not let through, at any length)");
  Got got = send(
      off(chat(wrapped(R"("allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
      {"type":"object","properties":{"b":{"type":"boolean"}},"required":["b"]}])"))));
  EXPECT_EQ(got.content, R"({"x": {"a": 1, "b": true}})");
  play_text(R"({"x": "aaaaaaaaaaaaaaaaaaaaaaaaaaaa"})");
  got = send(off(chat(wrapped(R"("type":"string","pattern":"^a+$","maxLength":4)"))));
  EXPECT_EQ(got.content, R"({"x": "aaaa"})");
}

TEST_F(Reports, N51NoPartOfACharacterIsSent) {
  const std::string text = "e\u0301 東京 👩‍👩‍👧 👍🏽";
  std::vector<int32_t> bytes;
  for (char c : text) append(bytes, plain_ids(std::string(1, c)));
  for (size_t limit = 1; limit <= bytes.size(); ++limit) {
    ScriptedReply reply;
    reply.ids = bytes;
    play(reply);
    Json body = off();
    body["max_tokens"] = limit;
    const Got whole = send(body);
    body["stream"] = true;
    const Got streamed = send(body);
    ASSERT_EQ(streamed, whole);
    const std::string& got = whole.content;
    const size_t bad = got.find("\xEF\xBF\xBD");
    if (bad != std::string::npos) {
      ASSERT_EQ(bad + 3, got.size()) << "one replacement at the very end";
    }
    ASSERT_TRUE(text.starts_with(got.substr(0, bad)));
  }
  const Got got = answer(with_tools({bash()}), "</think>" + call("bash", "command", text));
  EXPECT_EQ(Json::parse(arguments(got))["command"], text);
}

TEST_F(Reports, N52AStreamIsNeverSilent) {
  ApiOptions o = options();
  o.http.stream_silence = std::chrono::milliseconds(20);
  EngineInfo info = engine_info();
  info.max_streams = 1;
  start(o, info);
  ScriptedReply slow;
  slow.ids = ids("late<|user|>");
  slow.first_delay_us = 400'000;
  play(slow);
  Json body = off();
  body["stream"] = true;
  // The second waits for the first one's place.
  http::RawClient first = client(), second = client();
  first.send(http_post("/v1/chat/completions", dump_json(body)));
  second.send(http_post("/v1/chat/completions", dump_json(body)));
  for (http::RawClient* c : {&first, &second}) {
    EXPECT_NE(c->read_until("\"role\":\"assistant\""), "");
    EXPECT_NE(c->read_until(": keepalive\n\n"), "");
    EXPECT_NE(c->read_until("data: [DONE]\n\n"), "");
  }
}

TEST_F(Reports, N53CountsAreEqualOnEveryRoute) {
  play_text("I think so.</think>Yes.");
  Json body = chat(R"("model":"m","max_tokens":100,"thinking":{"type":"adaptive"})");
  const Got whole = send(body);
  Json streaming = body;
  streaming["stream"] = true;
  streaming["stream_options"] = {{"include_usage", true}};
  EXPECT_EQ(send(streaming).usage, whole.usage);
  EXPECT_EQ(whole.usage["completion_tokens_details"]["reasoning_tokens"], ids("I think so.</think>").size());
  const Json response = post("/v1/responses", {{"input", "hi"}})["usage"];
  EXPECT_EQ(response["input_tokens"], whole.usage["prompt_tokens"]);
  EXPECT_EQ(response["output_tokens"], whole.usage["completion_tokens"]);
  EXPECT_EQ(response["output_tokens_details"]["reasoning_tokens"],
            whole.usage["completion_tokens_details"]["reasoning_tokens"]);
  const Json messages = post("/v1/messages", body)["usage"];
  EXPECT_EQ(messages["input_tokens"], whole.usage["prompt_tokens"]);
  EXPECT_EQ(messages["output_tokens"], whole.usage["completion_tokens"]);
}

TEST_F(Reports, N54UsageIsInEveryStream) {
  play_text("r</think>a");
  Got got = send(chat(R"("stream":true)"));
  EXPECT_EQ(got.chunks.back()["choices"][0]["finish_reason"], "stop");
  EXPECT_GT(got.chunks.back()["usage"]["prompt_tokens"], 0);
  got = send(chat(R"("stream":true,"stream_options":{"include_usage":true})"));
  EXPECT_TRUE(got.chunks.back()["choices"].empty());
  EXPECT_GT(got.chunks.back()["usage"]["total_tokens"], 0);
}

TEST_F(Reports, N55AStopStringLeavesReasoningAlone) {
  Json body = chat(R"("stop":["Question:"],"max_tokens":1500)");
  Got got = answer(body, "Question: 12*13? So 156.</think>It is 156.", "<|user|>");
  EXPECT_EQ(got.reasoning, "Question: 12*13? So 156.");
  EXPECT_EQ(got.content, "It is 156.");
  EXPECT_TRUE(got.stop_reason.is_null());
  got = answer(off(body), "It is 156.\nQuestion: what next?", "<|user|>");
  EXPECT_EQ(got.content, "It is 156.\n");
  EXPECT_EQ(got.stop_reason, "Question:");
  EXPECT_EQ(got.finish, "stop");
}

}  // namespace
}  // namespace firesteel::api
