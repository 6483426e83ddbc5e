#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "http/request_parser.h"

namespace firesteel::http {
namespace {

struct Parsed {
  RequestHead head;
  std::string body;
  int failure = 0;
  bool complete = false;
  size_t used = 0;
};

// Feeds `bytes` in pieces of the given sizes (the last repeats), as a socket would deliver them.
Parsed parse(const std::string& bytes, const std::vector<size_t>& pieces, uint64_t body_limit = 1 << 20) {
  RequestParser parser((ParserLimits()));
  Parsed out;
  std::string in;
  size_t sent = 0, piece = 0;
  bool have_head = false;
  const auto feed = [&] {
    for (;;) {
      const size_t n = parser.feed(in);
      in.erase(0, n);
      out.used += n;
      if (parser.head_complete() && !have_head) {
        have_head = true;
        out.head = parser.head();
        parser.set_body_limit(body_limit, false);
        continue;
      }
      return;
    }
  };
  while (sent < bytes.size() && !parser.complete() && !parser.failure()) {
    const size_t n = std::min(pieces[std::min(piece++, pieces.size() - 1)], bytes.size() - sent);
    in.append(bytes, sent, n);
    sent += n;
    feed();
  }
  out.complete = parser.complete();
  if (parser.failure()) out.failure = parser.failure()->status;
  if (out.complete) out.body = parser.take_body();
  return out;
}

Parsed whole(const std::string& bytes) { return parse(bytes, {bytes.size()}); }

TEST(RequestParser, ReadsHeadAndBody) {
  const Parsed p =
      whole("POST /v1/x/?a=1 HTTP/1.1\r\nHost: h\r\nX-Request-Id: abc\r\nContent-Length: 5\r\n\r\nhello");
  EXPECT_TRUE(p.complete);
  EXPECT_EQ(p.head.method, "POST");
  EXPECT_EQ(p.head.path, "/v1/x");
  EXPECT_EQ(p.head.query, "a=1");
  EXPECT_EQ(p.head.header("x-request-ID"), "abc");
  EXPECT_EQ(p.head.request_id, "abc");
  EXPECT_EQ(p.body, "hello");
}

TEST(RequestParser, BytesBehindTheRequestStay) {
  const std::string one = "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab";
  EXPECT_EQ(whole(one + "GET / HTTP/1.1\r\n").used, one.size());
}

TEST(RequestParser, ChunkedWithExtensionsAndTrailersEqualsSizedAtEveryCut) {
  const std::string bytes =
      "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;name=value\r\n{\"a\r\n4;q=\"x;y\"\r\n\":\xC3\xA9\r\n002\r\n1}\r\n0;last\r\nX-Trailer: t\r\nOther: "
      "u\r\n\r\nNEXT";
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    const Parsed p = parse(bytes, {cut, bytes.size()});
    ASSERT_TRUE(p.complete) << cut << " " << p.failure;
    ASSERT_EQ(p.body,
              "{\"a\":\xC3\xA9"
              "1}")
        << cut;
    ASSERT_EQ(p.used, bytes.size() - 4) << cut;
  }
  ASSERT_EQ(parse(bytes, {1}).body,
            "{\"a\":\xC3\xA9"
            "1}");
  std::mt19937 rng(std::random_device{}());
  for (int round = 0; round < 200; ++round) {
    std::vector<size_t> pieces;
    for (int i = 0; i < 60; ++i) pieces.push_back(1 + rng() % 9);
    ASSERT_EQ(parse(bytes, pieces).body,
              "{\"a\":\xC3\xA9"
              "1}");
  }
}

TEST(RequestParser, RefusesWhatTwoReadersCouldSeeDifferently) {
  const std::string start = "POST /x HTTP/1.1\r\nHost: h\r\n";
  const std::string tail = "\r\n\r\n0\r\n\r\n";
  const std::vector<std::string> heads = {
      "Content-Length: 5\r\nTransfer-Encoding: chunked",
      "Transfer-Encoding: chunked\r\nContent-Length: 5",
      "Content-Length: 5\r\nContent-Length: 6",
      "Content-Length: 5\r\nContent-Length: 5",
      "Content-Length: 5, 5",
      "Content-Length: +5",
      "Content-Length: -5",
      "Content-Length: 0x5",
      "Content-Length: 5 5",
      "Content-Length: 99999999999999999999999",
      "Content-Length:",
      "Transfer-Encoding: gzip",
      "Transfer-Encoding: gzip, chunked",
      "Transfer-Encoding: chunked, gzip",
      "Transfer-Encoding: xchunked",
      "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
      "Transfer-Encoding: identity",
      "Transfer-Encoding : chunked",
      "Content-Length : 5",
      "Host: other",
      "X: a\x01"
      "b",
      "X: a\nContent-Length: 5",
      "X: a\rb",
      "No-Colon",
      ": empty name",
  };
  for (const std::string& h : heads) {
    const Parsed p = whole(start + h + tail);
    EXPECT_EQ(p.failure, 400) << h;
    EXPECT_FALSE(p.complete) << h;
  }
  EXPECT_EQ(whole("POST /x HTTP/1.0\r\nTransfer-Encoding: chunked" + tail).failure, 400);
  EXPECT_EQ(whole("POST /x HTTP/1.1\r\nContent-Length: 0\r\n\r\n").failure, 400) << "no Host";
  EXPECT_EQ(whole("GET x HTTP/1.1\r\nHost: h\r\n\r\n").failure, 400);
  EXPECT_EQ(whole("GET / HTTP/2.0\r\nHost: h\r\n\r\n").failure, 505);
  EXPECT_EQ(whole(start + "Expect: 200-ok" + tail).failure, 417);
  EXPECT_TRUE(whole(start + "Transfer-Encoding: Chunked" + tail).complete);
}

TEST(RequestParser, ALineFeedAloneInTheHeadIsABadRequestAtOnce) {
  for (const std::string head :
       {"GET / HTTP/1.1\nHost: h\n\n", "GET / HTTP/1.1\nHost: h\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nA: b\n", "\nGET / HTTP/1.1\r\nHost: h\r\n\r\n"}) {
    EXPECT_EQ(whole(head).failure, 400) << head;
    EXPECT_EQ(parse(head, {1}).failure, 400) << head;
  }
  const Parsed body = whole("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na\nb");
  EXPECT_EQ(body.body, "a\nb");
}

TEST(RequestParser, LineFeedsBehindTheHeadAreNotTheHeads) {
  // Wherever the bytes are cut: also between the last header and the empty line.
  const std::string post = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n\n\nb";
  const std::string get = "GET / HTTP/1.0\r\n\r\n";
  for (size_t cut = 1; cut < post.size(); ++cut) {
    const Parsed p = parse(post, {cut, post.size()});
    EXPECT_EQ(p.failure, 0) << cut;
    EXPECT_EQ(p.body, "\n\nb") << cut;
  }
  for (size_t cut = 1; cut <= get.size(); ++cut)
    EXPECT_TRUE(parse(get + "\n", {cut, get.size() + 1}).complete) << cut;
}

TEST(RequestParser, RefusesMalformedChunks) {
  const std::string start = "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string body :
       {"x\r\n", "-1\r\n", "5\r\nabcdeX\r\n", "FFFFFFFFFFFFFFFFF\r\nab", "3 \n\nabc",
        "0\r\nContent-Length: 3\r\n\r\n", "0\r\nTransfer-Encoding: chunked\r\n\r\n", "\r\n\r\n0\r\n\r\n"}) {
    EXPECT_EQ(whole(start + body + "0\r\n\r\n").failure, 400) << body;
  }
}

TEST(RequestParser, LimitsHeadHeadersFramesAndBody) {
  const ParserLimits limits;
  EXPECT_EQ(whole("GET /" + std::string(limits.head_bytes, 'a')).failure, 431);
  EXPECT_EQ(
      whole("GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(limits.head_bytes, 'a') + "\r\n\r\n").failure,
      431);
  std::string many = "GET / HTTP/1.1\r\nHost: h\r\n";
  for (size_t i = 0; i < limits.headers; ++i) many += "a: b\r\n";
  EXPECT_EQ(whole(many + "\r\n").failure, 431);
  const std::string chunked = "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(whole(chunked + "1;" + std::string(limits.frame_bytes + 10, 'e')).failure, 400);
  EXPECT_EQ(whole(chunked + "0\r\nX: " + std::string(limits.frame_bytes + 10, 'e')).failure, 400);
  EXPECT_EQ(parse(chunked + "5\r\nabcde\r\n", {1000}, 4).failure, 413);
  EXPECT_EQ(parse(chunked + "3\r\nabc\r\n2\r\nde\r\n0\r\n", {1}, 4).failure, 413);
  EXPECT_TRUE(parse(chunked + "4\r\nabcd\r\n0\r\n\r\n", {1}, 4).complete);
}

// A chunk header or trailer of the limit, one byte less and more, whole and in pieces.
TEST(RequestParser, FrameLimitsDoNotDependOnTheCut) {
  const size_t limit = ParserLimits().frame_bytes;
  const std::string start = "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (size_t size : {limit - 1, limit, limit + 1, limit + 700}) {
    const std::string header = start + "1;" + std::string(size - 4, 'e') + "\r\nx\r\n0\r\n\r\n";
    const std::string trailer = start + "0\r\nX: " + std::string(size - 10, 'e') + "\r\n\r\n";
    for (const std::string& request : {header, trailer}) {
      for (const std::vector<size_t>& pieces :
           {std::vector<size_t>{request.size()}, {1}, {start.size(), 3}}) {
        const Parsed p = parse(request, pieces);
        EXPECT_EQ(p.complete, size <= limit) << size << " in pieces of " << pieces.back();
        EXPECT_EQ(p.failure, size <= limit ? 0 : 400) << size;
      }
    }
  }
}

TEST(RequestParser, TargetForms) {
  EXPECT_EQ(whole("GET http://h:1/v1/models?x#y HTTP/1.1\r\nHost: h\r\n\r\n").head.path, "/v1/models");
  EXPECT_EQ(whole("GET http://h HTTP/1.1\r\nHost: h\r\n\r\n").head.path, "/");
  EXPECT_EQ(whole("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n").head.path, "*");
  EXPECT_EQ(whole("GET / HTTP/1.1\r\nHost: h\r\n\r\n").head.path, "/");
}

TEST(RequestParser, RequestIdIsTheClientsOnlyWhenHarmless) {
  const auto id = [](const std::string& sent) {
    return whole("GET / HTTP/1.1\r\nHost: h\r\nx-request-id: " + sent + "\r\n\r\n").head.request_id;
  };
  EXPECT_EQ(id("abc-1"), "abc-1");
  EXPECT_TRUE(id("a b").starts_with("req_"));
  EXPECT_TRUE(id(std::string(129, 'a')).starts_with("req_"));
  EXPECT_NE(id(""), id(""));
}

}  // namespace
}  // namespace firesteel::http
