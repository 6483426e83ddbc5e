// Faults that users reported of such servers, as requests to ours over a scripted engine. The name of each
// test begins with the number of the report; docs/reports.md is the index.
#pragma once

#include "../api/api_fixture.h"

namespace firesteel::api {

class Reports : public ApiFixture {
 protected:
  static std::string call(const std::string& name, const std::string& key = "",
                          const std::string& value = "") {
    if (key.empty()) return "<tool_call>" + name + "</tool_call>";
    return "<tool_call>" + name + "<arg_key>" + key + "</arg_key><arg_value>" + value +
           "</arg_value></tool_call>";
  }
  static Json tool(const std::string& name, const std::string& parameters) {
    return {{"type", "function"}, {"function", {{"name", name}, {"parameters", Json::parse(parameters)}}}};
  }
  static Json weather() {
    return tool("get_weather", R"({"type":"object","properties":{"city":{"type":"string"},)"
                               R"("days":{"type":"integer"}},"required":["city"]})");
  }
  static Json bash() {
    return tool("bash", R"({"type":"object","properties":{"command":{"type":"string"}},)"
                        R"("required":["command"]})");
  }
  static Json with_tools(std::initializer_list<Json> tools, Json body = chat()) {
    body["tools"] = Json::array();
    for (const Json& t : tools) body["tools"].push_back(t);
    return body;
  }
  static Json user(const std::string& text) { return {{"role", "user"}, {"content", text}}; }
  static Json off(Json body = chat()) {
    body["reasoning_effort"] = "none";
    return body;
  }

  /// `text` as whole tokens, one byte a token, and all at one step, each streamed and whole: all the same.
  Got answer(Json body, const std::string& text, const std::string& end = "<|observation|>") {
    std::vector<Got> all;
    for (const int way : {0, 1, 2}) {
      ScriptedReply reply;
      if (way == 1) {
        for (char c : text) append(reply.ids, plain_ids(std::string(1, c)));
      } else {
        reply.ids = ids(text);
      }
      if (!end.empty()) append(reply.ids, ids(end));
      reply.slices = {way == 2 ? 10'000 : 1};
      play(reply);
      for (const bool stream : {false, true}) {
        body["stream"] = stream;
        all.push_back(send(body));
        EXPECT_EQ(all.back().status, 200) << all.back().raw.body;
        EXPECT_TRUE(all.back().done);
      }
    }
    for (Got& got : all) {
      got.usage = nullptr;  // counts tokens, of which there are more in bytes
      EXPECT_EQ(got, all[0]) << text;
      EXPECT_FALSE(got.content.empty() && got.calls.empty() && got.reasoning.empty() && !text.empty() &&
                   got.finish == "stop" && got.stop_reason.is_null())
          << "an empty reply";
    }
    return all[0];
  }
  static void append(std::vector<int32_t>& to, const std::vector<int32_t>& more) {
    to.insert(to.end(), more.begin(), more.end());
  }

  static std::string arguments(const Got& got, size_t call = 0) {
    return call < got.calls.size() ? got.calls[call]["function"]["arguments"].get<std::string>() : "no call";
  }
  static std::string name(const Got& got, size_t call = 0) {
    return call < got.calls.size() ? got.calls[call]["function"]["name"].get<std::string>() : "no call";
  }

  Json post(const std::string& path, const Json& body, int expect = 200) const {
    http::RawClient c = client();
    c.send(http_post(path, dump_json(body)));
    const http::RawReply reply = c.read_reply();
    EXPECT_EQ(reply.status, expect) << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
  /// The prompt of a chat request, as text.
  std::string prompt_of(const Json& body) const {
    return tokenizer().decode(post("/tokenize", body)["tokens"].get<std::vector<int32_t>>());
  }
  static size_t count(const std::string& text, const std::string& what) {
    size_t n = 0;
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
    return n;
  }
};

}  // namespace firesteel::api
