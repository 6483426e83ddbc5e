// One stream of the benches against servers that do it right, differently, or wrong.
#include "app/bench_stream.h"

#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "http/server.h"

namespace firesteel {
namespace {

using Json = nlohmann::ordered_json;

const char* const kGood =
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
    ": keepalive\n\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"one \"},\"finish_reason\":null}],\"usage\":null}\n\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"two three\"}}]}\n\n"
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}],\"server_stats\":{\"rounds\":2}}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,"
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"
    "data: [DONE]\n\n";

class BenchStreamTest : public ::testing::Test {
 protected:
  /// Plays `events` to whatever is asked; bodies are kept. `refuses`: a field that makes it answer 400.
  void start(std::string events, std::string refuses = "", int status = 200) {
    const auto chat = [=, this](std::shared_ptr<http::Exchange> e) {
      const Json body = parse_json(e->body()).value();
      {
        std::lock_guard lock(mutex_);
        bodies_.push_back(body);
        keys_.emplace_back(e->head().header("authorization"));
      }
      if (status != 200 || (!refuses.empty() && body.contains(refuses))) {
        http::Response r;
        r.status = status != 200 ? status : 400;
        r.body = R"({"error":{"message":"I will\nnot"}})";
        return e->respond(std::move(r));
      }
      e->open_stream({}, "");
      e->write(events);
      e->close_stream();
    };
    const auto models = [](std::shared_ptr<http::Exchange> e) {
      http::Response r;
      r.body = R"({"data":[{"id":"first"},{"id":"second"}]})";
      e->respond(std::move(r));
    };
    http::ServerOptions options;
    options.port = 0;
    std::vector<http::Route> routes = {{"POST", "/v1/chat/completions", 1 << 20, false, chat},
                                       {"GET", "/v1/models", 1 << 10, true, models}};
    http_ = std::move(http::HttpServer::start(options, std::move(routes), {})).value();
    server_.url = http::parse_url("http://127.0.0.1:" + std::to_string(http_->port())).value();
    server_.model = "m";
    server_.silence = std::chrono::milliseconds(5000);
  }
  Result<ChatStream> ask() {
    auto call = ChatCall::open(server_, {"why?", 400, true});
    if (!call.ok()) return call.error();
    return call->run();
  }
  std::string failure() {
    const auto result = ask();
    EXPECT_FALSE(result.ok());
    const std::string message = result.ok() ? "" : result.error().message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }

  std::mutex mutex_;
  std::vector<Json> bodies_;
  std::vector<std::string> keys_;
  std::unique_ptr<http::HttpServer> http_;
  ChatServer server_;
};

TEST_F(BenchStreamTest, AGoodStream) {
  start(kGood);
  server_.key = "secret";
  const auto stream = ask();
  ASSERT_TRUE(stream.ok()) << stream.error().message;
  EXPECT_EQ(stream->text, "one two three");
  EXPECT_EQ(stream->times.visible.size(), 2u) << "an empty delta, a comment and usage are not visible";
  EXPECT_EQ(stream->times.tokens, 3);
  EXPECT_EQ(stream->prompt_tokens, 9);
  EXPECT_EQ(stream->cached_tokens, 4);
  EXPECT_EQ(stream->rounds, 2);
  EXPECT_EQ(stream->finish_reason, "length");
  EXPECT_FALSE(stream->plain);
  EXPECT_GT(stream->times.visible.front(), stream->times.sent);
  EXPECT_EQ(keys_.at(0), "Bearer secret");
}

TEST_F(BenchStreamTest, TheRequestIsTheProtocols) {
  start(kGood);
  ASSERT_TRUE(ask().ok());
  ASSERT_EQ(bodies_.size(), 1u);
  const Json wanted = {{"model", "m"},         {"messages", {{{"role", "user"}, {"content", "why?"}}}},
                       {"stream", true},       {"stream_options", {{"include_usage", true}}},
                       {"temperature", 0},     {"top_p", 1},
                       {"max_tokens", 400},    {"chat_template_kwargs", {{"enable_thinking", false}}},
                       {"min_tokens", 400},    {"ignore_eos", true},
                       {"stop", Json::array()}};
  EXPECT_EQ(bodies_[0], wanted);
  EXPECT_EQ(keys_.at(0), "");
}

TEST_F(BenchStreamTest, AServerThatRefusesTheExtraFieldsIsAskedOnceWithoutThem) {
  start(kGood, "ignore_eos");
  const auto stream = ask();
  ASSERT_TRUE(stream.ok()) << stream.error().message;
  EXPECT_TRUE(stream->plain);
  ASSERT_EQ(bodies_.size(), 2u);
  for (const char* field : {"min_tokens", "ignore_eos", "stop"})
    EXPECT_FALSE(bodies_[1].contains(field)) << field;
  EXPECT_EQ(bodies_[1]["max_tokens"], 400);
  start(kGood, "messages");  // refuses whatever is asked
  bodies_.clear();
  EXPECT_EQ(failure(), "the server answers 400: I will not");
  EXPECT_EQ(bodies_.size(), 2u);
}

TEST_F(BenchStreamTest, OtherSpellingsOfReasoning) {
  start(
      "data: {\"choices\":[{\"delta\":{\"reasoning\":\"a\"}}]}\n\n"
      "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"b\"}}]}\n\n"
      "data: {\"choices\":[{\"delta\":{\"content\":\"c\"},\"finish_reason\":\"stop\"}],"
      "\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n");
  const auto stream = ask();
  ASSERT_TRUE(stream.ok()) << stream.error().message;
  EXPECT_EQ(stream->text, "abc");
  EXPECT_EQ(stream->times.visible.size(), 3u);
  EXPECT_EQ(stream->cached_tokens, -1) << "not said is not zero";
  EXPECT_EQ(stream->rounds, -1);
}

TEST_F(BenchStreamTest, FaultsAreToldInOneLine) {
  start("", "", 429);
  EXPECT_EQ(failure(), "the server answers 429: I will not");
  EXPECT_EQ(bodies_.size(), 1u) << "only a 400 is asked again";
  start(
      "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"error\":{\"message\":\"lost a "
      "rank\"}}\n\n"
      "data: [DONE]\n\n");
  EXPECT_EQ(failure(), "the stream failed: lost a rank");
  start("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n");
  EXPECT_EQ(failure(), "the stream ended without [DONE]");
  start("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: [DONE]\n\n");
  EXPECT_EQ(failure(), "the stream carries no usage, so its tokens cannot be counted");
  start("data: {oops\n\n");
  EXPECT_EQ(failure(), "the stream failed: an event is no JSON: {oops");
  start("data: [1]\n\ndata: {\"choices\":[7]}\n\ndata: {\"choices\":{},\"usage\":5}\n\ndata: [DONE]\n\n");
  EXPECT_EQ(failure().substr(0, 28), "the stream carries no usage,") << "odd shapes are passed over";
}

TEST_F(BenchStreamTest, TheFirstModelIsAskedFor) {
  start(kGood);
  EXPECT_EQ(first_model(server_).value(), "first");
  server_.url.path = "/elsewhere";
  EXPECT_EQ(first_model(server_).error().message.substr(0, 26), "/v1/models answers 404: un");
}

}  // namespace
}  // namespace firesteel
