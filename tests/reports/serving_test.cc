// Reports 58 to 92: limits, cancelling, admission, HTTP, the other routes.
#include <chrono>

#include "reports_fixture.h"

namespace firesteel::api {
namespace {

ScriptedReply endless(const std::vector<int32_t>& word) {
  ScriptedReply reply;
  for (int i = 0; i < 4000; ++i) reply.ids.insert(reply.ids.end(), word.begin(), word.end());
  reply.delay_us = 1000;
  return reply;
}

TEST_F(Reports, N58MoreOutputThanTheWindowHolds) {
  play_text("</think>fits");
  Json body = chat(R"("max_tokens":200000)");
  const Got got = send(body);
  EXPECT_EQ(got.status, 400);
  EXPECT_EQ(got.error["code"], "context_length_exceeded");
  const std::string message = got.error["message"];
  EXPECT_NE(message.find("200000"), std::string::npos) << message;
  EXPECT_NE(message.find("4096"), std::string::npos) << message;
  body.erase("max_tokens");
  EXPECT_EQ(send(body).content, "fits");
}

TEST_F(Reports, N67And69GoneClientsAreNotServed) {
  EngineInfo info = engine_info();
  info.max_streams = 1;
  start(options(), info);
  play(endless(ids("x")));
  for (const bool stream : {false, true}) {
    Json body = off();
    body["stream"] = stream;
    http::RawClient running = client(), queued = client();
    running.send(http_post("/v1/chat/completions", dump_json(body)));
    ASSERT_TRUE(eventually([&] { return engine_->stats().running == 1; }));
    const uint64_t cancelled = engine_->stats().cancelled;
    queued.send(http_post("/v1/chat/completions", dump_json(body)));
    ASSERT_TRUE(eventually([&] { return engine_->stats().running + engine_->stats().queued == 2; }));
    const auto left = std::chrono::steady_clock::now();
    queued.close();
    EXPECT_TRUE(eventually([&] { return engine_->stats().cancelled == cancelled + 1; }));
    running.close();
    EXPECT_TRUE(eventually([&] { return engine_->stats().running == 0; }));
    EXPECT_LT(std::chrono::steady_clock::now() - left, std::chrono::seconds(5));
  }
}

TEST_F(Reports, N70GoneClientsPastAThousandConnections) {
  play(endless(ids("x")));
  std::vector<http::RawClient> idle;
  for (int i = 0; i < 1100; ++i) {
    idle.push_back(client());
    ASSERT_TRUE(idle.back().connected()) << i;
  }
  http::RawClient c = client();
  Json body = off();
  body["stream"] = true;
  c.send(http_post("/v1/chat/completions", dump_json(body)));
  ASSERT_NE(c.read_until("\"content\":\"x"), "");
  const auto left = std::chrono::steady_clock::now();
  c.close();
  EXPECT_TRUE(eventually([&] { return engine_->stats().running == 0; }));
  EXPECT_LT(std::chrono::steady_clock::now() - left, std::chrono::seconds(2));
}

TEST_F(Reports, N71AFullServerSaysSoBeforeAnyStream) {
  EngineInfo info = engine_info();
  info.max_queue = 0;
  start(options(), info);
  play(endless(ids("x")));
  Json body = off();
  body["stream"] = true;
  std::vector<http::RawClient> running;
  for (int i = 0; i < info.max_streams; ++i) {
    running.push_back(client());
    running.back().send(http_post("/v1/chat/completions", dump_json(body)));
    ASSERT_NE(running.back().read_until("assistant"), "");
  }
  const Got got = send(body);
  EXPECT_EQ(got.status, 429);
  EXPECT_EQ(got.raw.headers.at("retry-after"), "5");
  EXPECT_EQ(got.raw.headers.at("content-type"), "application/json");
  EXPECT_EQ(got.error["code"], "server_busy");
}

TEST_F(Reports, N72ChunkedBodiesOnEveryRoute) {
  play_text("</think>x");
  const Json messages = {user("café 😢")};
  const std::vector<std::pair<std::string, Json>> routes = {
      {"/v1/chat/completions", {{"messages", messages}}},
      {"/v1/completions", {{"prompt", "café 😢"}}},
      {"/v1/responses", {{"input", "café 😢"}, {"store", false}}},
      {"/v1/responses/input_tokens", {{"input", "café 😢"}}},
      {"/v1/messages", {{"model", "m"}, {"max_tokens", 20}, {"messages", messages}}},
      {"/v1/messages/count_tokens", {{"model", "m"}, {"messages", messages}}},
      {"/tokenize", {{"prompt", "café 😢"}}},
      {"/detokenize", {{"tokens", {65, 66}}}}};
  for (const auto& [path, body] : routes) {
    const std::string text = dump_json(body);
    std::string chunked = "POST " + path + " HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (char c : text) chunked += std::string("1;ext=1\r\n") + c + "\r\n";  // borders inside every character
    chunked += "0\r\nX-Trailer: 1\r\n\r\n";
    http::RawClient c = client();
    c.send(chunked + http_post(path, text));  // two requests on one connection
    const http::RawReply first = c.read_reply(), second = c.read_reply();
    EXPECT_EQ(first.status, 200) << path << first.body;
    EXPECT_EQ(second.status, 200) << path << second.body;
  }
  std::lock_guard lock(mutex_);
  ASSERT_EQ(requests_.size(), 8u);
  for (size_t i = 0; i < requests_.size(); i += 2) EXPECT_EQ(requests_[i].prompt, requests_[i + 1].prompt);
}

TEST_F(Reports, N81CountedTokensAreTheUsedOnes) {
  play_text("ok");
  Json body = {
      {"model", "m"},
      {"max_tokens", 20},
      {"system", "Be brief."},
      {"tools", {{{"name", "ls"}, {"description", "List."}, {"input_schema", {{"type", "object"}}}}}},
      {"messages", {user("list")}}};
  const Json counted = post("/v1/messages/count_tokens", body)["input_tokens"];
  const Json usage = post("/v1/messages", body)["usage"];
  EXPECT_EQ(usage["input_tokens"].get<int>() + usage.value("cache_read_input_tokens", 0), counted);
  EXPECT_EQ(counted, requests_.at(0).prompt.size());
  body["stream"] = true;
  http::RawClient c = client();
  c.send(http_post("/v1/messages", dump_json(body)));
  const std::string events = c.read_reply().body;
  EXPECT_NE(events.find("\"input_tokens\":" + counted.dump()), std::string::npos) << events;
}

TEST_F(Reports, N82AClaudeCodeShapedRequest) {
  ScriptedReply reply;
  reply.ids = ids("I read it.</think>" + call("tool_3", "path", "/a b") + "<|observation|>");
  play(reply);
  Json body = Json::parse(R"({"model":"claude","max_tokens":500,"stream":true,"thinking":{"type":"adaptive"},
      "context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},
      "metadata":{"user_id":"u"},
      "system":[{"type":"text","text":"You are an agent.","cache_control":{"type":"ephemeral"}}],
      "messages":[{"role":"user","content":[{"type":"text","text":"read","cache_control":{"type":"ephemeral"}}]},
        {"role":"assistant","content":[{"type":"thinking","thinking":"Use it.","signature":"s"},
          {"type":"tool_use","id":"t1","name":"tool_1","input":{"path":"x"}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","is_error":true,"content":"no such file"}]}]})");
  for (int i = 0; i < 15; ++i)
    body["tools"].push_back(
        {{"name", "tool_" + std::to_string(i)},
         {"description", "A tool."},
         {"input_schema", Json::parse(R"({"type":"object","properties":{"path":{"type":"string"}}})")}});
  http::RawClient c = client();
  c.send(http_post("/v1/messages?beta=true", dump_json(body)));
  const http::RawReply got = c.read_reply();
  ASSERT_EQ(got.status, 200) << got.body;
  EXPECT_NE(got.body.find(R"("type":"tool_use")"), std::string::npos) << got.body;
  EXPECT_NE(got.body.find(R"("partial_json":"{\"path\":\"/a b\"}")"), std::string::npos) << got.body;
  EXPECT_NE(got.body.find(R"("stop_reason":"tool_use")"), std::string::npos);
  EXPECT_NE(tokenizer().decode(requests_.at(0).prompt).find("no such file"), std::string::npos);
}

TEST_F(Reports, N84LogprobsWithoutAlternatives) {
  play_text("hi");
  const Json entry = send(off(chat(R"("logprobs":true)"))).chunks[0]["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(entry["top_logprobs"], Json::array());
  EXPECT_TRUE(entry["bytes"].is_array());
}

TEST_F(Reports, N86APictureInAToolResultEndsNoSession) {
  play_text("</think>I cannot see it.");
  Json body = with_tools({bash()});
  body["messages"] = Json::parse(R"([{"role":"user","content":"look"},
      {"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"bash","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"shot"},
        {"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}])");
  EXPECT_EQ(send(body).content, "I cannot see it.");
  const std::string result = "<tool_response>shot<reminder>You are unable to process this image";
  EXPECT_NE(prompt_of(body).find(result), std::string::npos) << prompt_of(body);
  const Json messages =
      Json::parse(R"({"model":"m","max_tokens":20,"messages":[{"role":"user","content":"look"},
      {"role":"assistant","content":[{"type":"tool_use","id":"1","name":"bash","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"shot"},
        {"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}]}]}]})");
  post("/v1/messages", messages);
  EXPECT_NE(tokenizer().decode(requests_.back().prompt).find(result), std::string::npos);
  const Json response = Json::parse(R"({"input":[{"role":"user","content":"look"},
      {"type":"function_call","call_id":"1","name":"bash","arguments":"{}"},
      {"type":"function_call_output","call_id":"1","output":[{"type":"input_text","text":"shot"},
        {"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo="}]}]})");
  post("/v1/responses", response);
  EXPECT_NE(tokenizer().decode(requests_.back().prompt).find(result), std::string::npos);
}

TEST_F(Reports, N89OneDefaultWithAndWithoutTools) {
  const auto thinks = [&](const Json& body) { return prompt_of(body).ends_with("<|assistant|><think>"); };
  EXPECT_TRUE(thinks(chat()));
  EXPECT_TRUE(thinks(with_tools({weather()})));
  ApiOptions o = options();
  o.thinking = false;
  start(o, engine_info());
  EXPECT_FALSE(thinks(chat()));
  EXPECT_FALSE(thinks(with_tools({weather()})));
}

TEST_F(Reports, N92RequestsWithoutSeedRepeatUnlessAskedNotTo) {
  play_text("</think>x");
  const auto seeds = [&] {
    const size_t before = requests_.size();
    for (int i = 0; i < 3; ++i) send(chat(R"("temperature":1)"));
    std::vector<std::optional<uint64_t>> out;
    for (size_t i = before; i < requests_.size(); ++i) out.push_back(requests_[i].sampling.seed);
    return out;
  };
  const auto same = seeds();
  ASSERT_EQ(same.size(), 3u);
  EXPECT_EQ(same[0], same[1]);
  EXPECT_EQ(same[1], same[2]);
  ApiOptions o = options();
  o.random_seed = true;
  start(o, engine_info());
  const auto fresh = seeds();
  EXPECT_NE(fresh[0], fresh[1]);
  send(chat(R"("temperature":1,"seed":5)"));
  EXPECT_EQ(requests_.back().sampling.seed, 5u);
}

}  // namespace
}  // namespace firesteel::api
