// Bodies of Responses requests as chat requests: every field, item and tool; what is refused and how; which
// messages a full window loses; what the store keeps.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "api/responses_output.h"
#include "api/responses_request.h"
#include "api/responses_truncate.h"
#include "base/json.h"

namespace firesteel::api {
namespace {

using Translated = std::variant<ResponsesRequest, ApiError>;

class ResponsesRequestTest : public ::testing::Test {
 protected:
  static constexpr size_t kBudget = 1 << 20;  // of earlier turns and references

  Translated translate(const std::string& text) {
    auto body = parse_body(text);
    if (auto* e = std::get_if<ApiError>(&body)) return *e;
    return translate_responses_request(std::move(std::get<Json>(body)), store_, kBudget);
  }
  ResponsesRequest accept_body(const std::string& text) {
    Translated t = translate(text);
    if (auto* e = std::get_if<ApiError>(&t)) {
      ADD_FAILURE() << text << ": " << e->param << ": " << e->message;
      return {};
    }
    auto chat = parse_chat_request(std::get<ResponsesRequest>(t).chat, {});
    if (auto* e = std::get_if<ApiError>(&chat))
      ADD_FAILURE() << text << ": " << e->param << ": " << e->message;
    return std::get<ResponsesRequest>(std::move(t));
  }
  static std::string with(const std::string& fields) {
    return fields.empty() ? R"({"input":"hi"})" : R"({"input":"hi",)" + fields + "}";
  }
  ResponsesRequest accept(const std::string& fields) { return accept_body(with(fields)); }
  Json messages(const std::string& items) {
    return accept_body(R"({"input":)" + items + "}").chat["messages"];
  }

  /// What a client is told, by the translation or by the chat request's own checks.
  ApiError refuse_body(const std::string& text) {
    Translated t = translate(text);
    if (auto* e = std::get_if<ApiError>(&t)) return *e;
    const ResponsesRequest& r = std::get<ResponsesRequest>(t);
    auto chat = parse_chat_request(r.chat, {});
    if (auto* e = std::get_if<ApiError>(&chat)) return r.translate(*e);
    ADD_FAILURE() << text << " was accepted";
    return {};
  }
  void expect_refused(const std::string& text, const std::string& param, const std::string& code) {
    const ApiError e = refuse_body(text);
    EXPECT_EQ(e.status, 400) << text;
    EXPECT_EQ(e.type, "invalid_request_error") << text;
    EXPECT_EQ(e.param, param) << text << ": " << e.message;
    EXPECT_EQ(e.code, code) << text << ": " << e.message;
    for (const char* words : {"context length", "context window", "too long", "too many tokens"}) {
      EXPECT_EQ(e.message.find(words), std::string::npos) << e.message;
    }
    for (const char* chat_name : {"messages", "response_format", "reasoning_effort"}) {
      EXPECT_EQ(e.message.find(chat_name), std::string::npos) << e.message;
    }
  }

  /// Stores a response of one turn that continues `turns`.
  void keep(const std::string& id, const std::string& input, const std::string& output,
            std::vector<std::shared_ptr<const ResponseTurn>> turns = {}) {
    StoredResponse r{std::move(turns), R"({"id":")" + id + "\"", {}};
    const Json items = Json::parse(output);
    for (const Json& item : items) r.item_ids.push_back(find_string(item, "id"));
    r.turns.push_back(store_.make_turn(input, output));
    store_.put(id, std::move(r));
  }

  ResponseStore store_;
};

TEST_F(ResponsesRequestTest, ATextIsAUserMessage) {
  const ResponsesRequest r = accept(R"("instructions":"Be kind.")");
  EXPECT_EQ(r.chat["messages"], Json::parse(R"([{"role":"system","content":"Be kind."},
                                                {"role":"user","content":"hi"}])"));
  EXPECT_EQ(r.input, R"([{"type":"message","role":"user","content":"hi"}])");
  EXPECT_TRUE(r.store);
  EXPECT_EQ(accept(R"("store":false)").input, "");
}

TEST_F(ResponsesRequestTest, SharedFieldsPassThrough) {
  const Json chat =
      accept(R"("model":"m","stream":true,"temperature":0.5,"top_p":0.5,"top_k":3,"min_p":0.1,"seed":4,)"
             R"("stop":["x"],"draft":false,"ignore_eos":true,"priority":"background","min_tokens":2,)"
             R"("parallel_tool_calls":false,"chat_template_kwargs":{"enable_thinking":false})")
          .chat;
  for (const char* name :
       {"model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "draft", "ignore_eos",
        "priority", "min_tokens", "parallel_tool_calls", "chat_template_kwargs"}) {
    EXPECT_TRUE(chat.contains(name)) << name;
  }
  // Names that only a chat request has mean nothing here.
  const Json other = accept(R"("messages":[],"n":3,"max_tokens":1,"functions":[{}],"echo":true,)"
                            R"("continue_final_message":true,"response_format":5,"reasoning_effort":7)")
                         .chat;
  EXPECT_EQ(other.size(), 1u) << other.dump();
  for (const char* bad : {R"("temperature":"warm")", R"("top_p":2)", R"("stop":[""])", R"("stream":"yes")",
                          R"("parallel_tool_calls":1)", R"("chat_template_kwargs":[])"}) {
    const std::string name = std::string(bad).substr(1, std::string(bad).find('"', 1) - 1);
    expect_refused(with(bad), name, "invalid_value");
  }
  EXPECT_EQ(refuse_body(with(R"("thinking_budget":-5)")).status, 400);
}

TEST_F(ResponsesRequestTest, FieldsUnderOtherNames) {
  EXPECT_EQ(accept(R"("max_output_tokens":1)").chat["max_tokens"], 1);
  for (const char* bad : {"0", "-1", "1.5", "\"5\"", "true", "1e30", "99999999999999999999"}) {
    expect_refused(with(R"("max_output_tokens":)" + std::string(bad)), "max_output_tokens", "invalid_value");
  }
  EXPECT_EQ(accept(R"("reasoning":{"effort":"low","summary":"auto"})").chat["reasoning_effort"], "low");
  EXPECT_FALSE(accept(R"("reasoning":{"effort":null,"summary":null})").chat.contains("reasoning_effort"));
  expect_refused(with(R"("reasoning":{"effort":"huge"})"), "reasoning.effort", "invalid_value");
  expect_refused(with(R"("reasoning":{"effort":7})"), "reasoning.effort", "invalid_value");
  expect_refused(with(R"("reasoning":"low")"), "reasoning", "invalid_value");

  EXPECT_EQ(accept(R"("text":{"format":{"type":"text"},"verbosity":"low"})").chat["response_format"],
            Json::parse(R"({"type":"text"})"));
  EXPECT_FALSE(accept(R"("text":{"verbosity":"low"})").chat.contains("response_format"));
  const auto format = [&](const std::string& value) {
    Translated t = translate(with(R"("text":{"format":)" + value + "}"));
    return std::get<ResponsesRequest>(t).chat["response_format"];
  };
  EXPECT_EQ(format(R"({"type":"json_object"})"), Json::parse(R"({"type":"json_object"})"));
  EXPECT_EQ(
      format(
          R"({"type":"json_schema","name":"a","schema":{"type":"object"},"strict":true,"description":"d"})"),
      Json::parse(
          R"({"type":"json_schema","json_schema":{"name":"a","description":"d","schema":{"type":"object"},)"
          R"("strict":true}})"));
  expect_refused(with(R"("text":{"format":{"type":"xml"}})"), "text.format", "invalid_value");
  expect_refused(with(R"("text":{"format":"text"})"), "text.format", "invalid_value");
  expect_refused(with(R"("text":{"format":{"type":"json_schema","name":"a"}})"), "text.format.schema",
                 "missing_required_parameter");
  expect_refused(with(R"("text":"plain")"), "text", "invalid_value");
  EXPECT_EQ(std::get<ResponsesRequest>(translate(with(R"("top_logprobs":3)"))).chat["top_logprobs"], 3);
  expect_refused(with(R"("top_logprobs":21)"), "top_logprobs", "invalid_value");
}

// spec/reports.md 80
TEST_F(ResponsesRequestTest, Include) {
  accept(R"("include":["reasoning.encrypted_content","web_search_call.results"])");
  accept(R"("include":[])");
  accept(R"("include":null)");
  expect_refused(with(R"("include":["x"])"), "include", "invalid_value");
  expect_refused(with(R"("include":"x")"), "include", "invalid_value");
  expect_refused(with(R"("include":[5])"), "include", "invalid_value");
  expect_refused(with(R"("include":{})"), "include", "invalid_value");
  const Translated t = translate(with(R"("include":["message.output_text.logprobs"])"));
  EXPECT_EQ(std::get<ResponsesRequest>(t).chat["logprobs"], true);
}

TEST_F(ResponsesRequestTest, FieldsThatAreRefusedOrIgnored) {
  expect_refused(with(R"("background":true)"), "background", "unsupported_parameter");
  accept(R"("background":false)");
  expect_refused(with(R"("background":1)"), "background", "invalid_value");
  for (const char* name : {"conversation", "prompt", "context_management"}) {
    expect_refused(with("\"" + std::string(name) + R"(":{"id":"x"})"), name, "unsupported_parameter");
    expect_refused(with("\"" + std::string(name) + R"(":"x")"), name, "unsupported_parameter");
    accept("\"" + std::string(name) + "\":null");
  }
  EXPECT_TRUE(accept(R"("truncation":"auto")").truncate);
  EXPECT_FALSE(accept(R"("truncation":"disabled")").truncate);
  expect_refused(with(R"("truncation":"none")"), "truncation", "invalid_value");
  expect_refused(with(R"("truncation":true)"), "truncation", "invalid_value");
  expect_refused(with(R"("store":"yes")"), "store", "invalid_value");
  expect_refused(with(R"("instructions":["x"])"), "instructions", "invalid_value");
  accept(
      R"("client_metadata":{"a":1},"prompt_cache_key":"k","service_tier":"auto","user":"u","safety_identifier":5)");
}

TEST_F(ResponsesRequestTest, Metadata) {
  const auto pairs = [](int n, size_t key, size_t value) {
    Json out = Json::object();
    for (int i = 0; i < n; ++i)
      out[std::to_string(i + 10) + std::string(key - 2, 'k')] = std::string(value, 'v');
    return "\"metadata\":" + out.dump();
  };
  EXPECT_EQ(accept(pairs(16, 64, 512)).settings["metadata"].size(), 16u);
  accept(R"("metadata":null)");
  std::string wide;
  for (int i = 0; i < 512; ++i) wide += "é";
  accept(R"("metadata":{"k":")" + wide + "\"}");
  expect_refused(with(R"("metadata":{"k":")" + wide + "é\"}"), "metadata", "invalid_value");
  expect_refused(with(pairs(17, 4, 4)), "metadata", "invalid_value");
  expect_refused(with(pairs(1, 65, 4)), "metadata", "invalid_value");
  expect_refused(with(R"("metadata":{"k":1})"), "metadata", "invalid_value");
  expect_refused(with(R"("metadata":[])"), "metadata", "invalid_value");
}

TEST_F(ResponsesRequestTest, Messages) {
  EXPECT_EQ(messages(R"([{"role":"developer","content":"d"},{"type":"message","role":"system","content":"s"},
                         {"role":"user","content":[{"type":"input_text","text":"a"},{"type":"text","text":"b"}]},
                         {"type":"message","id":"msg_1","status":"completed","role":"assistant",
                          "content":[{"type":"output_text","text":"c","annotations":[]},
                                     {"type":"refusal","refusal":"no"}]},
                         {"role":"user","content":"z"}])"),
            Json::parse(R"([{"role":"developer","content":"d"},{"role":"system","content":"s"},
                            {"role":"user","content":[{"type":"input_text","text":"a"},{"type":"text","text":"b"}]},
                            {"role":"assistant","content":[{"type":"output_text","text":"c","annotations":[]},
                                                           {"type":"refusal","refusal":"no"}]},
                            {"role":"user","content":"z"}])"));
  accept_body(R"({"input":[{"role":"assistant","content":null},{"role":"user","content":"x"}]})");
  expect_refused(R"({"input":[{"role":"user","content":"x"},{"role":"tool","content":"x"}]})",
                 "input[1].role", "invalid_value");
  expect_refused(R"({"input":[{"role":"user"}]})", "input[0].content", "invalid_value");
  expect_refused(R"({"input":[{"role":"user","content":5}]})", "input[0].content", "invalid_value");
  expect_refused(R"({"input":[{"role":"assistant","content":5}]})", "input[0].content", "invalid_value");
  expect_refused(R"({"input":["x"]})", "input[0]", "invalid_value");
  expect_refused(R"({"input":[{"type":5}]})", "input[0].type", "invalid_value");
  expect_refused(R"({"input":5})", "input", "invalid_value");
  expect_refused(R"({"input":{}})", "input", "invalid_value");
  expect_refused("{}", "input", "missing_required_parameter");
  expect_refused(R"({"input":null})", "input", "missing_required_parameter");
  expect_refused(R"({"input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]})",
                 "input[0].content[0].file_id", "unsupported_parameter");
  expect_refused(R"({"input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]})",
                 "input[0].content[0].file_id", "unsupported_parameter");
}

// A fault that the chat request finds is told under the name that the client used.
TEST_F(ResponsesRequestTest, PlacesOfFaultsAreTheClients) {
  expect_refused(
      R"({"instructions":"s","input":[{"type":"reasoning","content":[]},{"role":"user","content":"x"},
                    {"type":"web_search_call"},{"role":"user","content":[{"type":"input_text","text":"a"},
                    {"type":"smell"}]}]})",
      "input[3].content[1].type", "invalid_value");
  expect_refused(
      R"({"input":[{"type":"reasoning","content":[{"text":"r"}]},{"role":"assistant","content":"a"},
                    {"type":"function_call","name":"f","call_id":"c","arguments":"{}"},
                    {"role":"assistant","content":[{"type":"output_text"}]}]})",
      "input[3].content[0].text", "invalid_value");
  expect_refused(R"({"input":[{"role":"user","content":"x"},
                    {"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"a"},7]}]})",
                 "input[1].output[1]", "invalid_value");
  expect_refused(with(R"("tools":[{"type":"web_search"},{"type":"function","name":"f","parameters":5}])"),
                 "tools[1].parameters", "invalid_value");
}

TEST_F(ResponsesRequestTest, ItemsOfOneReplyAreOneMessage) {
  EXPECT_EQ(messages(R"([{"role":"user","content":"x"},
      {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"r1 "},
       {"type":"reasoning_text","text":"r2"}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]},
      {"type":"function_call","id":"fc_1","call_id":"call_1","name":"f","arguments":"{\"k\":1}"},
      {"type":"function_call","call_id":"call_2","name":"g","arguments":""},
      {"type":"message","role":"assistant","content":"after"},
      {"type":"function_call_output","call_id":"call_1","output":"one"},
      {"type":"function_call_output","call_id":"call_2","output":[{"type":"input_text","text":"two"}]},
      {"type":"function_call_output","call_id":"call_3","output":null}])"),
            Json::parse(R"([{"role":"user","content":"x"},
      {"role":"assistant","content":[{"type":"output_text","text":"a"},{"type":"text","text":"after"}],
       "reasoning_content":"r1 r2","tool_calls":[
        {"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"k\":1}"}},
        {"id":"call_2","type":"function","function":{"name":"g","arguments":""}}]},
      {"role":"tool","tool_call_id":"call_1","content":"one"},
      {"role":"tool","tool_call_id":"call_2","content":[{"type":"input_text","text":"two"}]},
      {"role":"tool","tool_call_id":"call_3","content":null}])"));
  // What is a reply of its own.
  EXPECT_EQ(messages(R"([{"role":"user","content":"x"},{"role":"assistant","content":"a"},
                         {"role":"assistant","content":"b"},{"type":"reasoning","content":[{"text":"r"}]},
                         {"role":"assistant","content":"c"}])")
                .size(),
            4u);
  expect_refused(R"({"input":[{"type":"function_call","call_id":"c","arguments":"{}"}]})", "input[0].name",
                 "invalid_value");
  expect_refused(R"({"input":[{"type":"function_call_output","call_id":"c","output":{"a":1}}]})",
                 "input[0].output", "invalid_value");
}

TEST_F(ResponsesRequestTest, ReasoningOfOtherServersIsSkipped) {
  EXPECT_EQ(messages(R"([{"role":"user","content":"x"},
      {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"s"}],"encrypted_content":"gAAA"},
      {"type":"reasoning","id":"rs_2","summary":[],"content":null,"encrypted_content":"gAAA"},
      {"role":"assistant","content":"a"}])"),
            Json::parse(R"([{"role":"user","content":"x"},
                            {"role":"assistant","content":[{"type":"text","text":"a"}]}])"));
  expect_refused(R"({"input":[{"type":"reasoning","content":{}}]})", "input[0].content", "invalid_value");
}

TEST_F(ResponsesRequestTest, CustomToolsAreFunctionsOfOneText) {
  const ResponsesRequest r = accept_body(R"({"input":[{"role":"user","content":"x"},
      {"type":"custom_tool_call","id":"ctc_1","call_id":"call_1","name":"patch","input":"*** Begin\n"},
      {"type":"custom_tool_call_output","call_id":"call_1","output":"ok"}],
      "tools":[{"type":"custom","name":"patch","description":"Edits.",
                "format":{"type":"grammar","syntax":"lark","definition":"start: X"}}]})");
  EXPECT_EQ(r.chat["messages"][1]["tool_calls"][0]["function"],
            Json::parse(R"({"name":"patch","arguments":{"input":"*** Begin\n"}})"));
  EXPECT_EQ(r.chat["messages"][2], Json::parse(R"({"role":"tool","tool_call_id":"call_1","content":"ok"})"));
  const Json& function = r.chat["tools"][0]["function"];
  EXPECT_EQ(function["name"], "patch");
  EXPECT_EQ(function["description"], "Edits.\n\nThe input must follow this lark grammar:\nstart: X");
  EXPECT_EQ(function["parameters"]["required"], Json::parse(R"(["input"])"));
  EXPECT_EQ(function["parameters"]["properties"]["input"]["type"], "string");
  EXPECT_EQ(r.tools.custom, std::set<std::string>{"patch"});

  EXPECT_EQ(custom_input(R"({"input":"a\nb"})"), "a\nb");
  EXPECT_EQ(custom_input(R"({"patch":"a"})"), "a");
  EXPECT_EQ(custom_input(R"({"a":"1","b":"2"})"), R"({"a":"1","b":"2"})");
  EXPECT_EQ(custom_input(R"({"input":[1]})"), "[1]");
  EXPECT_EQ(custom_input("{}"), "");
  EXPECT_EQ(custom_input(""), "");
}

// spec/reports.md 78
TEST_F(ResponsesRequestTest, HostedToolsAreLeftOut) {
  const std::string tools =
      R"("tools":[{"type":"web_search"},{"type":"namespace","name":"n","description":"d","tools":[]},)"
      R"({"type":"image_generation"},{"type":"file_search","vector_store_ids":[]},{"type":"computer_use"},)"
      R"({"type":"code_interpreter"},{"type":"mcp"},{"type":"local_shell"},)"
      R"({"type":"function","name":"shell","description":"runs","strict":false,"parameters":{"type":"object"}}])";
  const ResponsesRequest r = accept(tools);
  EXPECT_EQ(r.chat["tools"],
            Json::parse(R"([{"type":"function","function":{"name":"shell","description":"runs",
                                             "strict":false,"parameters":{"type":"object"}}}])"));
  EXPECT_EQ(r.settings["tools"].size(), 9u);
  EXPECT_FALSE(accept(R"("tools":[{"type":"web_search"}])").chat.contains("tools"));
  for (const char* type : {"web_search", "mcp", "file_search", "image_generation", "code_interpreter"}) {
    expect_refused(with(tools + R"(,"tool_choice":{"type":")" + type + "\"}"), "tool_choice",
                   "unsupported_parameter");
  }
  // The empty probe.
  expect_refused(R"({"input":[],"max_output_tokens":1})", "input", "invalid_value");
  expect_refused(R"({"input":[{"type":"web_search_call","id":"ws_1"}]})", "input", "invalid_value");
}

TEST_F(ResponsesRequestTest, ToolChoice) {
  const std::string tools =
      R"("tools":[{"type":"web_search"},{"type":"function","name":"f","parameters":null},)"
      R"({"type":"custom","name":"c"}])";
  EXPECT_EQ(accept(tools + R"(,"tool_choice":"auto")").chat["tool_choice"], "auto");
  EXPECT_EQ(accept(tools + R"(,"tool_choice":"none")").chat["tool_choice"], "none");
  const auto chosen = [&](const std::string& choice) {
    Translated t = translate(with(tools + R"(,"tool_choice":)" + choice));
    if (auto* e = std::get_if<ApiError>(&t)) return Json(e->message);
    return std::get<ResponsesRequest>(t).chat["tool_choice"];
  };
  EXPECT_EQ(chosen("\"required\""), "required");
  EXPECT_EQ(chosen(R"({"type":"function","name":"f"})"),
            Json::parse(R"({"type":"function","function":{"name":"f"}})"));
  EXPECT_EQ(chosen(R"({"type":"custom","name":"c"})"),
            Json::parse(R"({"type":"function","function":{"name":"c"}})"));
  EXPECT_EQ(chosen(R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"},
                       {"type":"web_search"},{"type":"custom","name":"c"},{"type":"function","name":"f"}]})"),
            Json::parse(R"({"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[
                            {"type":"function","function":{"name":"f"}},
                            {"type":"function","function":{"name":"c"}}]}})"));
  for (const char* bad :
       {"\"any\"", "5", "{}", "[]", R"({"type":"function","name":"g"})", R"({"type":"custom","name":"f"})",
        R"({"type":"function","name":"c"})", R"({"type":"function"})", R"({"type":"allowed_tools"})",
        R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"g"}]})",
        R"({"type":"allowed_tools","mode":"some","tools":[]})"}) {
    expect_refused(with(tools + R"(,"tool_choice":)" + bad), "tool_choice", "invalid_value");
  }
  expect_refused(with(R"("tool_choice":"required")"), "tool_choice", "invalid_value");
  expect_refused(with(R"("tool_choice":"required","tools":[{"type":"web_search"}])"), "tool_choice",
                 "invalid_value");
  expect_refused(
      with(tools + R"(,"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"mcp"}]})"),
      "tool_choice", "unsupported_parameter");
}

TEST_F(ResponsesRequestTest, MalformedTools) {
  for (const char* bad : {"5", "{}", "\"x\""})
    expect_refused(with(R"("tools":)" + std::string(bad)), "tools", "invalid_value");
  expect_refused(with(R"("tools":[5])"), "tools[0]", "invalid_value");
  expect_refused(with(R"("tools":[{"type":5}])"), "tools[0].type", "invalid_value");
  expect_refused(with(R"("tools":[{"type":"function"}])"), "tools[0].name", "invalid_value");
  expect_refused(with(R"("tools":[{"type":"custom","name":7}])"), "tools[0].name", "invalid_value");
  std::string many = "{\"type\":\"web_search\"}";
  for (int i = 0; i < 1024; ++i) many += ",{\"type\":\"web_search\"}";
  expect_refused(with(R"("tools":[)" + many + "]"), "tools", "invalid_value");
}

TEST_F(ResponsesRequestTest, PreviousResponse) {
  keep("resp_1", R"([{"role":"user","content":"one"}])",
       R"([{"id":"rs_1","type":"reasoning","content":[{"type":"reasoning_text","text":"r"}]},
           {"id":"fc_1","type":"function_call","call_id":"c","name":"f","arguments":"{}"}])");
  const Json first = Json::parse(R"([{"role":"user","content":"one"},
      {"role":"assistant","content":[],"reasoning_content":"r","tool_calls":[
       {"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}])");
  Json expected = first;
  expected.insert(expected.begin(), Json::parse(R"({"role":"system","content":"new"})"));
  expected.push_back({{"role", "tool"}, {"tool_call_id", "c"}, {"content", "done"}});
  const ResponsesRequest r = accept_body(R"({"previous_response_id":"resp_1","instructions":"new",
      "input":[{"type":"function_call_output","call_id":"c","output":"done"}]})");
  EXPECT_EQ(r.chat["messages"], expected);
  EXPECT_EQ(r.turns.size(), 1u);
  // Nothing new to say.
  for (const char* body :
       {R"({"previous_response_id":"resp_1","input":[]})", R"({"previous_response_id":"resp_1","input":""})",
        R"({"previous_response_id":"resp_1"})"}) {
    EXPECT_EQ(accept_body(body).chat["messages"], first) << body;
  }
  expect_refused(R"({"previous_response_id":"resp_2","input":"x"})", "previous_response_id",
                 "previous_response_not_found");
  expect_refused(R"({"previous_response_id":5,"input":"x"})", "previous_response_id", "invalid_value");
  accept_body(R"({"previous_response_id":null,"input":"x"})");
}

TEST_F(ResponsesRequestTest, ItemReferences) {
  keep("resp_1", "[]", R"([{"id":"msg_1","type":"message","role":"assistant","content":[]},
                           {"id":"fc_1","type":"function_call","call_id":"c","name":"f","arguments":"{}"}])");
  const ResponsesRequest r = accept_body(R"({"input":[{"role":"user","content":"x"},
      {"type":"item_reference","id":"fc_1"},{"type":"function_call_output","call_id":"c","output":"y"},
      {"id":"msg_1"}]})");
  EXPECT_EQ(r.chat["messages"][1]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(r.chat["messages"].size(), 4u);
  EXPECT_EQ(r.input.find("item_reference"), std::string::npos) << "stored as what it refers to";
  expect_refused(R"({"input":[{"type":"item_reference","id":"fc_2"}]})", "input[0].id", "invalid_value");
  expect_refused(R"({"input":[{"type":"item_reference"}]})", "input[0].id", "invalid_value");
  // A small body cannot make the server read more than a large one could hold.
  keep("resp_2", "[]",
       R"([{"id":"big","type":"message","role":"assistant","content":")" + std::string(kBudget / 96, 'x') +
           R"("}])");
  std::string list = R"({"id":"big"})";
  for (int i = 0; i < 100; ++i) list += R"(,{"id":"big"})";
  expect_refused(R"({"input":[)" + list + "]}", "input", "invalid_value");
}

TEST_F(ResponsesRequestTest, TheBudgetOfEarlierTurns) {
  std::vector<std::shared_ptr<const ResponseTurn>> turns;
  const std::string big = R"([{"role":"user","content":")" + std::string(kBudget / 5, 'x') + R"("}])";
  for (int i = 0; i < 5; ++i) turns.push_back(store_.make_turn(big, "[]"));
  keep("resp_1", R"([{"role":"user","content":"last"}])", "[]", turns);
  expect_refused(R"({"previous_response_id":"resp_1","input":"x"})", "previous_response_id", "invalid_value");
  const ResponsesRequest r =
      accept_body(R"({"previous_response_id":"resp_1","input":"x","truncation":"auto"})");
  EXPECT_EQ(r.turns.size(), 5u) << "the oldest is left out";
}

TEST(ResponseStore, KeepsTheMostRecentlyUsed) {
  ResponseStore store(3, 1 << 20);
  const auto put = [&](const std::string& id, size_t bytes = 10) {
    StoredResponse r{
        {store.make_turn(std::string(bytes, 'i'), "[]")}, "{\"id\":\"" + id + "\"", {"item_" + id}};
    store.put(id, std::move(r));
  };
  for (const char* id : {"a", "b", "c"}) put(id);
  EXPECT_NE(store.find("a"), nullptr);
  put("d");
  EXPECT_EQ(store.find("b"), nullptr);
  EXPECT_EQ(store.find_item("item_b"), nullptr);
  EXPECT_EQ(store.find("a")->body(), R"({"id":"a","output":[]})");
  EXPECT_EQ(store.find_item("item_a"), store.find("a"));
  EXPECT_EQ(store.size(), 3u);
  EXPECT_TRUE(store.erase("a"));
  EXPECT_FALSE(store.erase("a"));
  EXPECT_EQ(store.find("a"), nullptr);
  // By bytes: each leaves room for one more at most.
  put("e", 500'000);
  put("f", 500'000);
  put("g", 500'000);
  EXPECT_EQ(store.find("e"), nullptr);
  EXPECT_NE(store.find("f"), nullptr);
  EXPECT_LE(store.bytes(), 1 << 20);
  // Too large to keep, and so is nothing else's fault: it is refused a place, and no byte leaks.
  put("h", 2'000'000);
  EXPECT_EQ(store.find("h"), nullptr);
  EXPECT_EQ(store.size(), 0u);
  EXPECT_EQ(store.bytes(), 0);
}

TEST(ResponseStore, TurnsOutliveTheResponseThatBroughtThem) {
  ResponseStore store(2, 1 << 20);
  std::vector<std::shared_ptr<const ResponseTurn>> turns;
  for (int i = 0; i < 50; ++i) {
    turns.push_back(store.make_turn(std::string(1000, 'x'), "[]"));
    store.put(std::to_string(i), {turns, "{", {}});
  }
  EXPECT_EQ(store.size(), 2u);
  EXPECT_EQ(store.find("49")->turns.size(), 50u);
  turns.clear();
  EXPECT_GT(store.bytes(), 50'000);
  EXPECT_LT(store.bytes(), 100'000) << "shared, not copied";
  store.erase("48");
  store.erase("49");
  EXPECT_EQ(store.bytes(), 0);
}

TEST(ResponseStore, ManyThreads) {
  ResponseStore store(50, 200'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&store, t] {
      for (int i = 0; i < 2000; ++i) {
        const std::string id = std::to_string((i * 7 + t) % 100);
        if (const auto found = store.find(id)) {
          auto turns = found->turns;
          if (turns.size() > 5) turns.clear();
          turns.push_back(store.make_turn("i" + id, "[]"));
          store.put(id, {std::move(turns), "{", {"item" + id}});
        } else {
          store.put(id, {{store.make_turn(std::string(1000, 'x'), "[]")}, "{", {"item" + id}});
        }
        if (i % 5 == 0) store.erase(std::to_string(i % 100));
        store.find_item("item" + id);
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_LE(store.size(), 50u);
  for (int i = 0; i < 100; ++i) store.erase(std::to_string(i));
  EXPECT_EQ(store.bytes(), 0);
}

TEST(Truncation, LeavesOutWholeUnitsFromTheFront) {
  const Json messages = Json::parse(R"([{"role":"system","content":"s"},{"role":"user","content":"1"},
      {"role":"assistant","content":"2"},{"role":"tool","content":"3"},{"role":"tool","content":"4"},
      {"role":"system","content":"t"},{"role":"user","content":"5"}])");
  EXPECT_EQ(droppable_units(messages), 2u);
  EXPECT_EQ(drop_oldest(messages, 1).size(), 6u);
  EXPECT_EQ(drop_oldest(messages, 2), Json::parse(R"([{"role":"system","content":"s"},
      {"role":"system","content":"t"},{"role":"user","content":"5"}])"));
  EXPECT_EQ(droppable_units(Json::array()), 0u);
  EXPECT_EQ(droppable_units(Json::parse(R"([{"role":"system","content":"s"}])")), 0u);
}

TEST(Truncation, FindsTheSmallestCutWithFewMeasures) {
  uint64_t state = 7;
  const auto random = [&state](uint64_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % n;
  };
  int most = 0;
  for (int round = 0; round < 300; ++round) {
    Json messages = Json::array();
    std::vector<int64_t> tokens;
    const size_t n = 2 + random(200);
    for (size_t i = 0; i < n; ++i) {
      const size_t bytes = 1 + random(10) * random(10) * random(100);
      messages.push_back({{"role", "user"}, {"content", std::string(bytes, 'x')}});
      tokens.push_back(static_cast<int64_t>(3 + bytes / (2 + random(4))));
    }
    int64_t whole = 10;
    for (const int64_t t : tokens) whole += t;
    const int64_t room = 1 + static_cast<int64_t>(random(static_cast<uint64_t>(whole)));
    size_t expected = 1;
    const auto left = [&](size_t units) {
      int64_t sum = 10;
      for (size_t i = units; i < n; ++i) sum += tokens[i];
      return sum;
    };
    while (expected < n - 1 && left(expected) > room) ++expected;
    int measured = 0;
    const auto cut = find_cut(messages, whole, room, [&](size_t units) -> std::optional<int64_t> {
      ++measured;
      return left(units);
    });
    ASSERT_EQ(cut, expected);
    most = std::max(most, measured);
  }
  EXPECT_LE(most, 16);
  EXPECT_EQ(find_cut(Json::parse(R"([{"role":"user"},{"role":"user"}])"), 10, 5,
                     [](size_t) -> std::optional<int64_t> { return std::nullopt; }),
            std::nullopt);
}

}  // namespace
}  // namespace firesteel::api
