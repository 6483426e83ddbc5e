// One client's socket: reads requests one after the other, hands each to its handler, writes the reply,
// watches for the client leaving. Internal to http. All methods run on the connection's strand unless said
// otherwise.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "http/request_parser.h"
#include "http/server_core.h"

namespace firesteel::http {

class ConnectionExchange;

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;
  using TimePoint = Clock::time_point;

  Connection(std::shared_ptr<ServerCore> core, Socket socket);
  ~Connection();

  void start();
  void start_refused();
  void close_if_idle();
  void end(bool now);

  // What an exchange asks for; `serial` names it, so that a late call cannot touch the next request.
  void send_response(uint64_t serial, Response response);
  void open_stream(uint64_t serial, Headers headers, std::string keepalive);
  void stream_bytes(uint64_t serial, std::string bytes);
  void end_stream(uint64_t serial);

  // Any thread.
  const Strand& strand() const { return strand_; }
  const std::shared_ptr<ServerCore>& core() const { return core_; }
  size_t pending_bytes() const { return pending_.load(std::memory_order_relaxed); }
  /// When this connection began to wait for a next request, in steady-clock ticks; 0 when it does not wait.
  int64_t idle_since() const { return idle_since_.load(std::memory_order_relaxed); }

 private:
  friend class ConnectionExchange;
  enum class Phase { kHead, kBody, kDrain, kAnswering, kLinger, kClosed };

  // connection_read.cc
  void read_more();
  void on_readable();
  void on_eof();
  void process();
  bool process_head();
  bool process_body();
  void on_head();
  void refuse(const Refusal& why, bool close, Headers extra = {});
  void refuse_with(Response response, bool close);
  void dispatch();
  void charge_body();
  void release_body();

  // connection_write.cc
  void send_head(const Response& response, bool chunked, std::optional<uint64_t> length);
  void send_plain(Response response);
  void queue(std::string bytes);
  void flush();
  void on_written(size_t n);
  void finish_reply();
  void probe_half_closed();
  void watch_for_reset();

  // connection.cc
  void lost();  // the client is gone: tell the exchange, close
  void close();
  void set_deadline(TimePoint when);
  TimePoint next_event() const;
  void arm_timer();
  void on_timer();
  bool is_current(uint64_t serial) const { return serial == serial_ && phase_ == Phase::kAnswering; }

  static constexpr TimePoint kNever = TimePoint::max();

  const std::shared_ptr<ServerCore> core_;
  const Strand strand_;
  Socket socket_;
  asio::steady_timer timer_;

  Phase phase_ = Phase::kHead;
  std::string in_;
  bool reading_ = false, peer_finished_ = false, close_after_ = false, ending_ = false;
  std::optional<RequestParser> parser_;
  RequestHead head_;  // of the request being read or answered
  bool http_1_1_ = true, is_head_request_ = false;
  const Route* route_ = nullptr;
  std::optional<Response> held_refusal_;  // sent when the refused body has been read
  TimePoint body_started_;
  int64_t charged_ = 0;
  size_t lingered_ = 0;
  TimePoint linger_end_ = kNever;

  uint64_t serial_ = 0;
  std::weak_ptr<ConnectionExchange> exchange_;
  bool reply_started_ = false, reply_done_ = false, streaming_ = false, chunked_ = false;
  std::string keepalive_;
  int probes_ = 0;

  std::deque<std::string> out_;
  size_t out_offset_ = 0;
  bool writing_ = false;
  std::atomic<size_t> pending_{0};
  std::atomic<int64_t> idle_since_{0};

  TimePoint deadline_ = kNever, armed_ = kNever, last_write_, last_progress_, next_probe_ = kNever;
};

/// The Exchange of one request on a connection.
class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, uint64_t serial, RequestHead head,
                     std::string body)
      : connection_(std::move(connection)), serial_(serial), head_(std::move(head)), body_(std::move(body)) {}
  ~ConnectionExchange() override;

  const RequestHead& head() const override { return head_; }
  const std::string& body() const override { return body_; }
  void drop_body() override;
  void add_header(std::string name, std::string value) override;
  void respond(Response response) override;
  void open_stream(Headers headers, std::string keepalive) override;
  void write(std::string bytes) override;
  void close_stream() override;
  size_t pending_bytes() const override { return connection_->pending_bytes(); }
  bool congested() const override;
  void on_drained(std::function<void()> resume) override;
  bool gone() const override { return gone_.load(std::memory_order_acquire); }
  void on_gone(std::function<void()> callback) override;
  void post(std::function<void()> f) override;
  void post_at(std::chrono::steady_clock::time_point when, std::function<void()> f) override;
  std::shared_ptr<Waker> make_waker(std::function<void()> f) override;

  // On the strand, by the connection.
  void client_left();
  void drained();
  void finished();

 private:
  friend class Connection;
  template <typename F>
  void run(F f);

  const std::shared_ptr<Connection> connection_;
  const uint64_t serial_;
  const RequestHead head_;
  std::string body_;
  Headers headers_;  // for the answer's head
  std::atomic<bool> gone_{false}, answered_{false};
  bool finished_ = false;
  std::function<void()> on_gone_, on_drained_;
};

}  // namespace firesteel::http
