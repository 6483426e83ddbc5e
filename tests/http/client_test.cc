// The client against our own server and against sockets that misbehave; the reader of event streams.
#include "http/client.h"

#include <gtest/gtest.h>

#include <mutex>
#include <random>
#include <thread>

#include "http/event_reader.h"
#include "http/server.h"

namespace firesteel::http {
namespace {

using std::chrono::milliseconds;

TEST(ClientUrl, Forms) {
  const Url url = parse_url("http://example:81/a/b/").value();
  EXPECT_EQ(url.host, "example");
  EXPECT_EQ(url.port, 81);
  EXPECT_EQ(url.path, "/a/b");
  EXPECT_EQ(url.authority(), "example:81");
  EXPECT_EQ(parse_url("http://h").value().port, 80);
  EXPECT_EQ(parse_url("http://h").value().authority(), "h");
  EXPECT_EQ(parse_url("http://h/").value().path, "");
  EXPECT_EQ(parse_url("http://[::1]:8888").value().host, "::1");
  EXPECT_EQ(parse_url("http://[::1]:8888").value().authority(), "[::1]:8888");
  for (const char* bad :
       {"", "h:80", "http://", "http://:80", "http://h:", "http://h:0", "http://h:99999", "http://h:8x",
        "http://u@h", "http://h/a?b", "http://h /x", "http://[::1", "ftp://h", "http://h\r\nX: y"}) {
    const auto result = parse_url(bad);
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(parse_url("https://h").error().code, ErrorCode::kUnsupported);
}

/// An exchange that a handler leaves open, for the test's own thread.
class Held {
 public:
  void put(std::shared_ptr<Exchange> exchange) {
    std::lock_guard lock(mutex_);
    exchange_ = std::move(exchange);
  }
  std::shared_ptr<Exchange> get() {
    std::lock_guard lock(mutex_);
    return exchange_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<Exchange> exchange_;
};

class ClientTest : public ::testing::Test {
 protected:
  void start(Handler handler) {
    ServerOptions options;
    options.port = 0;
    std::vector<Route> routes = {{"GET", "/x", 1 << 20, false, handler},
                                 {"POST", "/x", 1 << 20, false, handler}};
    server_ = std::move(HttpServer::start(options, std::move(routes), {})).value();
    url_ = parse_url("http://127.0.0.1:" + std::to_string(server_->port())).value();
  }
  Url url_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(ClientTest, WholeReplies) {
  start([](std::shared_ptr<Exchange> e) {
    Response r;
    r.status = 201;
    r.headers.push_back({"X-Seen", e->head().method + std::string(e->head().header("x-mine"))});
    r.body = e->body() + "!";
    e->respond(std::move(r));
  });
  const ClientReply reply =
      fetch(url_, {"POST", "/x", {{"X-Mine", "yes"}}, "{}"}, milliseconds(5000)).value();
  EXPECT_EQ(reply.status, 201);
  EXPECT_EQ(reply.header("x-seen"), "POSTyes");
  EXPECT_EQ(reply.body, "{}!");
  EXPECT_EQ(fetch(url_, {"GET", "/none", {}, ""}, milliseconds(5000))->status, 404);
}

// Pieces are handed over when they come, not when the reply is complete.
TEST_F(ClientTest, StreamsArriveAsTheyAreWritten) {
  Held open;
  start([&](std::shared_ptr<Exchange> e) {
    open.put(e);
    e->open_stream({}, "");
    e->write("data: 1\n\n");
  });
  std::string got;
  const auto client = std::move(Client::connect(url_, milliseconds(5000))).value();
  const auto reply = client->exchange({"GET", "/x", {}, ""}, milliseconds(5000), [&](std::string_view piece) {
    got += piece;
    if (got == "data: 1\n\n") {
      open.get()->write("data: 2\n\n");  // only after the first was seen
      open.get()->close_stream();
    }
    return true;
  });
  ASSERT_TRUE(reply.ok()) << reply.error().message;
  EXPECT_EQ(reply->header("content-type"), "text/event-stream");
  EXPECT_EQ(got, "data: 1\n\ndata: 2\n\n");
  EXPECT_EQ(reply->body, "");
}

TEST_F(ClientTest, ASinkCanEndTheExchangeAndNeverSeesErrors) {
  Held open;
  start([&](std::shared_ptr<Exchange> e) {
    e->open_stream({}, "");
    e->write("data: 1\n\n");
    open.put(e);  // never closed
  });
  auto client = std::move(Client::connect(url_, milliseconds(5000))).value();
  EXPECT_TRUE(
      client->exchange({"GET", "/x", {}, ""}, milliseconds(5000), [](std::string_view) { return false; })
          .ok());
  int pieces = 0;
  client = std::move(Client::connect(url_, milliseconds(5000))).value();
  const auto refused = client->exchange({"GET", "/y", {}, ""}, milliseconds(5000), [&](std::string_view) {
    ++pieces;
    return true;
  });
  EXPECT_EQ(refused->status, 404);
  EXPECT_EQ(pieces, 0);
  EXPECT_NE(refused->body.find("unknown_url"), std::string::npos);
  open.put(nullptr);
}

TEST_F(ClientTest, SilenceAndRefusalAreErrorsInOneLine) {
  Held open;
  start([&](std::shared_ptr<Exchange> e) { open.put(e); });
  const auto silent = fetch(url_, {"GET", "/x", {}, ""}, milliseconds(150));
  ASSERT_FALSE(silent.ok());
  EXPECT_EQ(silent.error().code, ErrorCode::kIo);
  EXPECT_NE(silent.error().message.find("nothing came for 1 s"), std::string::npos) << silent.error().message;
  open.put(nullptr);
  server_->stop();
  const auto refused = fetch(url_, {"GET", "/x", {}, ""}, milliseconds(2000));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("cannot connect to 127.0.0.1"), std::string::npos);
  EXPECT_EQ(refused.error().message.find('\n'), std::string::npos);
}

std::vector<std::pair<std::string, std::string>> events_of(std::string_view text, size_t step) {
  std::vector<std::pair<std::string, std::string>> out;
  EventReader reader([&](const EventReader::Event& e) { out.emplace_back(e.name, e.data); });
  for (size_t at = 0; at < text.size(); at += step) EXPECT_TRUE(reader.push(text.substr(at, step)));
  return out;
}

TEST(EventReader, AnyCutGivesTheSameEvents) {
  const std::string text =
      "\xEF\xBB\xBF"
      "data: one\n\n: comment\n\nevent: named\r\ndata:two\r\ndata:  three\r\n\r\n"
      "id: 7\n\ndata\n\ndata: \xC3\xA9\r\rretry: 5\ndata: cut off";
  const std::vector<std::pair<std::string, std::string>> wanted = {
      {"", "one"}, {"named", "two\n three"}, {"", ""}, {"", "\xC3\xA9"}};
  for (size_t step = 1; step <= text.size(); ++step) EXPECT_EQ(events_of(text, step), wanted) << step;
}

TEST(EventReader, AnEventWithoutEndIsNotHeldForEver) {
  EventReader reader([](const EventReader::Event&) {}, 1000);
  EXPECT_TRUE(reader.push("data: " + std::string(900, 'x') + "\n"));
  EXPECT_FALSE(reader.push("data: " + std::string(200, 'x')));
  EXPECT_FALSE(reader.push("\n\n"));
}

}  // namespace
}  // namespace firesteel::http
