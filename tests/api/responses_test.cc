// POST /v1/responses over real sockets, with scripted replies: whole and streamed, what is stored, what comes
// after an error.
#include <chrono>

#include "api_fixture.h"
#include "responses_stream.h"

namespace firesteel::api {
namespace {

using namespace std::chrono_literals;

const char kTools[] =
    R"([{"type":"web_search"},{"type":"function","name":"get_weather","parameters":{"type":"object","properties":
        {"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}},
        {"type":"custom","name":"apply_patch","description":"Edits files."}])";
const char kWeather[] =
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key>"
    "<arg_value>2</arg_value></tool_call>";
const char kPatch[] =
    "<tool_call>apply_patch<arg_key>input</arg_key><arg_value>*** Begin\n+\"é\"\n</arg_value></tool_call>";

class ResponsesTest : public ApiFixture {
 protected:
  http::RawReply exchange(const std::string& bytes) const {
    http::RawClient c = client();
    c.send(bytes);
    return c.read_reply();
  }
  Reply ask(const Json& body) const {
    Reply out;
    const http::RawReply raw = exchange(http_post("/v1/responses", dump_json(body)));
    out.status = raw.status;
    out.raw = raw.body;
    if (raw.headers.at("content-type") == "text/event-stream") {
      StreamReader::read(raw.body, &out);
      return out;
    }
    const Json parsed = Json::parse(raw.body);
    (raw.status == 200 ? out.response : out.error) = raw.status == 200 ? parsed : parsed["error"];
    return out;
  }
  Reply ask_stream(Json body) const {
    body["stream"] = true;
    return ask(body);
  }
  Json get(const std::string& id, int expect = 200) const {
    const http::RawReply raw = exchange(http_get("/v1/responses/" + id));
    EXPECT_EQ(raw.status, expect) << raw.body;
    return Json::parse(raw.body);
  }
  static Json body(const std::string& extra = "", const std::string& text = "hi") {
    Json out = Json::parse("{" + extra + "}");
    out["input"] = text;
    return out;
  }
  static Json with_tools(const std::string& text = "hi") {
    Json out = body("", text);
    out["tools"] = Json::parse(kTools);
    return out;
  }
  /// The response without what differs from one request to the next.
  static Json bare(Json response) {
    for (const char* name : {"id", "created_at", "completed_at"}) response.erase(name);
    for (Json& item : response["output"]) {
      for (const char* name : {"id", "call_id"}) item.erase(name);
    }
    return response;
  }
  std::vector<int32_t> last_prompt() {
    std::lock_guard lock(mutex_);
    return requests_.back().prompt;
  }
  std::string last_prompt_text() { return tokenizer().decode(last_prompt()); }
};

TEST_F(ResponsesTest, WholeReply) {
  play_text("I think.</think>The answer.");
  const Reply got =
      ask(body(R"("model":"scripted","instructions":"Be kind.","max_output_tokens":50,"temperature":0.5,)"
               R"("metadata":{"a":"b"},"user":"u","reasoning":{"effort":"low","summary":"auto"})"));
  ASSERT_EQ(got.status, 200) << got.error.dump();
  const Json& r = got.response;
  EXPECT_TRUE(r["id"].get<std::string>().starts_with("resp_"));
  EXPECT_EQ(r["object"], "response");
  EXPECT_EQ(r["status"], "completed");
  EXPECT_GE(r["completed_at"].get<int64_t>(), r["created_at"].get<int64_t>());
  EXPECT_TRUE(r["error"].is_null());
  EXPECT_TRUE(r["incomplete_details"].is_null());
  EXPECT_EQ(r["model"], "scripted");
  EXPECT_EQ(r["output_text"], "The answer.");
  ASSERT_EQ(r["output"].size(), 2u);
  EXPECT_TRUE(r["output"][0]["id"].get<std::string>().starts_with("rs_"));
  EXPECT_TRUE(r["output"][1]["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(bare(r)["output"], Json::parse(R"([
      {"type":"reasoning","summary":[],"status":"completed","content":[{"type":"reasoning_text","text":"I think."}]},
      {"type":"message","role":"assistant","status":"completed",
       "content":[{"type":"output_text","text":"The answer.","annotations":[],"logprobs":[]}]}])"));
  EXPECT_EQ(r["usage"]["input_tokens"], requests_.at(0).prompt.size());
  EXPECT_EQ(r["usage"]["output_tokens"], ids("I think.</think>The answer.<|user|>").size());
  EXPECT_EQ(r["usage"]["output_tokens_details"]["reasoning_tokens"], ids("I think.</think>").size());
  EXPECT_EQ(r["usage"]["input_tokens_details"], Json::parse(R"({"cached_tokens":0,"cache_write_tokens":0})"));
  EXPECT_EQ(r["usage"]["total_tokens"],
            r["usage"]["input_tokens"].get<int>() + r["usage"]["output_tokens"].get<int>());
  EXPECT_EQ(r["instructions"], "Be kind.");
  EXPECT_EQ(r["max_output_tokens"], 50);
  EXPECT_EQ(r["temperature"], 0.5);
  EXPECT_EQ(r["top_p"], 0.95);
  EXPECT_EQ(r["metadata"], Json({{"a", "b"}}));
  EXPECT_EQ(r["reasoning"], Json({{"effort", "low"}, {"summary", "auto"}}));
  EXPECT_EQ(r["text"], Json::parse(R"({"format":{"type":"text"}})"));
  EXPECT_EQ(r["tools"], Json::array());
  EXPECT_EQ(r["tool_choice"], "auto");
  EXPECT_EQ(r["parallel_tool_calls"], true);
  EXPECT_EQ(r["store"], true);
  EXPECT_EQ(r["truncation"], "disabled");
  EXPECT_EQ(r["user"], "u");
  EXPECT_TRUE(r["previous_response_id"].is_null());
}

// "Runs as the equivalent chat completion: same prompt ids."
TEST_F(ResponsesTest, ThePromptIsTheChatRequests) {
  play_text("</think>x");
  ask(Json::parse(R"({"reasoning":{"effort":"high"},"instructions":"s","tools":[{"type":"function","name":"f",
      "description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}],
      "input":[{"role":"user","content":[{"type":"input_text","text":"one"}]},
      {"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"t"}]},
      {"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":\"b\"}"},
      {"type":"function_call_output","call_id":"c","output":"res"}]})"));
  const std::vector<int32_t> prompt = last_prompt();
  send(Json::parse(R"({"reasoning_effort":"high","tools":[{"type":"function","function":{"name":"f",
      "description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}],
      "messages":[{"role":"system","content":"s"},{"role":"user","content":"one"},
      {"role":"assistant","content":"t","reasoning_content":"r","tool_calls":[{"id":"c","type":"function",
       "function":{"name":"f","arguments":"{\"a\":\"b\"}"}}]},
      {"role":"tool","tool_call_id":"c","content":"res"}]})"));
  EXPECT_EQ(prompt, last_prompt());
}

TEST_F(ResponsesTest, TheOrderOfEvents) {
  play_text(std::string("Think.</think>Say.") + kWeather);
  const Reply got = ask_stream(with_tools());
  std::vector<std::string> types;
  for (const Json& e : got.events) {
    const std::string type = e["type"].get<std::string>();
    if (types.empty() || types.back() != type) types.push_back(type);
  }
  EXPECT_EQ(types, (std::vector<std::string>{
                       "response.created",
                       "response.in_progress",
                       "response.output_item.added",
                       "response.content_part.added",
                       "response.reasoning_text.delta",
                       "response.reasoning_text.done",
                       "response.content_part.done",
                       "response.output_item.done",
                       "response.output_item.added",
                       "response.content_part.added",
                       "response.output_text.delta",
                       "response.output_text.done",
                       "response.content_part.done",
                       "response.output_item.done",
                       "response.output_item.added",
                       "response.function_call_arguments.delta",
                       "response.function_call_arguments.done",
                       "response.output_item.done",
                       "response.completed",
                   }));
  EXPECT_EQ(got.raw.find("[DONE]"), std::string::npos);
  EXPECT_EQ(get(got.response["id"].get<std::string>()), got.response);
}

// spec/reports.md 77 and 79
TEST_F(ResponsesTest, FunctionAndCustomCallsHaveOneIdentity) {
  play_text(std::string("</think>") + kWeather + kPatch);
  for (const bool stream : {false, true}) {
    Json request = with_tools();
    request["stream"] = stream;
    const Reply got = ask(request);
    ASSERT_EQ(got.status, 200) << got.error.dump();
    const Json& output = got.response["output"];
    ASSERT_EQ(output.size(), 2u);
    EXPECT_TRUE(output[0]["id"].get<std::string>().starts_with("fc_"));
    EXPECT_TRUE(output[0]["call_id"].get<std::string>().starts_with("call_"));
    EXPECT_EQ(output[0]["arguments"], R"({"city":"Oslo","days":2})");
    EXPECT_EQ(output[1]["type"], "custom_tool_call");
    EXPECT_EQ(output[1]["name"], "apply_patch");
    EXPECT_EQ(output[1]["input"], "*** Begin\n+\"é\"\n");
    EXPECT_NE(output[0]["call_id"], output[1]["call_id"]);
    for (const Json& item : output) EXPECT_EQ(item["status"], "completed");
    // What the client sends back renders as what the model wrote.
    Json next = with_tools();
    next["input"] = Json::array({{{"role", "user"}, {"content", "hi"}}});
    for (const Json& item : output) next["input"].push_back(item);
    next["input"].push_back(
        {{"type", "custom_tool_call_output"}, {"call_id", output[1]["call_id"]}, {"output", "Done."}});
    next["input"].push_back(
        {{"type", "function_call_output"}, {"call_id", output[0]["call_id"]}, {"output", "Rain."}});
    ASSERT_EQ(ask(next).status, 200);
    const std::string prompt = last_prompt_text();
    EXPECT_NE(prompt.find(std::string(kWeather) + kPatch), std::string::npos) << prompt;
    EXPECT_LT(prompt.find("Rain."), prompt.find("Done.")) << "results stand in the order of the calls";
  }
}

TEST_F(ResponsesTest, StreamedEqualsWholeAtAnyCut) {
  const std::vector<std::string> texts = {
      "Short.</think>Answer with é, 東京, 😢👎🏽 and a stop: END here.",
      "only reasoning, cut or ended, 💙💙",
      "</think>No reasoning at all.\n\n  indented\n",
      std::string("Plan.</think>Say.") + kWeather + "Then." + kPatch,
      std::string("in thought ") + kWeather,
      std::string("</think>") + kPatch + kPatch + "  \n",
      "</think>",
      "a </think> b </think> c <tool_call> mentioned",
  };
  std::mt19937 rng(std::random_device{}());
  for (int round = 0; round < 120; ++round) {
    const std::string& text = texts[static_cast<size_t>(round) % texts.size()];
    ScriptedReply reply;
    reply.ids = round % 3 == 0 ? std::vector<int32_t>() : cut_ids(text, rng);
    // One byte at a time.
    for (size_t at = 0; round % 3 == 0 && at < text.size();) {
      const size_t n = text.compare(at, 8, "</think>") == 0 ? 8 : 1;
      const std::vector<int32_t> piece = n == 8 ? ids("</think>") : plain_ids(text.substr(at, 1));
      reply.ids.insert(reply.ids.end(), piece.begin(), piece.end());
      at += n;
    }
    if (rng() % 2) reply.ids.push_back(id("<|user|>"));
    play(reply);
    Json request = with_tools();
    if (rng() % 3 == 0) request["stop"] = {"END", "nowhere"};
    if (rng() % 3 == 0) request["max_output_tokens"] = 1 + rng() % reply.ids.size();
    if (rng() % 4 == 0) request["parallel_tool_calls"] = false;
    if (rng() % 4 == 0) request["include_reasoning"] = false;
    const Reply whole = ask(request);
    ASSERT_EQ(whole.status, 200) << whole.error.dump();
    ASSERT_EQ(get(whole.response["id"].get<std::string>()), whole.response);
    reply.slices = {1 + static_cast<int>(rng() % 16)};
    if (rng() % 3 == 0) reply.slices = {1};
    play(reply);
    const Reply streamed = ask_stream(request);
    ASSERT_FALSE(::testing::Test::HasFatalFailure()) << streamed.raw;
    ASSERT_EQ(bare(streamed.response), bare(whole.response))
        << "text " << text << "\nbody " << request.dump();
    ASSERT_EQ(get(streamed.response["id"].get<std::string>()), streamed.response);
  }
}

TEST_F(ResponsesTest, AReplyCutByTheLimitIsIncomplete) {
  const auto cut = [&](const std::string& text) {
    play_text(text + "and so on");
    Json request = with_tools();
    request["max_output_tokens"] = ids(text).size();
    const Reply got = ask_stream(request);
    EXPECT_EQ(got.response["status"], "incomplete");
    EXPECT_EQ(got.events.back()["type"], "response.incomplete");
    EXPECT_EQ(got.response["incomplete_details"], Json({{"reason", "max_output_tokens"}}));
    EXPECT_TRUE(got.response["completed_at"].is_null());
    std::vector<std::string> statuses;
    for (const Json& item : got.response["output"]) statuses.push_back(item["status"].get<std::string>());
    return statuses;
  };
  using Statuses = std::vector<std::string>;
  EXPECT_EQ(cut("Thinking"), Statuses{"incomplete"});
  EXPECT_EQ(cut("Thinking.</think>Some"), (Statuses{"completed", "incomplete"}));
  // A call that was not finished is not sent.
  EXPECT_EQ(
      cut(std::string("</think>") + kWeather + "<tool_call>get_weather<arg_key>city</arg_key><arg_value>"),
      Statuses{"completed"});
}

TEST_F(ResponsesTest, AConversationIsRebuilt) {
  play_text(std::string("r</think>One.") + kWeather);
  Json request = with_tools("first");
  request["instructions"] = "Only now.";
  const Reply one = ask(request);
  const std::string id = one.response["id"].get<std::string>();
  play_text("</think>Two.");
  request = with_tools();
  request["previous_response_id"] = id;
  request["input"] = Json::array({{{"type", "function_call_output"},
                                   {"call_id", one.response["output"][2]["call_id"]},
                                   {"output", "Rain."}}});
  const Reply two = ask_stream(request);
  ASSERT_EQ(two.status, 200) << two.error.dump();
  const std::vector<int32_t> continued = last_prompt();
  EXPECT_EQ(two.response["previous_response_id"], id);
  EXPECT_EQ(last_prompt_text().find("Only now."), std::string::npos) << "instructions are of one turn";

  // The same as all of it sent again.
  Json full = with_tools();
  full["input"] = Json::array({{{"role", "user"}, {"content", "first"}}});
  for (const Json& item : one.response["output"]) full["input"].push_back(item);
  full["input"].push_back(request["input"][0]);
  ask(full);
  EXPECT_EQ(continued, last_prompt());

  // A third turn, after the first response is gone; its text is still there.
  EXPECT_EQ(exchange("DELETE /v1/responses/" + id + " HTTP/1.1\r\nHost: h\r\n\r\n").status, 200);
  request = body("", "third");
  request["previous_response_id"] = two.response["id"];
  ASSERT_EQ(ask(request).status, 200);
  EXPECT_NE(last_prompt_text().find("first"), std::string::npos);
  EXPECT_NE(last_prompt_text().find("Two."), std::string::npos);
  request["previous_response_id"] = id;
  const Reply gone = ask(request);
  EXPECT_EQ(gone.status, 400);
  EXPECT_EQ(gone.error["code"], "previous_response_not_found");
  EXPECT_EQ(gone.error["param"], "previous_response_id");
}

TEST_F(ResponsesTest, WhatIsStoredAndWhatIsNot) {
  play_text("</think>x");
  const Json kept = ask(body()).response;
  const std::string id = kept["id"].get<std::string>();
  EXPECT_EQ(get(id), kept);
  EXPECT_EQ(exchange(http_get("/responses/" + id)).status, 200);
  EXPECT_EQ(exchange(http_get("/v1/responses/" + id + "?include[]=x")).status, 200);
  EXPECT_EQ(exchange(http_get("/v1/responses/" + id + "?stream=true")).status, 400);
  for (const bool stream : {false, true}) {
    Json request = body(R"("store":false)");
    request["stream"] = stream;
    const Json not_kept = ask(request).response;
    EXPECT_EQ(not_kept["store"], false);
    const Json error = get(not_kept["id"].get<std::string>(), 404)["error"];
    EXPECT_EQ(error["code"], "response_not_found");
    EXPECT_EQ(error["type"], "not_found_error");
  }
  const auto call = [&](const std::string& method, const std::string& path) {
    return exchange(method + " /v1/responses/" + path + " HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
  };
  http::RawReply raw = call("POST", id + "/cancel");
  EXPECT_EQ(raw.status, 400);
  EXPECT_EQ(Json::parse(raw.body)["error"]["type"], "invalid_request_error");
  EXPECT_EQ(call("POST", "resp_none/cancel").status, 404);
  raw = call("GET", id + "/cancel");
  EXPECT_EQ(raw.status, 405);
  EXPECT_EQ(raw.headers["allow"], "POST");
  EXPECT_EQ(call("GET", "input_tokens").status, 405);
  raw = call("POST", id);
  EXPECT_EQ(raw.status, 405);
  EXPECT_EQ(raw.headers["allow"], "GET, DELETE");
  raw = call("DELETE", id);
  EXPECT_EQ(raw.status, 200);
  EXPECT_EQ(Json::parse(raw.body), Json({{"id", id}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(call("DELETE", id).status, 404);
  get(id, 404);
}

TEST_F(ResponsesTest, InputTokensAreThePrompts) {
  play_text("</think>x");
  Json request = with_tools("count me");
  request["instructions"] = "s";
  const http::RawReply raw = exchange(http_post("/v1/responses/input_tokens", dump_json(request)));
  ASSERT_EQ(raw.status, 200) << raw.body;
  const Json counted = Json::parse(raw.body);
  EXPECT_EQ(counted["object"], "response.input_tokens");
  EXPECT_EQ(counted["input_tokens"], ask(request).response["usage"]["input_tokens"]);
  EXPECT_EQ(requests_.size(), 1u);
  EXPECT_EQ(exchange(http_post("/v1/responses/input_tokens", "{}")).status, 400);
}

TEST_F(ResponsesTest, TruncationDropsTheOldest) {
  play_text("</think>x");
  Json request = Json::parse(R"({"truncation":"auto","instructions":"Keep this.","max_output_tokens":100})");
  request["input"] = Json::array();
  for (int i = 0; i < 400; ++i) {
    const std::string n = std::to_string(i);
    request["input"].push_back(
        {{"role", "user"}, {"content", "question " + n + std::string(static_cast<size_t>(i) % 90, '.')}});
    request["input"].push_back(
        {{"type", "function_call"}, {"call_id", "c" + n}, {"name", "f"}, {"arguments", "{}"}});
    request["input"].push_back(
        {{"type", "function_call_output"}, {"call_id", "c" + n}, {"output", "result " + n}});
  }
  request["input"].push_back({{"role", "user"}, {"content", "The last one."}});
  const Reply got = ask(request);
  ASSERT_EQ(got.status, 200) << got.error.dump();
  EXPECT_EQ(got.response["truncation"], "auto");
  const size_t kept = last_prompt().size();
  EXPECT_LE(kept, 4096u - 100u);
  EXPECT_GT(kept, 4096u - 100u - 60u) << "no more than needed is left out";
  const std::string prompt = last_prompt_text();
  EXPECT_NE(prompt.find("Keep this."), std::string::npos);
  EXPECT_NE(prompt.find("The last one."), std::string::npos);
  EXPECT_EQ(prompt.find("question 0<"), std::string::npos);
  EXPECT_NE(prompt.find("result 399"), std::string::npos);
  request["truncation"] = "disabled";
  const Reply refused = ask(request);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.error["code"], "context_length_exceeded");
  EXPECT_EQ(refused.error["param"], "input");
  // What is never dropped does not fit.
  request = body(R"("truncation":"auto")", std::string(40'000, 'y'));
  EXPECT_EQ(ask(request).error["code"], "context_length_exceeded");
  request = body(R"("truncation":"auto","max_output_tokens":5000)");
  EXPECT_EQ(ask(request).error["code"], "context_length_exceeded");
}

TEST_F(ResponsesTest, RefusalsComeBeforeTheStatusLine) {
  for (const char* bad :
       {"", "[]", "{", "{\"input\":\"\xff\"}", R"({"input":[{"role":"owl","content":"x"}]})",
        R"({"input":"x","stream":true,"top_p":3})", R"({"input":"x","background":true})"}) {
    const http::RawReply raw = exchange(http_post("/v1/responses", bad));
    EXPECT_EQ(raw.status, 400) << bad;
    const Json error = Json::parse(raw.body)["error"];
    EXPECT_EQ(error["type"], "invalid_request_error") << raw.body;
    EXPECT_TRUE(error.contains("param") && error.contains("code"));
  }
  std::string deep = R"({"input":)";
  for (int i = 0; i < 300; ++i) deep += "[";
  EXPECT_EQ(exchange(http_post("/v1/responses", deep)).status, 400);
  EXPECT_TRUE(requests_.empty());
}

// spec/reports.md 78
TEST_F(ResponsesTest, ACodexShapedRequest) {
  play_text(std::string("</think>") + kPatch);
  const Reply got =
      ask(Json::parse(R"({"model":"gpt-5","stream":true,"store":false,"instructions":"You are an agent.",
      "input":[{"type":"message","role":"developer","content":[{"type":"input_text","text":"rules"}]},
               {"type":"message","role":"user","content":[{"type":"input_text","text":"fix it"}]},
               {"type":"reasoning","summary":[],"content":null,"encrypted_content":"AAA"},
               {"type":"local_shell_call","call_id":"c0","action":{"type":"exec"}}],
      "tools":[{"type":"function","name":"shell","strict":false,"parameters":{"type":"object","properties":{}}},
               {"type":"web_search","external_web_access":false},{"type":"image_generation","output_format":"png"},
               {"type":"namespace","name":"n","description":"d","tools":[]},
               {"type":"custom","name":"apply_patch","description":"Edits.",
                "format":{"type":"grammar","syntax":"lark","definition":"start: X"}}],
      "tool_choice":"auto","parallel_tool_calls":false,"reasoning":{"effort":"medium","summary":"auto"},
      "include":["reasoning.encrypted_content"],"prompt_cache_key":"k","text":{"verbosity":"low"},
      "client_metadata":{"x":"y"}})"));
  ASSERT_EQ(got.status, 200) << got.error.dump();
  ASSERT_EQ(got.response["output"].size(), 1u);
  EXPECT_EQ(got.response["output"][0]["type"], "custom_tool_call");
  EXPECT_EQ(got.response["text"], Json::parse(R"({"format":{"type":"text"},"verbosity":"low"})"));
  EXPECT_NE(last_prompt_text().find("start: X"), std::string::npos);
  const http::RawReply probe = exchange(http_post("/v1/responses", R"({"input":[],"max_output_tokens":1})"));
  EXPECT_EQ(probe.status, 400);
}

// spec/reports.md 53
TEST_F(ResponsesTest, UsageIsTheChatRoutes) {
  play_text("r</think>a");
  const Json chat_usage = send(chat()).usage;
  for (const bool stream : {false, true}) {
    Json request = body();
    request["stream"] = stream;
    const Json usage = ask(request).response["usage"];
    EXPECT_EQ(usage["input_tokens"], chat_usage["prompt_tokens"]);
    EXPECT_EQ(usage["output_tokens"], chat_usage["completion_tokens"]);
    EXPECT_EQ(usage["total_tokens"], chat_usage["total_tokens"]);
    EXPECT_EQ(usage["input_tokens_details"]["cached_tokens"],
              chat_usage["prompt_tokens_details"]["cached_tokens"]);
    EXPECT_EQ(usage["output_tokens_details"], chat_usage["completion_tokens_details"]);
  }
}

TEST_F(ResponsesTest, AnErrorAfterOpeningIsAnEventAndAFailedResponse) {
  ScriptedReply reply;
  reply.ids = ids("r</think>half an");
  reply.error = Error{ErrorCode::kInternal, "secret path /x"};
  play(reply);
  const Reply got = ask_stream(body());
  ASSERT_EQ(got.status, 200);
  ASSERT_GE(got.events.size(), 3u);
  const Json& error = got.events[got.events.size() - 2];
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["code"], "internal_error");
  EXPECT_TRUE(error["param"].is_null());
  EXPECT_EQ(error["message"].get<std::string>().find("secret"), std::string::npos);
  EXPECT_EQ(got.events.back()["type"], "response.failed");
  EXPECT_EQ(got.response["error"]["message"], error["message"]);
  EXPECT_EQ(got.response["output"][0]["status"], "completed");
  EXPECT_EQ(got.response["output"][1]["status"], "incomplete");
  get(got.response["id"].get<std::string>(), 404);
  const Reply whole = ask(body());
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.error["type"], "server_error");
}

TEST_F(ResponsesTest, AStreamOpensBeforeTheFirstTokenAndIsKeptAlive) {
  ApiOptions o = options();
  o.http.stream_silence = 20ms;
  start(o, engine_info());
  ScriptedReply reply;
  reply.ids = ids("</think>x<|user|>");
  reply.first_delay_us = 300'000;
  play(reply);
  http::RawClient c = client();
  c.send(http_post("/v1/responses", R"({"input":"x","stream":true})"));
  EXPECT_NE(c.read_until("response.in_progress"), "");
  EXPECT_NE(c.read_until(": keepalive\n\n"), "");
  EXPECT_NE(c.read_until("response.completed"), "");
}

TEST_F(ResponsesTest, AClientThatLeavesLeavesNothingBehind) {
  ScriptedReply reply;
  reply.ids = ids("</think>" + std::string(2000, 'x'));
  reply.delay_us = 1000;
  play(reply);
  http::RawClient c = client();
  c.send(http_post("/v1/responses", R"({"input":"x","stream":true})"));
  const std::string opened = c.read_until("response.output_text.delta");
  const size_t at = opened.find("resp_");
  ASSERT_NE(at, std::string::npos);
  const std::string id = opened.substr(at, opened.find('"', at) - at);
  c.abort();
  EXPECT_TRUE(eventually([&] { return engine_->stats().running == 0; }));
  get(id, 404);
}

}  // namespace
}  // namespace firesteel::api
