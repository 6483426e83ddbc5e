// Bodies of chat requests to the internal request: what is accepted, what is refused and how.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "api/chat_request.h"
#include "base/json.h"
#include "text/tool_schema.h"

namespace firesteel::api {
namespace {

std::variant<ChatRequest, ApiError> parse(const std::string& text) {
  auto body = parse_body(text);
  if (auto* e = std::get_if<ApiError>(&body)) return *e;
  return parse_chat_request(std::get<Json>(body), {});
}

// A request with one user message and `fields` beside it.
std::string with(const std::string& fields) {
  std::string out = R"({"messages":[{"role":"user","content":"hi"}])";
  if (!fields.empty()) out.append(",").append(fields);
  out.append("}");
  return out;
}

ChatRequest accept(const std::string& fields) {
  auto parsed = parse(with(fields));
  if (auto* e = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << fields << ": " << e->message;
    return {};
  }
  return std::get<ChatRequest>(std::move(parsed));
}

ApiError refuse_body(const std::string& text) {
  auto parsed = parse(text);
  if (auto* e = std::get_if<ApiError>(&parsed)) return *e;
  ADD_FAILURE() << text << " was accepted";
  return {};
}

void expect_refused(const std::string& fields, const std::string& param, const std::string& code) {
  const ApiError e = refuse_body(with(fields));
  EXPECT_EQ(e.status, 400) << fields;
  EXPECT_EQ(e.type, "invalid_request_error") << fields;
  EXPECT_EQ(e.param, param) << fields;
  EXPECT_EQ(e.code, code) << fields << ": " << e.message;
  for (const char* words : {"context length", "context window", "too long", "too many tokens"}) {
    EXPECT_EQ(e.message.find(words), std::string::npos) << e.message;
  }
}

TEST(ChatRequest, DefaultsAreTheCheckpoints) {
  const ChatRequest r = accept("");
  EXPECT_EQ(r.settings.sampling.temperature, 1.0);
  EXPECT_EQ(r.settings.sampling.top_p, 0.95);
  EXPECT_EQ(r.settings.sampling.top_k, 0);
  EXPECT_FALSE(r.settings.sampling.seed.has_value());
  EXPECT_EQ(r.settings.max_tokens, 0);
  EXPECT_FALSE(r.settings.stream);
  EXPECT_EQ(r.settings.stream_usage, StreamUsage::kOnFinish);
  EXPECT_TRUE(r.prompt.thinking.enabled);
}

TEST(ChatRequest, NullIsAbsent) {
  const ChatRequest r = accept(
      R"("temperature":null,"top_p":null,"top_k":null,"min_p":null,"seed":null,"n":null,"stop":null,"max_tokens":null,)"
      R"("stream":null,"stream_options":null,"tools":null,"tool_choice":null,"logprobs":null,"response_format":null,)"
      R"("reasoning_effort":null,"chat_template_kwargs":null,"logit_bias":null,"presence_penalty":null)");
  EXPECT_EQ(r.settings.sampling.temperature, 1.0);
}

TEST(ChatRequest, Sampling) {
  EXPECT_EQ(accept(R"("temperature":0)").settings.sampling.temperature, 0.0);
  EXPECT_EQ(accept(R"("temperature":-3)").settings.sampling.temperature, -3.0);
  EXPECT_EQ(accept(R"("temperature":"0.25")").settings.sampling.temperature, 0.25);
  EXPECT_EQ(accept(R"("top_k":-1)").settings.sampling.top_k, 0);
  EXPECT_EQ(accept(R"("top_k":40)").settings.sampling.top_k, 40);
  EXPECT_EQ(accept(R"("min_p":0.5)").settings.sampling.min_p, 0.5);
  for (const char* bad : {"true", "\"warm\"", "\"\"", "[]", "{}", "\"NaN\"", "\"Infinity\"", "\"1e999\""}) {
    expect_refused("\"temperature\":" + std::string(bad), "temperature", "invalid_value");
  }
  for (const char* bad : {"0", "-0.1", "1.0001", "\"2\"", "false"}) {
    expect_refused("\"top_p\":" + std::string(bad), "top_p", "invalid_value");
  }
  for (const char* bad : {"-0.01", "1.5"})
    expect_refused("\"min_p\":" + std::string(bad), "min_p", "invalid_value");
  for (const char* bad : {"1.5", "\"x\"", "1e400"}) {
    const ApiError e = refuse_body(with("\"top_k\":" + std::string(bad)));
    EXPECT_EQ(e.status, 400) << bad;
  }
}

TEST(ChatRequest, SeedsOfAnySize) {
  EXPECT_EQ(accept(R"("seed":7)").settings.sampling.seed, 7u);
  EXPECT_EQ(accept(R"("seed":-1)").settings.sampling.seed, ~0ull);
  EXPECT_EQ(accept(R"("seed":18446744073709551615)").settings.sampling.seed, ~0ull);
  EXPECT_EQ(accept(R"("seed":18446744073709551621)").settings.sampling.seed, 5u);
  EXPECT_EQ(accept(R"("seed":-18446744073709551621)").settings.sampling.seed, 0ull - 5u);
  expect_refused(R"("seed":1.5)", "seed", "invalid_value");
  expect_refused(R"("seed":"1")", "seed", "invalid_value");
}

TEST(ChatRequest, Limits) {
  EXPECT_EQ(accept(R"("max_tokens":5)").settings.max_tokens, 5);
  EXPECT_EQ(accept(R"("max_completion_tokens":6)").settings.max_tokens, 6);
  EXPECT_EQ(accept(R"("max_completion_tokens":6,"max_tokens":5)").settings.max_tokens, 5);
  for (const char* bad : {"0", "-1", "1.5", "\"5\"", "true", "1e30", "99999999999999999999"}) {
    expect_refused("\"max_tokens\":" + std::string(bad), "max_tokens", "invalid_value");
  }
  expect_refused(R"("n":0)", "n", "invalid_value");
  expect_refused(R"("n":9)", "n", "invalid_value");
  EXPECT_EQ(accept(R"("n":8)").settings.choices, 8);
}

TEST(ChatRequest, Stops) {
  EXPECT_EQ(accept(R"("stop":"a")").settings.stop, std::vector<std::string>{"a"});
  EXPECT_EQ(accept(R"("stop":["a","b"])").settings.stop.size(), 2u);
  EXPECT_TRUE(accept(R"("stop":[])").settings.stop.empty());
  for (const char* bad : {"\"\"", "[\"a\",\"\"]", "[1]", "5", "{}", "[\"a\",null]"}) {
    expect_refused("\"stop\":" + std::string(bad), "stop", "invalid_value");
  }
  std::string many = "[\"x\"";
  for (size_t i = 1; i < kMaxStops; ++i) many += ",\"x\"";
  EXPECT_EQ(accept("\"stop\":" + many + "]").settings.stop.size(), kMaxStops);
  expect_refused("\"stop\":" + many + ",\"x\"]", "stop", "invalid_value");
}

TEST(ChatRequest, StreamSwitches) {
  EXPECT_TRUE(accept(R"("stream":true)").settings.stream);
  for (const char* bad : {"1", "\"true\"", "[]"})
    expect_refused("\"stream\":" + std::string(bad), "stream", "invalid_value");
  EXPECT_EQ(accept(R"("stream_options":{"include_usage":true})").settings.stream_usage,
            StreamUsage::kOwnChunk);
  EXPECT_EQ(accept(R"("stream_options":{"include_usage":false})").settings.stream_usage, StreamUsage::kNone);
  EXPECT_EQ(accept(R"("stream_options":{})").settings.stream_usage, StreamUsage::kOnFinish);
  expect_refused(R"("stream_options":5)", "stream_options", "invalid_value");
  expect_refused(R"("stream_options":{"include_usage":"x"})", "stream_options.include_usage",
                 "invalid_value");
}

TEST(ChatRequest, Thinking) {
  EXPECT_FALSE(accept(R"("reasoning_effort":"none")").prompt.thinking.enabled);
  EXPECT_EQ(accept(R"("reasoning_effort":"minimal")").prompt.thinking.effort, Effort::kLow);
  EXPECT_EQ(accept(R"("reasoning_effort":"medium")").prompt.thinking.effort, Effort::kHigh);
  EXPECT_EQ(accept(R"("reasoning_effort":"xhigh")").prompt.thinking.effort, Effort::kMax);
  EXPECT_FALSE(accept(R"("thinking":{"type":"disabled"})").prompt.thinking.enabled);
  EXPECT_FALSE(accept(R"("chat_template_kwargs":{"enable_thinking":false})").prompt.thinking.enabled);
  EXPECT_FALSE(
      accept(R"("extra_body":{"chat_template_kwargs":{"enable_thinking":false}})").prompt.thinking.enabled);
  EXPECT_TRUE(accept(R"("chat_template_kwargs":{"thinking":"x"})").prompt.thinking.enabled);
  EXPECT_EQ(refuse_body(with(R"("reasoning_effort":"most")")).param, "reasoning_effort");
  EXPECT_EQ(refuse_body(with(R"("chat_template_kwargs":[])")).param, "chat_template_kwargs");
  EXPECT_TRUE(accept(R"("reasoning":{"exclude":true})").exclude_reasoning);
  EXPECT_TRUE(accept(R"("include_reasoning":false)").exclude_reasoning);
}

TEST(ChatRequest, ExtraBodyNeverOverridesTheBody) {
  const ChatRequest r = accept(R"("temperature":0.5,"extra_body":{"temperature":0.1,"top_k":3})");
  EXPECT_EQ(r.settings.sampling.temperature, 0.5);
  EXPECT_EQ(r.settings.sampling.top_k, 3);
}

TEST(ChatRequest, ExtraBodyIsBounded) {
  std::string many = R"("extra_body":{"k":1)";
  for (int i = 0; i < 300; ++i) many += ",\"k" + std::to_string(i) + "\":1";
  expect_refused(many + "}", "extra_body", "invalid_value");
}

TEST(ChatRequest, PredictionAndCacheSaltAreChecked) {
  EXPECT_TRUE(accept(R"("prediction":{"type":"content","content":"abc"})").settings.predicted);
  EXPECT_TRUE(accept(R"("prediction":{"type":"content","content":[{"type":"text","text":"abc"}]})")
                  .settings.predicted);
  EXPECT_FALSE(accept(R"("prediction":null,"cache_salt":"s","prompt_cache_key":"k")").settings.predicted);
  for (const char* bad : {"5", "\"x\"", "{}", R"({"type":"content"})", R"({"type":"content","content":[1]})",
                          R"({"type":"other","content":"x"})"})
    expect_refused(std::string(R"("prediction":)") + bad, "prediction", "invalid_value");
  for (const char* bad : {"5", "\"\"", "{}", "true"})
    expect_refused(std::string(R"("cache_salt":)") + bad, "cache_salt", "invalid_value");
}

TEST(ChatRequest, AnEchoNeedsAMessageToContinue) {
  expect_refused(R"("echo":true)", "echo", "unsupported_parameter");
}

TEST(ChatRequest, FieldsNotBuiltAreRefusedUnlessNeutral) {
  accept(
      R"("presence_penalty":0,"frequency_penalty":0.0,"repetition_penalty":1,"logit_bias":{},"logprobs":false)");
  accept(
      R"("top_logprobs":0,"response_format":{"type":"text"},"tools":[],"tool_choice":"none","modalities":["text"])");
  accept(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")");
  accept(R"("store":true,"metadata":{"a":"b"},"user":"u","service_tier":"auto","unknown_field":[1,2])");
  expect_refused(R"("web_search_options":{"a":1})", "web_search_options", "unsupported_parameter");
  expect_refused(R"("modalities":["audio"])", "modalities", "unsupported_parameter");
  expect_refused(R"("response_format":5)", "response_format", "invalid_value");
}

TEST(ChatRequest, BiasAndPenalties) {
  const ReplyRules rules =
      accept(R"("logit_bias":{"5":-100,"7":2.5,"8":0},"presence_penalty":-2,"frequency_penalty":0.5,
                                     "repetition_penalty":1.2)")
          .settings.rules;
  EXPECT_EQ(rules.bias, (std::vector<TokenBias>{{5, -std::numeric_limits<float>::infinity()}, {7, 2.5f}}));
  EXPECT_EQ(rules.presence, -2);
  EXPECT_EQ(rules.frequency, 0.5);
  EXPECT_EQ(rules.repetition, 1.2);
  for (const char* bad :
       {"5", "[1]", R"({"x":1})", R"({"-1":1})", R"({"1.5":1})", R"({"1":101})", R"({"1":"a"})",
        R"({"99999999999":1})", R"({"1":null})", R"({"":1})", R"({" 1":1})"}) {
    expect_refused(std::string("\"logit_bias\":") + bad, "logit_bias", "invalid_value");
  }
  std::string many;
  for (int i = 0; i < 1025; ++i) many += (i ? ",\"" : "\"") + std::to_string(i) + "\":1";
  expect_refused("\"logit_bias\":{" + many + "}", "logit_bias", "invalid_value");
  for (const char* field : {"presence_penalty", "frequency_penalty"}) {
    for (const char* bad : {"2.5", "-3", "\"x\"", "[]"})
      expect_refused("\"" + std::string(field) + "\":" + bad, field, "invalid_value");
  }
  for (const char* bad : {"0", "-1", "1000"})
    expect_refused(std::string("\"repetition_penalty\":") + bad, "repetition_penalty", "invalid_value");
}

TEST(ChatRequest, Logprobs) {
  EXPECT_EQ(accept(R"("logprobs":false)").settings.logprobs, -1);
  EXPECT_EQ(accept(R"("logprobs":true)").settings.logprobs, 0);
  EXPECT_EQ(accept(R"("logprobs":true,"top_logprobs":0)").settings.logprobs, 0);
  EXPECT_EQ(accept(R"("logprobs":true,"top_logprobs":20)").settings.logprobs, 20);
  expect_refused(R"("top_logprobs":2)", "top_logprobs", "invalid_value");
  expect_refused(R"("logprobs":true,"top_logprobs":21)", "top_logprobs", "invalid_value");
  expect_refused(R"("logprobs":true,"top_logprobs":-1)", "top_logprobs", "invalid_value");
  expect_refused(R"("logprobs":3)", "logprobs", "invalid_value");
}

TEST(ChatRequest, AnswerFormats) {
  using Kind = grammar::GrammarSource::Kind;
  const auto kind = [&](const std::string& fields) {
    return accept(fields).settings.format.value().source.kind;
  };
  EXPECT_FALSE(accept(R"("response_format":{"type":"text"})").settings.format);
  EXPECT_EQ(kind(R"("response_format":{"type":"json_object"})"), Kind::kJsonObject);
  const AnswerFormat schema =
      *accept(
           R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"null"}}})")
           .settings.format;
  EXPECT_EQ(schema.source.text, R"({"type":"null"})");
  EXPECT_TRUE(schema.source.strict);
  EXPECT_EQ(schema.param, "response_format");
  EXPECT_EQ(kind(R"("guided_json":{"type":"object"})"), Kind::kJsonSchema);
  EXPECT_EQ(kind(R"("guided_json":"{}")"), Kind::kJsonSchema);
  EXPECT_EQ(kind(R"("guided_regex":"a+")"), Kind::kRegex);
  EXPECT_EQ(kind(R"("guided_choice":["a","b"])"), Kind::kChoice);
  EXPECT_EQ(kind(R"("guided_grammar":"root ::= \"a\"")"), Kind::kEbnf);
  EXPECT_EQ(kind(R"("structured_outputs":{"json_object":true})"), Kind::kJsonObject);
  EXPECT_EQ(kind(R"("structured_outputs":{"regex":"a"})"), Kind::kRegex);
  EXPECT_FALSE(accept(R"("structured_outputs":{})").settings.format);
  expect_refused(R"("response_format":{"type":"yaml"})", "response_format", "invalid_value");
  expect_refused(R"("response_format":{"type":"json_schema"})", "response_format", "invalid_value");
  expect_refused(R"("response_format":{"type":"json_schema","json_schema":{"schema":5}})", "response_format",
                 "invalid_value");
  expect_refused(R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"strict":1}})",
                 "response_format", "invalid_value");
  expect_refused(R"("guided_json":5)", "guided_json", "invalid_value");
  expect_refused(R"("guided_regex":"")", "guided_regex", "invalid_value");
  expect_refused(R"("guided_choice":[])", "guided_choice", "invalid_value");
  expect_refused(R"("guided_choice":["a",1])", "guided_choice", "invalid_value");
  expect_refused(R"("structured_outputs":5)", "structured_outputs", "invalid_value");
  expect_refused(R"("structured_outputs":{"structural_tag":{}})", "structured_outputs.structural_tag",
                 "unsupported_parameter");
  expect_refused(R"("structured_outputs":{"regex":"a","choice":["b"]})", "structured_outputs.choice",
                 "invalid_value");
  expect_refused(R"("response_format":{"type":"json_object"},"guided_regex":"a")", "guided_regex",
                 "invalid_value");
  // Beside tools that may be called no call can be made; beside forced ones there are two constraints.
  const std::string tools = R"("response_format":{"type":"json_object"},"tools":[{"function":{"name":"f"}}])";
  EXPECT_FALSE(accept(tools).tools.tools);
  expect_refused(tools + R"(,"tool_choice":"required")", "tool_choice", "invalid_value");
}

TEST(ChatRequest, ForcedAndStrictCalls) {
  const std::string two = R"("tools":[{"function":{"name":"a"}},{"function":{"name":"b"}}])";
  EXPECT_FALSE(accept(two).settings.format);
  ChatRequest r = accept(two + R"(,"tool_choice":"required","parallel_tool_calls":false)");
  ASSERT_TRUE(r.settings.format);
  EXPECT_EQ(r.settings.format->source.kind, grammar::GrammarSource::Kind::kToolCalls);
  EXPECT_TRUE(r.settings.format->source.tools.required);
  EXPECT_FALSE(r.settings.format->source.tools.parallel);
  EXPECT_EQ(r.settings.format->param, "tool_choice");
  r = accept(two + R"(,"tool_choice":{"type":"function","function":{"name":"b"}})");
  EXPECT_EQ(r.conversation.tools.size(), 1u) << "only the named tool is offered";
  EXPECT_EQ(r.tools.tools->find("a"), -1);
  EXPECT_TRUE(r.settings.format->source.tools.required);
  r = accept(
      two +
      R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"name":"a"}]}})");
  EXPECT_EQ(r.conversation.tools.size(), 1u);
  EXPECT_TRUE(r.settings.format->source.tools.required);
  r = accept(R"("functions":[{"name":"old"}],"function_call":{"name":"old"})");
  EXPECT_TRUE(r.settings.format->source.tools.required);
  EXPECT_FALSE(r.settings.format->source.tools.parallel);
  r = accept(R"("tools":[{"function":{"name":"a","strict":true}},{"function":{"name":"b"}}])");
  EXPECT_FALSE(r.settings.format->source.tools.required);
  EXPECT_FALSE(r.settings.format->source.tools.all_strict);
}

TEST(ChatRequest, ThinkingBudgets) {
  EXPECT_EQ(accept(R"("thinking_budget":7)").settings.think_budget, 7);
  EXPECT_EQ(accept(R"("thinking_token_budget":7)").settings.think_budget, 7);
  EXPECT_EQ(accept(R"("thinking":{"type":"enabled","budget_tokens":9})").settings.think_budget, 9);
  EXPECT_EQ(accept(R"("reasoning":{"max_tokens":11})").settings.think_budget, 11);
  EXPECT_EQ(accept(R"("thinking_budget":0)").settings.think_budget, 0);
  expect_refused(R"("thinking_budget":-1)", "thinking_budget", "invalid_value");
}

TEST(ChatRequest, Tools) {
  const std::string f =
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  ChatRequest r = accept(f);
  ASSERT_TRUE(r.tools.tools);
  EXPECT_EQ(r.tools.tools->find("F"), 0);
  EXPECT_EQ(r.conversation.tools.size(), 1u);
  EXPECT_TRUE(r.tools.parallel);
  r = accept(f + R"(,"tool_choice":"none")");
  EXPECT_FALSE(r.tools.tools);
  EXPECT_TRUE(r.conversation.tools.is_null());
  EXPECT_FALSE(accept(R"("tools":[])").tools.tools);
  EXPECT_FALSE(accept(f + R"(,"parallel_tool_calls":false)").tools.parallel);
  r = accept(R"("tools":[{"name":"bare","parameters":{"type":"object"}}])");
  EXPECT_EQ(r.conversation.tools[0]["function"]["name"], "bare");
  r = accept(R"("functions":[{"name":"old"}],"function_call":"auto")");
  EXPECT_TRUE(r.tools.legacy);
  EXPECT_EQ(r.tools.tools->find("old"), 0);
  const std::string two = R"("tools":[{"function":{"name":"a"}},{"function":{"name":"b"}}],)";
  r = accept(
      two +
      R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"function":{"name":"b"}}]}})");
  EXPECT_EQ(r.conversation.tools.size(), 1u);
  EXPECT_EQ(r.tools.tools->find("a"), -1);
  r = accept(two +
             R"("tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"name":"b"},{"name":"b"}]})");
  EXPECT_EQ(r.conversation.tools.size(), 1u) << "a name said twice";
  expect_refused(f + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})", "tool_choice",
                 "invalid_value");
  expect_refused(f + R"(,"tool_choice":"sometimes")", "tool_choice", "invalid_value");
  expect_refused(f + R"(,"tool_choice":5)", "tool_choice", "invalid_value");
  expect_refused(R"("tool_choice":"required")", "tool_choice", "invalid_value");
  expect_refused(R"("tools":5)", "tools", "invalid_value");
  expect_refused(R"("tools":[5])", "tools[0]", "invalid_value");
  expect_refused(R"("tools":[{"type":"web_search"}])", "tools[0].type", "invalid_value");
  expect_refused(R"("tools":[{"type":"function","function":{}}])", "tools[0].function.name", "invalid_value");
  expect_refused(R"("tools":[{"function":{"name":"f","parameters":[]}}])", "tools[0].function.parameters",
                 "invalid_value");
  expect_refused(R"("tools":[{"function":{"name":"f","strict":"yes"}}])", "tools[0].function.strict",
                 "invalid_value");
  expect_refused(f + R"(,"parallel_tool_calls":"no")", "parallel_tool_calls", "invalid_value");
}

TEST(ChatRequest, Messages) {
  EXPECT_EQ(refuse_body("{}").code, "missing_required_parameter");
  EXPECT_EQ(refuse_body("{}").param, "messages");
  EXPECT_EQ(refuse_body(R"({"messages":[]})").param, "messages");
  EXPECT_EQ(refuse_body(R"({"messages":"hi"})").param, "messages");
  EXPECT_EQ(refuse_body(R"({"messages":[{"role":"alien","content":"x"}]})").param, "messages[0].role");
}

TEST(ChatRequest, BodiesThatAreNoJsonObjects) {
  for (const std::string text :
       {"", "nothing", "[1]", "5", "null", "{\"a\":1", "{\"a\":1}x", "{\"a\":\"\xff\"}", "{\"a\":NaN}"}) {
    const ApiError e = refuse_body(text);
    EXPECT_EQ(e.code, "invalid_json") << text;
    EXPECT_NE(e.message.find("byte"), std::string::npos) << e.message;
  }
  std::string deep(200'000, '[');
  EXPECT_EQ(refuse_body(R"({"messages":)" + deep).code, "invalid_json");
}

TEST(FitReply, FollowsTheContextTable) {
  const Window window{1000, 0};
  EXPECT_EQ(std::get<int64_t>(fit_reply(400, 600, 50, window, "messages")), 600);
  EXPECT_EQ(std::get<int64_t>(fit_reply(400, 0, 50, window, "messages")), 50);
  EXPECT_EQ(std::get<int64_t>(fit_reply(990, 0, 50, window, "messages")), 10);
  const auto long_prompt = std::get<ApiError>(fit_reply(1000, 0, 50, window, "messages"));
  EXPECT_EQ(long_prompt.code, "context_length_exceeded");
  EXPECT_EQ(long_prompt.param, "messages");
  EXPECT_EQ(
      long_prompt.message,
      "This server's maximum context length is 1000 tokens. However, your messages resulted in 1000 tokens, "
      "which exceeds the context window. Please reduce the length of the messages.");
  const auto long_reply = std::get<ApiError>(fit_reply(400, 601, 50, window, "messages"));
  EXPECT_NE(long_reply.message.find(
                "your messages resulted in 400 tokens and 601 reply tokens were requested, which "
                "together exceed the context window"),
            std::string::npos)
      << long_reply.message;
  EXPECT_NE(
      std::get<ApiError>(fit_reply(1, INT64_MAX, 50, window, "messages")).message.find("9223372036854775807"),
      std::string::npos);
  const Window small_pool{1000, 300};
  EXPECT_EQ(std::get<int64_t>(fit_reply(290, 0, 50, small_pool, "messages")), 10);
  EXPECT_NE(std::get<ApiError>(fit_reply(300, 0, 50, small_pool, "messages")).message.find("300 tokens"),
            std::string::npos);
}

TEST(Errors, BodiesCarryAllFourFields) {
  const auto body =
      parse_json(error_body(invalid_value("", "a \"quoted\" \xff word"), ErrorFormat::kOpenAi, "req_1"));
  ASSERT_TRUE(body.ok());
  const Json& e = (*body)["error"];
  EXPECT_TRUE(e["param"].is_null());
  EXPECT_EQ(e["code"], "invalid_value");
  EXPECT_EQ(e["type"], "invalid_request_error");
  const auto other = parse_json(error_body(invalid_value("", "m"), ErrorFormat::kAnthropic, "req_1"));
  ASSERT_TRUE(other.ok());
  EXPECT_EQ((*other)["type"], "error");
  EXPECT_EQ((*other)["request_id"], "req_1");
}

TEST(Errors, OwnFailuresSayNothingOfFilesOrAddresses) {
  for (const ErrorCode code :
       {ErrorCode::kInternal, ErrorCode::kIo, ErrorCode::kInvalidFile, ErrorCode::kOutOfMemory}) {
    const ApiError e = from_error({code, "/secret/path at 0x7ffd"});
    EXPECT_EQ(e.status, 500);
    EXPECT_EQ(e.message.find("secret"), std::string::npos);
  }
  EXPECT_EQ(from_error({ErrorCode::kBusy, "busy"}).status, 429);
  EXPECT_EQ(from_error({ErrorCode::kUnavailable, "gone"}).status, 503);
  EXPECT_EQ(from_error({ErrorCode::kTemplate, "no"}).code, "template_error");
}

}  // namespace
}  // namespace firesteel::api
