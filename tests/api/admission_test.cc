// What a request is told when the engine is full, and its priority, on every generating route.
#include "api_fixture.h"

namespace firesteel::api {
namespace {

class AdmissionTest : public ApiFixture {
 protected:
  struct Ask {
    std::string path;
    Json body;
  };
  /// The same small question for every route, streamed or whole.
  static std::vector<Ask> asks(bool stream) {
    std::vector<Ask> out = {{"/v1/chat/completions", chat()},
                            {"/v1/completions", {{"prompt", "x"}}},
                            {"/v1/messages", chat(R"("model":"m")")}};
    for (Ask& ask : out) {
      ask.body["max_tokens"] = 50;
      ask.body["stream"] = stream;
    }
    return out;
  }
  void start_small(int streams, int queue) {
    EngineInfo info = engine_info();
    info.max_streams = streams;
    info.max_queue = queue;
    start(options(), info);
  }
  static ScriptedReply endless() {
    ScriptedReply reply;
    reply.ids = std::vector<int32_t>(4000, ids("x")[0]);
    reply.first_delay_us = 60'000'000;
    return reply;
  }
  http::RawClient post(const Ask& ask) const {
    http::RawClient c = client();
    c.send(http_post(ask.path, dump_json(ask.body)));
    return c;
  }
};

TEST_F(AdmissionTest, AFullEngineIs429BeforeTheStreamOpensOnEveryRoute) {
  start_small(1, 1);
  play(endless());
  // A place in the batch and one in the queue: both streams open before any token.
  http::RawClient first = post(asks(true)[0]), second = post(asks(true)[0]);
  ASSERT_FALSE(first.read_until("assistant").empty());
  ASSERT_FALSE(second.read_until("assistant").empty());
  for (const bool stream : {true, false}) {
    for (const Ask& ask : asks(stream)) {
      http::RawClient c = post(ask);
      const http::RawReply reply = c.read_reply();
      EXPECT_EQ(reply.status, 429) << ask.path;
      EXPECT_EQ(reply.headers.at("retry-after"), "5");
      EXPECT_EQ(reply.headers.at("content-type"), "application/json") << "no stream was opened";
      const Json body = Json::parse(reply.body, nullptr, false);
      ASSERT_TRUE(body.is_object() && body.contains("error")) << reply.body;
      if (ask.path == "/v1/messages") {
        EXPECT_EQ(body["type"], "error");
        EXPECT_EQ(body["error"]["type"], "overloaded_error");
      } else {
        EXPECT_EQ(body["error"]["type"], "rate_limit_error");
        EXPECT_EQ(body["error"]["code"], "server_busy");
      }
      for (const char* words : {"context length", "context window", "too long", "too many tokens"}) {
        EXPECT_EQ(reply.body.find(words), std::string::npos) << "agents take this for an overflow";
      }
      // The connection goes on.
      c.send(http_get("/ready"));
      EXPECT_EQ(c.read_reply().status, 200) << ask.path;
    }
  }
  // A place that comes free is given to the next.
  second.close();
  ASSERT_TRUE(eventually([&] { return engine_->stats().running == 1; }));
  http::RawClient third = post(asks(true)[0]);
  EXPECT_FALSE(third.read_until("assistant").empty());
}

// Two choices and room for one: nothing opens, and the choice that had been taken in gives its place back.
TEST_F(AdmissionTest, ARequestIsAdmittedWholeOrNotAtAll) {
  start_small(2, 0);
  play(endless());
  http::RawClient first = post(asks(true)[0]);
  ASSERT_FALSE(first.read_until("assistant").empty());
  Ask two = asks(true)[0];
  two.body["n"] = 2;
  EXPECT_EQ(post(two).read_reply().status, 429);
  EXPECT_TRUE(eventually([&] { return engine_->stats().cancelled == 1; }));
  EXPECT_EQ(engine_->stats().running, 1);
  http::RawClient second = post(asks(true)[0]);
  EXPECT_FALSE(second.read_until("assistant").empty());
}

TEST_F(AdmissionTest, PriorityReachesTheEngineOnEveryRoute) {
  play_text("ok");
  const std::vector<std::pair<Json, bool>> cases = {
      {"background", true}, {"normal", false}, {"default", false}, {"foreground", false}, {nullptr, false},
      {0, false},           {-5, false},       {1, true},          {7.5, true},
  };
  for (const bool stream : {true, false}) {
    for (Ask ask : asks(stream)) {
      for (const auto& [priority, background] : cases) {
        ask.body["priority"] = priority;
        EXPECT_EQ(post(ask).read_reply().status, 200) << ask.path << priority;
        std::lock_guard lock(mutex_);
        EXPECT_EQ(requests_.back().background, background) << ask.path << priority;
      }
    }
  }
}

TEST_F(AdmissionTest, AnUnknownPriorityIsRefusedBeforeTheStreamOpens) {
  for (const Ask& sent : asks(true)) {
    for (const Json& priority : {Json("urgent"), Json(true), Json::array(), Json::object()}) {
      Ask ask = sent;
      ask.body["priority"] = priority;
      http::RawClient c = post(ask);
      const http::RawReply reply = c.read_reply();
      EXPECT_EQ(reply.status, 400) << ask.path << priority;
      EXPECT_NE(reply.body.find("priority must be"), std::string::npos) << reply.body;
    }
  }
  EXPECT_TRUE(requests_.empty());
}

}  // namespace
}  // namespace firesteel::api
