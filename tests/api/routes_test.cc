// The routes beside chat: completions, Messages, tokenize; keys and CORS.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "api_fixture.h"

namespace firesteel::api {
namespace {

class RoutesTest : public ApiFixture {
 protected:
  Json post(const std::string& path, const Json& body, int expect = 200) {
    http::RawClient c = client();
    c.send(http_post(path, dump_json(body)));
    const http::RawReply reply = c.read_reply();
    EXPECT_EQ(reply.status, expect) << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
  std::string stream(const std::string& path, const Json& body) {
    http::RawClient c = client();
    c.send(http_post(path, dump_json(body)));
    return c.read_reply().body;
  }
};

TEST_F(RoutesTest, TokenizeAndBack) {
  const std::string text = "caf\xC3\xA9 <think> 東京 😢";
  const Json out = post("/tokenize", {{"prompt", text}, {"return_token_strs", true}});
  EXPECT_EQ(out["tokens"].get<std::vector<int32_t>>(), ids(text));
  EXPECT_EQ(out["count"], ids(text).size());
  EXPECT_EQ(out["token_strs"].size(), ids(text).size());
  EXPECT_EQ(post("/v1/detokenize", {{"tokens", out["tokens"]}})["prompt"], text);
  const Json chat_ids = post("/v1/tokenize", chat(R"("reasoning_effort":"none")"));
  EXPECT_EQ(chat_ids["tokens"].get<std::vector<int32_t>>(),
            ids("[gMASK]<sop><|user|>hi<|assistant|><think></think>"));
  EXPECT_EQ(post("/tokenize", Json::object(), 400)["error"]["param"], "prompt");
  EXPECT_EQ(post("/detokenize", {{"tokens", {1, 5000}}}, 400)["error"]["param"], "tokens");
  EXPECT_EQ(post("/detokenize", {{"tokens", {-1}}}, 400)["error"]["param"], "tokens");
}

TEST_F(RoutesTest, TokenizingRandomTextsRoundTrips) {
  std::mt19937 rng(std::random_device{}());
  const std::vector<std::string> pieces = {"a", " ", "\n", "é", "東", "😢", "<|user|>", "0", "\t", "ß", "x y"};
  for (int round = 0; round < 50; ++round) {
    std::string text;
    for (size_t i = 0, n = 1 + rng() % 40; i < n; ++i) text += pieces[rng() % pieces.size()];
    const Json out = post("/tokenize", {{"prompt", text}});
    ASSERT_EQ(post("/detokenize", {{"tokens", out["tokens"]}})["prompt"], text);
  }
}

TEST_F(RoutesTest, Completions) {
  play_text(" is <think>raw</think> Oslo.");
  Json body = {{"prompt", "The capital"}, {"max_tokens", 30}};
  Json out = post("/v1/completions", body);
  EXPECT_EQ(out["object"], "text_completion");
  EXPECT_EQ(out["choices"][0]["text"], " is <think>raw</think> Oslo.");
  EXPECT_EQ(out["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(requests_.at(0).prompt, ids("The capital"));
  EXPECT_EQ(out["usage"]["prompt_tokens"], ids("The capital").size());
  body["echo"] = true;
  EXPECT_EQ(post("/v1/completions", body)["choices"][0]["text"], "The capital is <think>raw</think> Oslo.");
  body = {{"prompt", ids("The capital")}, {"stop", "Oslo"}};
  out = post("/v1/completions", body);
  EXPECT_EQ(requests_.back().prompt, ids("The capital"));
  EXPECT_EQ(out["choices"][0]["text"], " is <think>raw</think> ");
  body = {{"prompt", {"one", "two"}}, {"n", 2}, {"seed", 3}};
  out = post("/v1/completions", body);
  ASSERT_EQ(out["choices"].size(), 4u);
  EXPECT_EQ(out["choices"][3]["index"], 3);
  EXPECT_EQ(out["usage"]["prompt_tokens"], ids("one").size() + ids("two").size());
  for (const Json& bad :
       {Json(""), Json(5), Json::array(), Json{1, "x"}, Json{1, 99999}, Json{{1}, "x", {-1}}}) {
    EXPECT_EQ(post("/v1/completions", {{"prompt", bad}}, 400)["error"]["param"], "prompt") << bad.dump();
  }
  EXPECT_EQ(post("/v1/completions", {{"prompt", "x"}, {"suffix", "y"}}, 400)["error"]["param"], "suffix");
  const std::string events = stream("/v1/completions", {{"prompt", "x"}, {"stream", true}});
  EXPECT_NE(events.find("\"object\":\"text_completion\""), std::string::npos);
  EXPECT_TRUE(events.ends_with("data: [DONE]\n\n"));
}

TEST_F(RoutesTest, CompletionsStreamedEqualsWhole) {
  std::mt19937 rng(std::random_device{}());
  const std::string text = "Some text é 東京 with </think> and a STOP inside";
  for (int round = 0; round < 30; ++round) {
    ScriptedReply reply;
    reply.ids = cut_ids(text, rng);
    reply.slices = {1 + static_cast<int>(rng() % 7)};
    play(reply);
    Json body = {{"prompt", "x"}, {"stop", rng() % 2 ? "STOP" : "none"}};
    const Json whole = post("/v1/completions", body);
    body["stream"] = true;
    const std::string events = stream("/v1/completions", body);
    std::string joined;
    Json usage;
    for (size_t at = 0, end; (end = events.find("\n\n", at)) != std::string::npos; at = end + 2) {
      const std::string data = events.substr(at + 6, end - at - 6);
      if (data == "[DONE]") break;
      const Json chunk = Json::parse(data);
      joined += chunk["choices"][0]["text"].get<std::string>();
      if (chunk.contains("usage")) usage = chunk["usage"];
    }
    ASSERT_EQ(joined, whole["choices"][0]["text"]);
    ASSERT_EQ(usage, whole["usage"]);
  }
}

TEST_F(RoutesTest, MessagesWhole) {
  play_text("I think.</think>The answer.");
  Json body = {{"model", "m"}, {"max_tokens", 50}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  Json out = post("/v1/messages", body);
  EXPECT_EQ(requests_.at(0).prompt, ids("[gMASK]<sop><|user|>hi<|assistant|><think></think>"))
      << "thinking is off";
  EXPECT_EQ(out["type"], "message");
  EXPECT_EQ(out["role"], "assistant");
  EXPECT_EQ(out["stop_reason"], "end_turn");
  body["thinking"] = {{"type", "adaptive"}};
  body["system"] = {{{"type", "text"}, {"text", "Be brief."}, {"cache_control", {{"type", "ephemeral"}}}}};
  out = post("/messages", body);
  EXPECT_EQ(
      requests_.at(1).prompt,
      ids("[gMASK]<sop><|system|>Reasoning Effort: Max<|system|>Be brief.<|user|>hi<|assistant|><think>"));
  ASSERT_EQ(out["content"].size(), 2u);
  EXPECT_EQ(out["content"][0], Json({{"type", "thinking"}, {"thinking", "I think."}, {"signature", ""}}));
  EXPECT_EQ(out["content"][1], Json({{"type", "text"}, {"text", "The answer."}}));
  EXPECT_EQ(out["usage"]["input_tokens"], requests_.at(1).prompt.size());
  EXPECT_EQ(post("/v1/messages/count_tokens", body)["input_tokens"], requests_.at(1).prompt.size());
  body["stop_sequences"] = {"answer"};
  out = post("/v1/messages", body);
  EXPECT_EQ(out["stop_reason"], "stop_sequence");
  EXPECT_EQ(out["stop_sequence"], "answer");
}

TEST_F(RoutesTest, MessagesHistory) {
  play_text("ok");
  const Json body = {{"model", "m"},
                     {"max_tokens", 50},
                     {"messages",
                      {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "list"}}}}},
                       {{"role", "assistant"},
                        {"content",
                         {{{"type", "thinking"}, {"thinking", "Use it."}, {"signature", ""}},
                          {{"type", "redacted_thinking"}, {"data", "x"}},
                          {{"type", "tool_use"}, {"id", "t1"}, {"name", "ls"}, {"input", {{"path", "/"}}}}}}},
                       {{"role", "user"},
                        {"content",
                         {{{"type", "tool_result"},
                           {"tool_use_id", "t1"},
                           {"content", {{{"type", "text"}, {"text", "a.txt"}}}}},
                          {{"type", "text"}, {"text", "and now?"}}}}}}}};
  post("/v1/messages", body);
  EXPECT_EQ(tokenizer().decode(requests_.at(0).prompt),
            "[gMASK]<sop><|user|>list<|assistant|><think>Use it.</think><tool_call>ls<arg_key>path</arg_key>"
            "<arg_value>/</arg_value></tool_call><|observation|><tool_response>a.txt</"
            "tool_response><|user|>and now?"
            "<|assistant|><think></think>");
}

TEST_F(RoutesTest, MessagesTools) {
  ScriptedReply reply;
  reply.ids = ids(
      "Let me look.<tool_call>ls<arg_key>path</arg_key><arg_value>/</arg_value></tool_call><|observation|>");
  play(reply);
  Json body = {{"model", "m"},
               {"max_tokens", 50},
               {"tools",
                {{{"name", "ls"},
                  {"description", "List."},
                  {"input_schema", {{"type", "object"}, {"properties", {{"path", {{"type", "string"}}}}}}}},
                 {{"type", "web_search_20250305"}, {"name", "web_search"}}}},
               {"messages", {{{"role", "user"}, {"content", "list"}}}}};
  const Json out = post("/v1/messages", body);
  EXPECT_EQ(out["stop_reason"], "tool_use");
  ASSERT_EQ(out["content"].size(), 2u);
  EXPECT_EQ(out["content"][0]["text"], "Let me look.");
  EXPECT_EQ(out["content"][1]["type"], "tool_use");
  EXPECT_EQ(out["content"][1]["name"], "ls");
  EXPECT_EQ(out["content"][1]["input"], Json({{"path", "/"}}));
  const std::string prompt = tokenizer().decode(requests_.at(0).prompt);
  EXPECT_NE(prompt.find("\"name\": \"ls\""), std::string::npos);
  EXPECT_EQ(prompt.find("web_search"), std::string::npos);
  body["stream"] = true;
  const std::string events = stream("/v1/messages", body);
  EXPECT_NE(events.find(R"("delta":{"type":"input_json_delta","partial_json":"{\"path\":\"/\"}"})"),
            std::string::npos)
      << events;
  EXPECT_NE(events.find(R"("stop_reason":"tool_use")"), std::string::npos);
}

TEST_F(RoutesTest, MessagesErrors) {
  const Json user = {{{"role", "user"}, {"content", "hi"}}};
  const auto refused = [&](Json body, const std::string& words) {
    const Json out = post("/v1/messages", body, 400);
    EXPECT_EQ(out["type"], "error");
    EXPECT_EQ(out["error"]["type"], "invalid_request_error");
    EXPECT_NE(out["error"]["message"].get<std::string>().find(words), std::string::npos) << out.dump();
    EXPECT_TRUE(out.contains("request_id"));
  };
  refused({{"model", "m"}, {"messages", user}}, "max_tokens");
  refused({{"max_tokens", 5}, {"messages", user}}, "model");
  refused({{"model", "m"}, {"max_tokens", 5}, {"messages", Json::array()}}, "messages");
  refused({{"model", "m"}, {"max_tokens", 0}, {"messages", user}}, "max_tokens");
  refused({{"model", "m"}, {"max_tokens", 5000}, {"messages", user}}, "prompt is too long: ");
  refused({{"model", "m"},
           {"max_tokens", 5},
           {"messages", user},
           {"thinking", {{"type", "enabled"}, {"budget_tokens", 9}}}},
          "budget_tokens");
}

TEST_F(RoutesTest, MessagesStream) {
  play_text("I think.</think>The answer.");
  const std::string events = stream("/v1/messages", {{"model", "m"},
                                                     {"max_tokens", 50},
                                                     {"stream", true},
                                                     {"thinking", {{"type", "adaptive"}}},
                                                     {"messages", {{{"role", "user"}, {"content", "hi"}}}}});
  std::vector<std::string> order;
  std::string thinking, text;
  for (size_t at = 0, end; (end = events.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string event = events.substr(at, end - at);
    const size_t line = event.find("\ndata: ");
    ASSERT_NE(line, std::string::npos) << event;
    const Json data = Json::parse(event.substr(line + 7));
    ASSERT_EQ(event.substr(7, line - 7), data["type"].get<std::string>());
    std::string what = data["type"].get<std::string>();
    if (what == "message_start") {
      EXPECT_EQ(data["message"]["usage"]["input_tokens"], requests_.at(0).prompt.size());
    }
    if (what == "content_block_start") what += " " + data["content_block"]["type"].get<std::string>();
    if (what == "content_block_delta") {
      thinking += data["delta"].value("thinking", "");
      text += data["delta"].value("text", "");
      what = data["delta"]["type"].get<std::string>();
    }
    if (order.empty() || order.back() != what) order.push_back(what);
    if (what == "message_delta") {
      EXPECT_EQ(data["delta"]["stop_reason"], "end_turn");
      EXPECT_GT(data["usage"]["output_tokens"], 0);
    }
  }
  EXPECT_EQ(thinking, "I think.");
  EXPECT_EQ(text, "The answer.");
  EXPECT_EQ(order,
            (std::vector<std::string>{"message_start", "content_block_start thinking", "thinking_delta",
                                      "signature_delta", "content_block_stop", "content_block_start text",
                                      "text_delta", "content_block_stop", "message_delta", "message_stop"}));
}

TEST_F(RoutesTest, KeysAreRequiredOnceThereAreAny) {
  ApiOptions o = options();
  o.access.keys = {"alice: secret-1", "secret-2"};
  start(o, engine_info());
  play_text("</think>x");
  http::RawClient c = client();
  const auto status = [&](const std::string& header, const std::string& path = "/v1/models") {
    c.send("GET " + path + " HTTP/1.1\r\nHost: h\r\n" + header + "\r\n");
    return c.read_reply();
  };
  EXPECT_EQ(status("").status, 401);
  EXPECT_EQ(status("Authorization: Bearer secret-1\r\n").status, 200);
  EXPECT_EQ(status("authorization: bearer secret-2\r\n").status, 200);
  EXPECT_EQ(status("x-api-key: secret-2\r\n").status, 200);
  for (const char* wrong :
       {"Authorization: Bearer secret-\r\n", "Authorization: Bearer secret-11\r\n",
        "Authorization: Basic secret-1\r\n", "x-api-key: alice: secret-1\r\n", "x-api-key: \r\n"}) {
    const http::RawReply reply = status(wrong);
    EXPECT_EQ(reply.status, 401) << wrong;
    EXPECT_EQ(reply.headers.at("www-authenticate"), "Bearer");
    EXPECT_EQ(Json::parse(reply.body)["error"]["code"], "invalid_api_key");
    EXPECT_EQ(reply.body.find("secret"), std::string::npos);
  }
  EXPECT_EQ(status("", "/health").body, R"({"status":"ok"})");
  EXPECT_GT(status("x-api-key: secret-2\r\n", "/health").body.size(), 100u);
  EXPECT_EQ(status("", "/ready").status, 200);
  c.send(http_post("/v1/messages", "{}"));
  EXPECT_EQ(Json::parse(c.read_reply().body)["error"]["type"], "authentication_error");
}

TEST_F(RoutesTest, TheKeyFileIsReadAgainWhenItChanges) {
  const std::string path = ::testing::TempDir() + "/keys-" + std::to_string(::getpid());
  const auto write = [&](const std::string& text, mode_t mode) {
    std::ofstream(path + ".new") << text;
    ::chmod((path + ".new").c_str(), mode);
    std::filesystem::rename(path + ".new", path);
  };
  write("# people\nbob: one\n", 0644);
  AccessOptions wide;
  wide.key_file = path;
  const auto refused = Access::create(wide);
  ASSERT_FALSE(refused.ok()) << "others may read it";
  EXPECT_EQ(refused.error().message.find("one"), std::string::npos);
  write("# people\nbob: one\n", 0600);
  auto access = Access::create(wide);
  ASSERT_TRUE(access.ok()) << access.error().message;
  const auto label = [&](const std::string& key) {
    http::RequestHead head;
    head.headers.push_back({"x-api-key", key});
    return (*access)->authenticate(head);
  };
  EXPECT_EQ(label("one"), "bob");
  EXPECT_FALSE(label("two"));
  write("carol: two\n", 0600);
  EXPECT_TRUE(eventually([&] { return label("two") == "carol"; }));
  EXPECT_FALSE(label("one"));
  write("broken line here\n", 0600);
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  EXPECT_EQ(label("two"), "carol") << "a damaged file does not lock people out";
  std::filesystem::remove(path);
}

TEST_F(RoutesTest, Cors) {
  ApiOptions o = options();
  o.access.keys = {"secret"};
  o.access.cors_origins = {"https://ui.example", "http://localhost:3000"};
  start(o, engine_info());
  http::RawClient c = client();
  c.send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: h\r\nOrigin: https://ui.example\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, "
      "content-type\r\n\r\n");
  http::RawReply reply = c.read_reply();
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.headers.at("access-control-allow-origin"), "https://ui.example");
  EXPECT_EQ(reply.headers.at("access-control-allow-headers"), "authorization, content-type");
  EXPECT_EQ(reply.headers.at("vary"), "Origin");
  c.send("GET /v1/models HTTP/1.1\r\nHost: h\r\nOrigin: http://localhost:3000\r\n\r\n");
  reply = c.read_reply();
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(reply.headers.at("access-control-allow-origin"), "http://localhost:3000")
      << "errors carry it too";
  c.send("GET /v1/models HTTP/1.1\r\nHost: h\r\nOrigin: https://other.example\r\nx-api-key: secret\r\n\r\n");
  reply = c.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.count("access-control-allow-origin"), 0u);
  play_text("</think>x");
  Json body = chat(R"("stream":true)");
  const std::string text = dump_json(body);
  c.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nOrigin: https://ui.example\r\nx-api-key: secret\r\n"
      "Content-Length: " +
      std::to_string(text.size()) + "\r\n\r\n" + text);
  reply = c.read_reply();
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(reply.headers.at("access-control-allow-origin"), "https://ui.example") << "streams too";
  start(options(), engine_info());
  http::RawClient off = client();
  off.send("OPTIONS /v1/models HTTP/1.1\r\nHost: h\r\nOrigin: https://ui.example\r\n\r\n");
  EXPECT_EQ(off.read_reply().status, 405);
  AccessOptions bad;
  bad.cors_origins = {"*", "https://a.example"};
  EXPECT_FALSE(Access::create(bad).ok());
}

}  // namespace
}  // namespace firesteel::api
