// The server over real sockets on the loopback address.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "http/server.h"
#include "raw_client.h"

namespace firesteel::http {
namespace {

using namespace std::chrono_literals;

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit = 20s) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override { start({}); }

  void start(ServerOptions options) {
    server_.reset();
    options.port = 0;
    std::vector<Route> routes;
    routes.push_back({"GET", "/ping", 1024, true, [](std::shared_ptr<Exchange> e) {
                        Response r;
                        r.body = "pong";
                        e->respond(std::move(r));
                      }});
    routes.push_back({"GET", "/item/{}", 1024, true, [](std::shared_ptr<Exchange> e) {
                        Response r;
                        r.body = e->head().path_argument;
                        e->respond(std::move(r));
                      }});
    routes.push_back({"POST", "/thing/{}/stop", 1024, true, [](std::shared_ptr<Exchange> e) {
                        Response r;
                        r.body = "stop " + e->head().path_argument;
                        e->respond(std::move(r));
                      }});
    routes.push_back({"GET", "/thing/{}", 1024, true, [](std::shared_ptr<Exchange> e) {
                        Response r;
                        r.body = e->head().path_argument;
                        e->respond(std::move(r));
                      }});
    routes.push_back({"POST", "/echo", 1u << 20, false, [](std::shared_ptr<Exchange> e) {
                        Response r;
                        r.body = e->body();
                        e->respond(std::move(r));
                      }});
    routes.push_back(
        {"POST", "/hold", 1024, false, [this](std::shared_ptr<Exchange> e) { hold(std::move(e)); }});
    routes.push_back({"POST", "/stream", 1024, false, [this](std::shared_ptr<Exchange> e) {
                        e->open_stream({}, ": keepalive\n\n");
                        e->write("data: first\n\n");
                        hold(std::move(e));
                      }});
    routes.push_back({"POST", "/drop", 1024, false, [](std::shared_ptr<Exchange>) {}});
    routes.push_back({"POST", "/throw", 1024, false,
                      [](std::shared_ptr<Exchange>) { throw std::runtime_error("planned"); }});
    auto started = HttpServer::start(options, std::move(routes), {});
    ASSERT_TRUE(started.ok()) << started.error().message;
    server_ = std::move(started).value();
  }

  void hold(std::shared_ptr<Exchange> e) {
    e->on_gone([this] { gone_.fetch_add(1); });
    std::lock_guard lock(mutex_);
    held_.push_back(std::move(e));
    held_count_.fetch_add(1);
  }

  std::shared_ptr<Exchange> take_held() {
    if (!eventually([&] { return held_count_.load() > 0; })) return nullptr;
    std::lock_guard lock(mutex_);
    auto e = held_.front();
    held_.erase(held_.begin());
    held_count_.fetch_sub(1);
    return e;
  }

  void TearDown() override {
    {
      std::lock_guard lock(mutex_);
      held_.clear();
    }
    server_.reset();
  }

  uint16_t port() const { return server_->port(); }
  static std::string post(const std::string& path, const std::string& body, const std::string& extra = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: h\r\n" + extra +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  static std::string get(const std::string& path, const std::string& extra = "") {
    return "GET " + path + " HTTP/1.1\r\nHost: h\r\n" + extra + "\r\n";
  }

  std::unique_ptr<HttpServer> server_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Exchange>> held_;
  std::atomic<int> held_count_{0}, gone_{0};
};

TEST_F(ServerTest, AnswersAndKeepsTheConnection) {
  RawClient c(port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(c.send(get("/ping")));
    const RawReply r = c.read_reply();
    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.body, "pong");
    EXPECT_EQ(r.headers.count("connection"), 0u);
    EXPECT_TRUE(r.headers.at("x-request-id").starts_with("req_"));
  }
  c.send(get("/ping/?q=1", "x-request-id: mine\r\nConnection: close\r\n"));
  const RawReply r = c.read_reply();
  EXPECT_EQ(r.headers.at("x-request-id"), "mine");
  EXPECT_EQ(r.headers.at("connection"), "close");
  EXPECT_TRUE(c.closed_within(5000));
}

TEST_F(ServerTest, TheMostSpecificRouteDecides) {
  const auto ask = [&](const std::string& method, const std::string& path) {
    RawClient c(port());
    c.send(method + " " + path + " HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    return c.read_reply();
  };
  EXPECT_EQ(ask("POST", "/thing/a%20b/stop/").body, "stop a b");
  EXPECT_EQ(ask("GET", "/thing/x").body, "x");
  EXPECT_EQ(ask("GET", "/thing/x/y").body, "x/y");
  RawReply r = ask("GET", "/thing/x/stop");
  EXPECT_EQ(r.status, 405);
  EXPECT_EQ(r.headers.at("allow"), "POST");
  r = ask("POST", "/thing/x");
  EXPECT_EQ(r.status, 405);
  EXPECT_EQ(r.headers.at("allow"), "GET");
  EXPECT_EQ(ask("POST", "/thing/x/y/stop").status, 405);
  EXPECT_EQ(ask("GET", "/thing").status, 404);
  EXPECT_EQ(ask("POST", "/thing//stop").status, 405) << "no argument, but a thing named /stop";
}

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInOrder) {
  RawClient c(port());
  std::string all;
  for (int i = 0; i < 50; ++i)
    all += post("/echo", std::to_string(i) + "n") + get("/item/a%2Fb/" + std::to_string(i));
  c.send(all);
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(c.read_reply().body, std::to_string(i) + "n");
    ASSERT_EQ(c.read_reply().body, "a/b/" + std::to_string(i));
  }
}

TEST_F(ServerTest, HeadHasNoBodyAndTheNextReplyIsFound) {
  RawClient c(port());
  c.send("HEAD /ping HTTP/1.1\r\nHost: h\r\n\r\n" + get("/ping"));
  const RawReply head = c.read_reply(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "4");
  EXPECT_EQ(c.read_reply().body, "pong");
}

TEST_F(ServerTest, UnknownPathsAndMethods) {
  RawClient c(port());
  c.send(get("/nothing") + "PUT /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc" + get("/ping"));
  EXPECT_EQ(c.read_reply().status, 404);
  const RawReply r = c.read_reply();
  EXPECT_EQ(r.status, 405);
  EXPECT_EQ(r.headers.at("allow"), "POST");
  EXPECT_EQ(c.read_reply().body, "pong") << "the refused body must have been read";
}

TEST_F(ServerTest, RefusedBodiesAreDrainedOrTheConnectionSaysThatItCloses) {
  RawClient c(port());
  c.send("POST /nothing HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n" +
         get("/ping"));
  EXPECT_EQ(c.read_reply().status, 404);
  EXPECT_EQ(c.read_reply().body, "pong");
  RawClient big(port());
  big.send("POST /nothing HTTP/1.1\r\nHost: h\r\nContent-Length: 999999999\r\n\r\nabc");
  const RawReply r = big.read_reply();
  EXPECT_EQ(r.status, 404);
  EXPECT_EQ(r.headers.at("connection"), "close");
}

// A client that sends on after it was refused finds the reply, not a reset: what it sends is read and
// dropped.
TEST_F(ServerTest, ARefusedClientThatSendsOnFindsItsReply) {
  ServerOptions o;
  o.linger_bytes = 24u << 20;
  start(o);
  for (const size_t megabytes : {2u, 20u}) {
    RawClient c(port());
    ASSERT_TRUE(c.send(
        "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(megabytes << 20) + "\r\n\r\n"));
    const std::string block(1u << 20, 'x');
    for (size_t i = 0; i < megabytes; ++i) ASSERT_TRUE(c.send(block)) << i;
    const RawReply r = c.read_reply();
    EXPECT_EQ(r.status, 413);
    EXPECT_TRUE(r.complete);
    EXPECT_TRUE(c.closed_within(5000));
  }
  // But not for ever.
  RawClient endless(port());
  ASSERT_TRUE(endless.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n\r\n"));
  const std::string block(1u << 20, 'x');
  size_t sent = 0;
  while (sent < 64 && endless.send(block)) ++sent;
  EXPECT_LT(sent, 64u);
  RawClient other(port());
  other.send(get("/ping"));
  EXPECT_EQ(other.read_reply().body, "pong");
}

// One that trickles on is let go after a time.
TEST_F(ServerTest, ARefusedClientThatTricklesIsLetGo) {
  ServerOptions o;
  o.linger_timeout = 200ms;
  o.linger_most = 600ms;
  start(o);
  RawClient c(port());
  c.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\n");
  EXPECT_EQ(c.read_reply().status, 413);
  const auto begun = std::chrono::steady_clock::now();
  while (c.send("x") && std::chrono::steady_clock::now() - begun < 20s) std::this_thread::sleep_for(20ms);
  EXPECT_GE(std::chrono::steady_clock::now() - begun, 400ms) << "bytes that come move the end";
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 15s);
}

TEST_F(ServerTest, BodyLimit) {
  RawClient sized(port());
  sized.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1048577\r\n\r\n" + std::string(5000, 'x'));
  RawReply r = sized.read_reply();
  EXPECT_EQ(r.status, 413);
  EXPECT_EQ(r.headers.at("connection"), "close");
  RawClient chunked(port());
  std::string piece = "10000\r\n" + std::string(0x10000, 'y') + "\r\n";
  chunked.send("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 17; ++i) chunked.send(piece);
  r = chunked.read_reply();
  EXPECT_EQ(r.status, 413);
  EXPECT_EQ(r.headers.at("connection"), "close");
  RawClient fits(port());
  const std::string exact(1u << 20, 'z');
  fits.send(post("/echo", exact));
  EXPECT_EQ(fits.read_reply().body, exact);
}

TEST_F(ServerTest, SmugglingAttemptsCloseTheConnection) {
  for (const std::string head :
       {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Transfer-Encoding: gzip, chunked\r\n"}) {
    RawClient c(port());
    c.send("POST /echo HTTP/1.1\r\nHost: h\r\n" + head + "\r\n0\r\n\r\n" + get("/ping"));
    const RawReply r = c.read_reply();
    EXPECT_EQ(r.status, 400) << head;
    EXPECT_EQ(r.headers.at("connection"), "close");
    EXPECT_TRUE(c.closed_within(5000));
    EXPECT_EQ(c.buffer().find("pong"), std::string::npos) << head;
  }
}

TEST_F(ServerTest, ExpectContinue) {
  RawClient c(port());
  c.send("POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(c.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  c.send("abc");
  EXPECT_EQ(c.read_reply().body, "abc");
  c.send("POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n");
  const std::string refused = c.read_until("\r\n\r\n");
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 413 ")) << refused;
}

TEST_F(ServerTest, SlowHeadsAndBodiesAreCutAndIdleConnectionsClosed) {
  ServerOptions o;
  o.head_timeout = 200ms;
  o.body_timeout = 200ms;
  o.idle_timeout = 200ms;
  start(o);
  RawClient head(port());
  head.send("GET /ping HT");
  EXPECT_EQ(head.read_reply().status, 408);
  EXPECT_TRUE(head.closed_within(10'000));
  RawClient body(port());
  body.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n");
  std::atomic<bool> stop{false};
  std::thread trickle([&] {  // one byte at a time does not keep the deadline away
    while (!stop && body.send("x")) std::this_thread::sleep_for(5ms);
  });
  EXPECT_EQ(body.read_reply().status, 408);
  stop = true;
  trickle.join();
  RawClient idle(port());
  EXPECT_TRUE(idle.closed_within(10'000));
  RawClient used(port());
  used.send(get("/ping"));
  EXPECT_EQ(used.read_reply().status, 200);
  EXPECT_TRUE(used.closed_within(10'000));
}

TEST_F(ServerTest, ClientsThatLeaveAreNoticedWholeAndStreamed) {
  for (const std::string path : {"/hold", "/stream"}) {
    for (const bool reset : {false, true}) {
      gone_ = 0;
      RawClient c(port());
      c.send(post(path, "x"));
      auto e = take_held();
      ASSERT_TRUE(e);
      EXPECT_FALSE(e->gone());
      reset ? c.abort() : c.close();
      EXPECT_TRUE(eventually([&] { return gone_.load() == 1; })) << path << reset;
      EXPECT_TRUE(e->gone());
      e->respond({});
      e->write("late");
    }
  }
  EXPECT_TRUE(eventually([&] { return server_->counters().active == 0; }));
}

TEST_F(ServerTest, AHalfClosedSocketIsNoDisconnect) {
  RawClient c(port());
  c.send(post("/hold", "x"));
  auto e = take_held();
  ASSERT_TRUE(e);
  c.finish_sending();
  std::this_thread::sleep_for(300ms);
  EXPECT_FALSE(e->gone());
  Response r;
  r.body = "done";
  e->respond(std::move(r));
  EXPECT_EQ(c.read_reply().body, "done");
  RawClient s(port());
  s.send(post("/stream", "x"));
  e = take_held();
  ASSERT_TRUE(e);
  s.finish_sending();
  std::this_thread::sleep_for(300ms);
  EXPECT_FALSE(e->gone());
  e->write("data: last\n\n");
  e->close_stream();
  const RawReply streamed = s.read_reply();
  EXPECT_TRUE(streamed.complete);
  EXPECT_TRUE(streamed.body.ends_with("data: last\n\n"));
}

TEST_F(ServerTest, AHalfClosedClientThatLeavesLaterIsNoticed) {
  RawClient c(port());
  c.send(post("/hold", "x"));
  auto e = take_held();
  ASSERT_TRUE(e);
  c.finish_sending();
  std::this_thread::sleep_for(100ms);
  c.close();
  EXPECT_TRUE(eventually([&] { return gone_.load() == 1; }));
}

TEST_F(ServerTest, StreamHeadersKeepaliveAndReuse) {
  ServerOptions o;
  o.stream_silence = 50ms;
  start(o);
  RawClient c(port());
  c.send(post("/stream", "x"));
  auto e = take_held();
  ASSERT_TRUE(e);
  ASSERT_FALSE(c.read_until(": keepalive\n\n").empty());
  ASSERT_FALSE(c.read_until(": keepalive\n\n").empty());
  e->write("data: end\n\n");
  e->close_stream();
  ASSERT_FALSE(c.read_until("data: end\n\n").empty());
  ASSERT_FALSE(c.read_until("0\r\n\r\n").empty());
  c.send(get("/ping"));
  EXPECT_EQ(c.read_reply().body, "pong") << "a cleanly ended stream keeps its connection";
  RawClient h(port());
  h.send(post("/stream", "x"));
  e = take_held();
  ASSERT_TRUE(e);
  e->close_stream();
  const RawReply r = h.read_reply();
  EXPECT_EQ(r.headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(r.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(r.headers.at("x-accel-buffering"), "no");
  EXPECT_EQ(r.headers.count("x-request-id"), 1u);
  RawClient old(port());
  old.send("POST /stream HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
  e = take_held();
  ASSERT_TRUE(e);
  e->write("data: b\n\n");
  e->close_stream();
  const RawReply plain = old.read_reply();
  EXPECT_EQ(plain.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(plain.body, "data: first\n\ndata: b\n\n");
  EXPECT_TRUE(plain.complete);
}

TEST_F(ServerTest, AClientThatDoesNotReadCongestsOnlyItself) {
  ServerOptions o;
  o.stream_buffer = 64u << 10;
  o.write_timeout = 1500ms;
  start(o);
  RawClient slow(port(), 4096);
  slow.send(post("/stream", "x"));
  auto e = take_held();
  ASSERT_TRUE(e);
  std::atomic<int> drained{0};
  e->on_drained([&] { drained.fetch_add(1); });
  const std::string block(16u << 10, 'b');
  // What the kernel's buffers take is not ours to say; beyond them the exchange is congested and stays so.
  ASSERT_TRUE(eventually([&] {
    if (!e->congested()) e->write(block);
    return e->congested();
  }));
  std::this_thread::sleep_for(50ms);
  EXPECT_LE(e->pending_bytes(), o.stream_buffer + (32u << 10));
  RawClient other(port());
  other.send(get("/ping"));
  EXPECT_EQ(other.read_reply().body, "pong");
  while (e->pending_bytes() > o.stream_buffer / 2 && slow.receive(2000)) slow.buffer().clear();
  EXPECT_TRUE(eventually([&] { return drained.load() > 0; }));
  ASSERT_TRUE(eventually([&] {
    if (!e->congested() && !e->gone()) e->write(block);
    return e->gone();  // without progress for write_timeout the connection ends
  }));
  EXPECT_EQ(gone_.load(), 1);
}

TEST_F(ServerTest, DroppedAndFailedHandlersAreAnswered) {
  RawClient c(port());
  c.send(post("/drop", "x") + post("/throw", "x") + get("/ping"));
  EXPECT_EQ(c.read_reply().status, 500);
  const RawReply r = c.read_reply();
  EXPECT_EQ(r.status, 500);
  EXPECT_EQ(r.body.find("planned"), std::string::npos) << "error texts stay inside";
  EXPECT_EQ(c.read_reply().body, "pong");
}

TEST_F(ServerTest, WakersRunOnTheSequenceAndMergeWakes) {
  RawClient c(port());
  c.send(post("/hold", "x"));
  auto e = take_held();
  ASSERT_TRUE(e);
  struct Counts {
    std::atomic<int> runs{0}, inside{0}, overlaps{0};
  };
  auto counts = std::make_shared<Counts>();  // a late wake may outlive this test
  auto waker = e->make_waker([counts] {
    if (counts->inside.fetch_add(1) != 0) counts->overlaps.fetch_add(1);
    counts->runs.fetch_add(1);
    counts->inside.fetch_sub(1);
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) waker->wake();
    });
  }
  for (auto& t : threads) t.join();
  const int seen = counts->runs.load();
  waker->wake();
  EXPECT_TRUE(eventually([&] { return counts->runs.load() > seen; }));
  EXPECT_EQ(counts->overlaps.load(), 0);
  EXPECT_LE(counts->runs.load(), 20'001);
  e->respond({});
}

TEST_F(ServerTest, ConnectionLimitEvictsIdleOnesAndRefusesTheRest) {
  ServerOptions o;
  o.max_connections = 4;
  start(o);
  std::vector<RawClient> idle;
  for (int i = 0; i < 4; ++i) idle.emplace_back(port());
  ASSERT_TRUE(eventually([&] { return server_->counters().connections == 4; }));
  std::this_thread::sleep_for(50ms);
  RawClient next(port());
  next.send(get("/ping"));
  EXPECT_EQ(next.read_reply().body, "pong") << "the longest idle connection gives way";
  std::vector<RawClient> busy;
  for (int i = 0; i < 4; ++i) {
    busy.emplace_back(port());
    busy.back().send(post("/hold", "x"));
    // One after the other: a connection whose request has not been read yet counts as idle, and `next` does
    // only once the server has noticed that its reply is out.
    ASSERT_TRUE(eventually([&] { return held_count_.load() == i + 1; }));
  }
  next.close();
  for (auto& c : idle) c.close();
  ASSERT_TRUE(eventually([&] { return server_->counters().connections == 4; }));
  RawClient refused(port());
  refused.send(get("/ping"));
  EXPECT_EQ(refused.read_reply().status, 503);
}

TEST_F(ServerTest, AThousandIdleConnectionsDoNotHinderOthers) {
  std::vector<RawClient> idle;
  for (int i = 0; i < 1100; ++i) idle.emplace_back(port());
  ASSERT_TRUE(eventually([&] { return server_->counters().connections >= 1100; }));
  RawClient c(port());
  ASSERT_TRUE(c.connected());
  c.send(post("/hold", "x"));
  auto e = take_held();
  ASSERT_TRUE(e);
  c.close();
  EXPECT_TRUE(eventually([&] { return gone_.load() == 1; }));
}

TEST_F(ServerTest, ShutdownFinishesRunningRepliesAndRefusesNewOnes) {
  RawClient running(port());
  running.send(post("/stream", "x"));
  auto e = take_held();
  ASSERT_TRUE(e);
  RawClient idle(port());
  idle.send(get("/ping"));
  EXPECT_EQ(idle.read_reply().status, 200);
  server_->begin_shutdown();
  EXPECT_TRUE(idle.closed_within(10'000));
  EXPECT_TRUE(eventually([&] { return !RawClient(port()).connected(); }));
  EXPECT_FALSE(server_->wait_idle(50ms));
  e->write("data: last\n\n");
  e->close_stream();
  EXPECT_TRUE(server_->wait_idle(20s));
  EXPECT_TRUE(running.read_reply().body.ends_with("data: last\n\n"));
  server_->stop();
}

TEST_F(ServerTest, StopWithRunningRepliesEndsThem) {
  RawClient c(port());
  c.send(post("/stream", "x"));
  auto e = take_held();
  ASSERT_TRUE(e);
  auto waker = e->make_waker([] {});
  server_->stop();
  EXPECT_EQ(gone_.load(), 1);
  EXPECT_TRUE(c.closed_within(5000));
  waker->wake();  // an engine may still have news for a request that ended
  e->write("late");
}

TEST_F(ServerTest, OccupiedPortIsAnError) {
  ServerOptions o;
  o.port = port();
  const auto second = HttpServer::start(o, {}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kIo);
  EXPECT_NE(second.error().message.find(std::to_string(port())), std::string::npos);
}

}  // namespace
}  // namespace firesteel::http
