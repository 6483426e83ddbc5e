// Structured outputs, forced calls, budgets and log-probabilities over the scripted engine: what the script
// says is a model's wish, the grammar has the last word.
#include "api_fixture.h"

namespace firesteel::api {
namespace {

class Structured : public ApiFixture {
 protected:
  /// The reply whole and streamed; both must be the same.
  Got both(Json body) {
    const Got whole = send(body);
    body["stream"] = true;
    const Got streamed = send(body);
    EXPECT_EQ(whole.status, 200) << whole.raw.body;
    EXPECT_EQ(whole, streamed);
    return whole;
  }
  Json complete(const Json& body) const {
    http::RawClient c(server_->port());
    c.send(http_post("/v1/completions", dump_json(body)));
    const http::RawReply reply = c.read_reply();
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body)["choices"][0];
  }
  static Json request(const std::string& fields, bool thinking = false) {
    Json body = chat(fields);
    body["reasoning_effort"] = thinking ? "low" : "none";
    body["max_tokens"] = 300;
    return body;
  }
};

const char* const kSchema =
    R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":
       {"type":"object","properties":{"ok":{"type":"boolean"},"n":{"enum":[1,25]}},"required":["ok","n"]}}})";

TEST_F(Structured, AReplyThatFitsIsLeftAlone) {
  play_text(R"({"ok": true, "n": 25})");
  const Got got = both(request(kSchema));
  EXPECT_EQ(got.content, R"({"ok": true, "n": 25})");
  EXPECT_EQ(got.finish, "stop");
}

TEST_F(Structured, AReplyThatDoesNotIsHeld) {
  play_text("certainly: the number is twentyfive and all is well with the world, is it not? I think so.");
  const Got got = both(request(kSchema));
  const Json parsed = Json::parse(got.content);
  EXPECT_TRUE(parsed["ok"].is_boolean());
  EXPECT_TRUE(parsed["n"] == 1 || parsed["n"] == 25);
  EXPECT_EQ(got.finish, "stop");
}

TEST_F(Structured, ReasoningIsFree) {
  play_text("no { json } here\n</think>{\"ok\": false, \"n\": 1}");
  const Got got = both(request(kSchema, true));
  EXPECT_EQ(got.reasoning, "no { json } here\n");
  EXPECT_EQ(got.content, R"({"ok": false, "n": 1})");
}

TEST_F(Structured, AnEndTokenTooEarlyIsReplaced) {
  play_text("</think>");
  Json body = request(R"("guided_choice":["a"])", true);
  EXPECT_EQ(both(body).content, "a");
}

TEST_F(Structured, PatternsChoicesAndGrammars) {
  play_text("2026-11-30 and more");
  EXPECT_EQ(both(request(R"("guided_regex":"[0-9]{4}-[0-9]{2}-[0-9]{2}")")).content, "2026-11-30");
  play_text("blue");
  EXPECT_EQ(both(request(R"("structured_outputs":{"choice":["red","blue"]})")).content, "blue");
  play_text("yes yes");
  EXPECT_EQ(both(request(R"("guided_grammar":"root ::= \"yes\" (\" yes\")?")")).content, "yes yes");
  play_text("{\"a\": [1, 2]}");
  EXPECT_EQ(both(request(R"("response_format":{"type":"json_object"})")).content, "{\"a\": [1, 2]}");
  Json completion = Json::parse(R"({"prompt":"x","max_tokens":50,"guided_choice":["up","down"]})");
  play_text("down");
  EXPECT_EQ(complete(completion)["text"], "down");
}

TEST_F(Structured, SeveralChoicesHaveTheirOwnConstraints) {
  play_text("blue");
  Json body = request(R"("guided_choice":["red","blue"],"n":3)");
  const Json reply = Json::parse(send(body).raw.body);
  ASSERT_EQ(reply["choices"].size(), 3u);
  for (const Json& choice : reply["choices"]) EXPECT_EQ(choice["message"]["content"], "blue");
}

TEST_F(Structured, IgnoreEosDoesNotRunPastTheGrammar) {
  play_text("blue");
  const Got got = both(request(R"("guided_choice":["red","blue"],"ignore_eos":true)"));
  EXPECT_EQ(got.content, "blue");
  EXPECT_EQ(got.finish, "stop");
}

TEST_F(Structured, GrammarsThatCannotBeUsedAreRefused) {
  play_text("x");
  const auto refused = [&](const std::string& fields, const std::string& param) {
    const Got got = send(request(fields));
    EXPECT_EQ(got.status, 400) << got.raw.body;
    EXPECT_EQ(got.error["code"], "invalid_grammar") << got.raw.body;
    EXPECT_EQ(got.error["param"], param);
    return got.error["message"].is_string() ? got.error["message"].get<std::string>() : "";
  };
  refused(R"("guided_regex":"(((")", "guided_regex");
  refused("\"guided_regex\":\"" + std::string(60'000, '(') + "\"", "guided_regex");
  refused(R"("guided_json":"{")", "guided_json");
  refused(R"("guided_grammar":"root ::= nothing")", "guided_grammar");
  const std::string message = refused(
      R"("response_format":{"type":"json_schema","json_schema":{"strict":true,"schema":
         {"type":"object","properties":{"name":{"type":"string","not":{"const":"x"}}}}}})",
      "response_format");
  EXPECT_NE(message.find("not"), std::string::npos) << message;
}

TEST_F(Structured, WhatIsNotEnforcedIsNamedInAHeader) {
  play_text("[1]");
  for (const bool stream : {false, true}) {
    Json body = request(
        R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"array","items":{"type":"integer"},
           "uniqueItems":true}}})");
    body["stream"] = stream;
    const Got got = send(body);
    EXPECT_EQ(got.status, 200) << got.raw.body;
    EXPECT_NE(got.raw.headers.at("x-schema-unsupported").find("uniqueItems"), std::string::npos);
  }
}

// --------------------------------------------------------------------------------------- forced calls

const char* const kTools =
    R"("tools":[{"type":"function","function":{"name":"set","parameters":{"type":"object","additionalProperties":false,
       "properties":{"level":{"enum":["low","high"]}},"required":["level"]}}},
       {"type":"function","function":{"name":"stop","parameters":{"type":"object","properties":{}}}}],)";

TEST_F(Structured, ARequiredCallIsMade) {
  play_text("I would rather talk about the weather, which is nice today, than call any tool at all.");
  const Got got =
      both(request(std::string(kTools) + R"("tool_choice":"required","parallel_tool_calls":false)"));
  ASSERT_EQ(got.calls.size(), 1u) << got;
  EXPECT_EQ(got.finish, "tool_calls");
  const std::string name = got.calls[0]["function"]["name"];
  EXPECT_TRUE(name == "set" || name == "stop");
}

TEST_F(Structured, ANamedCallKeepsToItsSchema) {
  play_text(
      "<tool_call>set<arg_key>level</arg_key><arg_value>highest of all</arg_value></tool_call> and so on, "
      "for "
      "long enough to end");
  const Got got = both(
      request(std::string(kTools) +
              R"("tool_choice":{"type":"function","function":{"name":"set"}},"parallel_tool_calls":false)"));
  ASSERT_EQ(got.calls.size(), 1u) << got;
  EXPECT_EQ(got.calls[0]["function"]["name"], "set");
  EXPECT_EQ(got.calls[0]["function"]["arguments"], R"({"level":"high"})");
}

TEST_F(Structured, AForcedCallComesAfterTheThinkBlock) {
  play_text("maybe <tool_call> is wrong</think><tool_call>stop</tool_call>");
  const Got got =
      both(request(std::string(kTools) + R"("tool_choice":"required","parallel_tool_calls":false)", true));
  ASSERT_EQ(got.calls.size(), 1u) << got;
  EXPECT_EQ(got.calls[0]["function"]["name"], "stop");
  EXPECT_EQ(got.content, "");
}

TEST_F(Structured, StrictToolsUnderAuto) {
  play_text("Fine. <tool_call>set<arg_key>level</arg_key><arg_value>lowest</arg_value></tool_call>");
  const Got got = both(request(
      R"("tools":[{"type":"function","function":{"name":"set","strict":true,"parameters":{"type":"object",
         "additionalProperties":false,"properties":{"level":{"enum":["low","high"]}},"required":["level"]}}}])"));
  ASSERT_EQ(got.calls.size(), 1u) << got;
  EXPECT_EQ(got.calls[0]["function"]["arguments"], R"({"level":"low"})");
  EXPECT_EQ(got.content, "Fine.");
}

// -------------------------------------------------------------------------------------------- budgets

TEST_F(Structured, ABudgetEndsTheThinkBlock) {
  play_text("one two three four five six seven eight nine ten eleven twelve answer");
  const Got got = both(request(R"("thinking_budget":6)", true));
  EXPECT_FALSE(got.reasoning.empty());
  EXPECT_NE(got.content.find("answer"), std::string::npos) << got;
  // Six tokens, the line break and the marker.
  EXPECT_LE(got.usage["completion_tokens_details"]["reasoning_tokens"].get<int>(), 9);
  EXPECT_GE(got.usage["completion_tokens_details"]["reasoning_tokens"].get<int>(), 7);
  const Json messages = Json::parse(
      R"({"model":"m","max_tokens":100,"thinking":{"type":"enabled","budget_tokens":6},
          "messages":[{"role":"user","content":"hi"}]})");
  const Json reply = Json::parse(send(messages, "/v1/messages").raw.body);
  EXPECT_EQ(reply["content"][0]["type"], "thinking");
  EXPECT_EQ(reply["content"][1]["type"], "text");
}

TEST_F(Structured, ABudgetStartsTheGrammar) {
  play_text("one two three four five six seven eight nine ten red");
  EXPECT_EQ(both(request(R"("thinking_budget":4,"guided_choice":["red"])", true)).content, "red");
}

TEST_F(Structured, TheAnswerReserveLeavesRoomForAnAnswer) {
  ApiOptions o = options();
  o.answer_reserve = true;
  start(o, engine_info());
  play([](const GenerationRequest&) {
    ScriptedReply reply;
    for (int i = 0; i < 200; ++i) reply.ids.push_back(plain_ids(" so").front());
    return reply;
  });
  Json body = request("", true);
  body["max_tokens"] = 60;
  const Got got = both(body);
  EXPECT_FALSE(got.content.empty());
  EXPECT_EQ(got.finish, "length");
}

// ----------------------------------------------------------------------------------- log-probabilities

std::string bytes_of(const Json& entries) {
  std::string out;
  for (const Json& entry : entries)
    for (const Json& byte : entry["bytes"]) out.push_back(static_cast<char>(byte.get<int>()));
  return out;
}

/// The entries of all chunks, or of the one whole reply.
Json entries(const Got& got, const char* kind) {
  Json out = Json::array();
  for (const Json& chunk : got.chunks)
    for (const Json& choice : chunk["choices"])
      if (choice["logprobs"].is_object() && choice["logprobs"].contains(kind))
        for (const Json& entry : choice["logprobs"][kind]) out.push_back(entry);
  return out;
}

TEST_F(Structured, EveryTokenOfTheTextHasItsEntry) {
  const std::string thought = "let us see…\n", answer = "Grüße, 世界! 🎉 done";
  std::mt19937 rng(3);
  for (int i = 0; i < 30; ++i) {
    ScriptedReply reply;
    reply.ids = cut_ids(thought + "</think>" + answer, rng);
    reply.ids.push_back(id("<|user|>"));
    reply.slices = {1 + i % 5};
    play(reply);
    Json body = request(R"("logprobs":true,"top_logprobs":3)", true);
    const Got whole = send(body);
    body["stream"] = true;
    const Got streamed = send(body);
    ASSERT_EQ(whole, streamed);
    EXPECT_EQ(bytes_of(entries(whole, "content")), answer);
    EXPECT_EQ(bytes_of(entries(whole, "reasoning_content")), thought);
    EXPECT_EQ(entries(whole, "content"), entries(streamed, "content"));
    EXPECT_EQ(entries(whole, "reasoning_content"), entries(streamed, "reasoning_content"));
    const Json first = entries(whole, "content")[0];
    EXPECT_EQ(first["top_logprobs"].size(), 3u);
    EXPECT_LT(first["logprob"].get<double>(), 0);
  }
  play_text("hi");
  EXPECT_TRUE(Json::parse(send(request("")).raw.body)["choices"][0]["logprobs"].is_null());
  const Json bare = Json::parse(send(request(R"("logprobs":true)")).raw.body)["choices"][0]["logprobs"];
  EXPECT_EQ(bare["content"][0]["top_logprobs"].size(), 0u);
  EXPECT_TRUE(bare["refusal"].is_null());
}

TEST_F(Structured, MarkupBlanksAndStopsHaveNoEntry) {
  play_text("First.\n\n<tool_call>stop</tool_call>Last.");
  Got got = both(request(std::string(kTools) + R"("logprobs":true)"));
  ASSERT_EQ(got.calls.size(), 1u);
  EXPECT_EQ(bytes_of(entries(got, "content")), got.content);
  play_text("First. \n \n<tool_call>stop</tool_call>");
  got = both(request(std::string(kTools) + R"("logprobs":true)"));
  EXPECT_EQ(got.content, "First.");
  EXPECT_EQ(bytes_of(entries(got, "content")), "First.");
  play_text("</think>\n\nAnswer: 42 END of it");
  got = both(request(R"("logprobs":true,"stop":["END"])", true));
  EXPECT_EQ(got.content, "Answer: 42 ");
  // The token that begins in the last blank goes on into the stop string.
  EXPECT_EQ(bytes_of(entries(got, "content")), "Answer: 42 E");
}

TEST_F(Structured, CompletionsHaveTheLegacyLists) {
  play_text("bc d");
  Json body = Json::parse(R"({"prompt":"Grüße, a","max_tokens":20,"logprobs":2})");
  const Json choice = complete(body);
  const auto joined = [](const Json& tokens) {
    std::string out;
    for (const Json& t : tokens) out += t.get<std::string>();
    return out;
  };
  EXPECT_EQ(joined(choice["logprobs"]["tokens"]), "bc d");
  const size_t count = choice["logprobs"]["tokens"].size();
  for (const char* list : {"token_logprobs", "top_logprobs", "text_offset"})
    EXPECT_EQ(choice["logprobs"][list].size(), count) << list;
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][0].size(), 2u);
  EXPECT_EQ(choice["logprobs"]["text_offset"][0], 0);
}

// best_of choices are made, the n likeliest of each prompt are shown; the scripted log-probability of a token
// follows from its id.
TEST_F(Structured, BestOfShowsTheLikeliest) {
  EngineInfo info = engine_info();
  info.max_queue = 64;
  start(options(), info);
  play([](const GenerationRequest& request) {
    ScriptedReply reply;
    reply.ids = plain_ids("reply " + std::to_string(*request.sampling.seed % 7) +
                          (request.prompt.size() > 1 ? " long" : ""));
    return reply;
  });
  const auto texts = [](const Json& body) {
    std::vector<std::string> out;
    for (const Json& c : body["choices"]) out.push_back(c["text"].get<std::string>());
    return out;
  };
  const auto post = [this](Json body) {
    http::RawClient c(server_->port());
    c.send(http_post("/v1/completions", dump_json(body)));
    const http::RawReply r = c.read_reply();
    return std::make_pair(r.status, Json::parse(r.body));
  };
  Json body = Json::parse(R"({"prompt":["x","two words"],"n":6,"seed":9,"logprobs":0})");
  const auto [status, all] = post(body);
  ASSERT_EQ(status, 200) << all.dump();
  std::vector<std::string> expected;
  for (size_t prompt = 0; prompt < 2; ++prompt) {
    std::vector<std::pair<double, size_t>> ranked;
    for (size_t i = 0; i < 6; ++i) {
      const Json& own = all["choices"][prompt * 6 + i]["logprobs"]["token_logprobs"];
      double sum = 0;
      for (const Json& v : own) sum += v.get<double>();
      ranked.emplace_back(-sum / static_cast<double>(own.size()), prompt * 6 + i);
    }
    std::sort(ranked.begin(), ranked.end());
    for (size_t k = 0; k < 2; ++k) expected.push_back(all["choices"][ranked[k].second]["text"]);
  }
  body["n"] = 2;
  body["best_of"] = 6;
  body.erase("logprobs");
  const auto [best_status, best] = post(body);
  ASSERT_EQ(best_status, 200) << best.dump();
  EXPECT_EQ(texts(best), expected);
  EXPECT_TRUE(best["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(best["choices"][3]["index"], 3);
  EXPECT_EQ(best["usage"], all["usage"]) << "every token that was decoded counts";
  body["logprobs"] = 1;
  EXPECT_EQ(texts(post(body).second), expected);
  for (const char* bad : {R"("best_of":1,"n":2)", R"("best_of":21)", R"("best_of":3,"stream":true)",
                          R"("best_of":"x")", R"("best_of":2,"max_tokens":0,"echo":true)"}) {
    const auto [code, error] = post(Json::parse(std::string(R"({"prompt":"x",)") + bad + "}"));
    EXPECT_EQ(code, 400) << bad;
    EXPECT_EQ(error["error"]["param"], "best_of") << bad;
  }
}

TEST_F(Structured, AnEchoWithoutReply) {
  play_text("never seen");
  for (const bool stream : {false, true}) {
    Json body = Json::parse(R"({"prompt":"one two","max_tokens":0,"echo":true})");
    body["stream"] = stream;
    http::RawClient c(server_->port());
    c.send(http_post("/v1/completions", dump_json(body)));
    const http::RawReply reply = c.read_reply();
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.body.find("never"), std::string::npos);
    EXPECT_NE(reply.body.find("\"text\":\"one two\""), std::string::npos) << reply.body;
    EXPECT_NE(reply.body.find("\"finish_reason\":\"length\""), std::string::npos);
    EXPECT_NE(reply.body.find("\"completion_tokens\":0"), std::string::npos) << reply.body;
  }
  EXPECT_EQ(send(Json::parse(R"({"prompt":"one","max_tokens":0})"), "/v1/completions").status, 400);
}

TEST_F(Structured, SettingsReachTheEngine) {
  play_text("x");
  send(request(
      R"("logit_bias":{"5":-100},"presence_penalty":1,"frequency_penalty":0.5,"repetition_penalty":1.5,
                  "logprobs":true,"top_logprobs":4)"));
  std::lock_guard lock(mutex_);
  const GenerationRequest& r = requests_.back();
  EXPECT_EQ(r.rules.bias.size(), 1u);
  EXPECT_EQ(r.rules.presence, 1);
  EXPECT_EQ(r.rules.frequency, 0.5);
  EXPECT_EQ(r.rules.repetition, 1.5);
  EXPECT_EQ(r.logprobs, 4);
}

TEST_F(Structured, MasksAreTimed) {
  play_text("not JSON");
  send(request(R"("response_format":{"type":"json_object"})"));
  http::RawClient c(server_->port());
  c.send(http_get("/metrics"));
  const std::string metrics = c.read_reply().body;
  const size_t at = metrics.find("firesteel_grammar_fill_seconds_count");
  ASSERT_NE(at, std::string::npos);
  EXPECT_GT(std::atoi(metrics.c_str() + metrics.find(' ', at)), 0);
}

TEST_F(Structured, AnEchoedMessageBeginsTheContent) {
  play_text(" and the rest");
  Json body = request(R"("continue_final_message":true,"echo":true,"n":2)");
  body["messages"].push_back({{"role", "assistant"}, {"content", "The beginning"}});
  const Got whole = send(body);
  ASSERT_EQ(whole.status, 200) << whole.raw.body;
  EXPECT_EQ(whole.content, "The beginning and the rest");
  body.erase("n");
  both(body);
}

TEST_F(Structured, APredictionIsCountedAndChangesNothing) {
  play_text("As before.");
  Got plain = both(request("\"seed\":1"));
  const Got predicted = both(request(R"("seed":1,"prediction":{"type":"content","content":"As before."})"));
  EXPECT_EQ(predicted.usage["completion_tokens_details"]["accepted_prediction_tokens"], 0);
  EXPECT_EQ(predicted.usage["completion_tokens_details"]["rejected_prediction_tokens"], 0);
  EXPECT_FALSE(plain.usage["completion_tokens_details"].contains("accepted_prediction_tokens"));
  plain.usage = predicted.usage;
  EXPECT_EQ(plain, predicted);
}

TEST_F(Structured, AnUnknownBiasedTokenIsNamed) {
  const Got got = send(request(R"("logit_bias":{"4096":1})"));
  EXPECT_EQ(got.status, 400);
  EXPECT_EQ(got.error["param"], "logit_bias");
}

}  // namespace
}  // namespace firesteel::api
