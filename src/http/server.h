// The HTTP/1.1 server: listens, reads requests within limits, runs handlers, writes replies and event
// streams.
//
// Owns its threads: a few that move bytes (every connection is one sequence on them) and a few that run
// handlers. Nothing a client does can grow memory beyond the limits below, block another client or reach the
// handlers of a request that was refused.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "http/exchange.h"
#include "http/message.h"
#include "http/request_parser.h"

namespace firesteel::http {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8888;  // 0: any free one, see HttpServer::port()
  int io_threads = 2;
  int worker_threads = 2;

  ParserLimits parser;
  size_t max_connections = 4096;
  size_t max_body_bytes_in_memory = 1u << 30;  // over all requests being read or answered
  size_t drain_bytes = 1u << 20;    // body of a refused request that is read to keep its connection
  size_t stream_buffer = 1u << 20;  // unsent bytes after which a stream's producer pauses

  std::chrono::milliseconds head_timeout{10'000};  // first byte to end of head
  std::chrono::milliseconds body_timeout{30'000};  // plus one second per body_rate bytes that arrived
  size_t body_rate = 16u << 10;
  std::chrono::milliseconds idle_timeout{75'000};    // between requests
  std::chrono::milliseconds write_timeout{120'000};  // without progress while bytes wait
  // After a reply that closes, what still comes is read and dropped, so that the client finds the reply:
  // until it is silent for linger_timeout, or one of the other two is reached.
  std::chrono::milliseconds linger_timeout{2'000}, linger_most{30'000};
  size_t linger_bytes = 128u << 20;
  std::chrono::milliseconds stream_silence{15'000};  // then a keepalive; 0 is off
};

using Handler = std::function<void(std::shared_ptr<Exchange>)>;

struct Route {
  std::string method;  // GET also answers HEAD
  /// Exact, or with one "{}": in the middle ("/a/{}/b") one segment is the argument, at the end ("/a/{}") the
  /// rest of the path. A route that ends in "{}" stands behind the exact ones it would cover.
  std::string path;
  uint64_t body_limit = 64u << 10;
  bool quick = false;  // answers in microseconds: runs where bytes are moved, never behind queued work
  Handler handler;
};

struct ServerHooks {
  /// Body of a refusal by the server itself, in the format of the route that was asked.
  std::function<Response(const RequestHead&, const Refusal&)> refusal;
  /// Looks at a head before its body is read (keys, preflights); an answer ends the request.
  std::function<std::optional<Response>(const RequestHead&)> gate;
  /// Headers for every reply.
  std::function<void(const RequestHead&, Headers&)> decorate;
  /// A reply's head is on its way: whole, stream or refusal. Runs where bytes are moved.
  std::function<void(const RequestHead&, const Response&)> answered;
};

struct ServerCounters {
  uint64_t connections_total = 0, requests_total = 0, refused_total = 0, client_gone_total = 0;
  int64_t connections = 0, active = 0;  // active: requests being answered
};

class HttpServer {
 public:
  /// kIo with the operating system's reason when the address cannot be listened on.
  static Result<std::unique_ptr<HttpServer>> start(ServerOptions options, std::vector<Route> routes,
                                                   ServerHooks hooks);
  ~HttpServer();

  uint16_t port() const;
  /// True when only this machine can reach the listening address.
  bool loopback() const;
  ServerCounters counters() const;

  /// Stops listening and closes idle connections; later requests on open ones are refused with 503.
  void begin_shutdown();
  /// Waits until no request is being answered; false when `limit` passed first.
  bool wait_idle(std::chrono::milliseconds limit) const;
  /// Closes everything and joins the threads. Idempotent; no handler runs after it.
  void stop();

 private:
  struct Impl;
  explicit HttpServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace firesteel::http
