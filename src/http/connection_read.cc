#include <array>
#include <boost/asio/dispatch.hpp>

#include "base/log.h"
#include "http/connection.h"

namespace firesteel::http {
namespace {

constexpr size_t kReadAheadBytes = 64u << 10;  // of later requests, kept while one is answered

}  // namespace

void Connection::read_more() {
  if (reading_ || peer_finished_ || phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kAnswering && in_.size() >= kReadAheadBytes) return;
  reading_ = true;
  // Waiting for readiness instead of reading into a buffer: an idle connection holds no memory for it.
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](const boost::system::error_code& ec) {
    self->reading_ = false;
    if (self->phase_ == Phase::kClosed) return;
    if (ec) return self->lost();
    self->on_readable();
  });
}

void Connection::on_readable() {
  thread_local std::array<char, 64u << 10> buffer;
  boost::system::error_code ec;
  const size_t n = socket_.read_some(asio::buffer(buffer), ec);
  if (ec == asio::error::would_block || ec == asio::error::interrupted) return read_more();
  if (ec && ec != asio::error::eof) return lost();
  if (phase_ == Phase::kLinger) {
    lingered_ += n;
    if (ec || lingered_ > core_->options.linger_bytes) return close();
    set_deadline(std::min(Clock::now() + core_->options.linger_timeout, linger_end_));
    return read_more();
  }
  if (n > 0) {
    idle_since_.store(0);
    in_.append(buffer.data(), n);
  }
  if (ec == asio::error::eof) peer_finished_ = true;
  process();
  if (ec == asio::error::eof && phase_ != Phase::kClosed) on_eof();
}

void Connection::on_eof() {
  switch (phase_) {
    case Phase::kAnswering:
      // A client that closed its sending half still reads; one that is gone answers the next bytes with a
      // reset.
      watch_for_reset();
      probe_half_closed();
      break;
    default:
      close();
  }
}

void Connection::process() {
  while (phase_ == Phase::kHead ? process_head() : process_body()) {
  }
  if (phase_ == Phase::kAnswering) read_more();
}

// Both return true when there may be more to do with the bytes at hand.
bool Connection::process_head() {
  const TimePoint now = Clock::now();
  if (!parser_) {
    // Clients exist that send an empty line after a body.
    for (int i = 0; i < 2 && in_.starts_with("\r\n"); ++i) in_.erase(0, 2);
    if (in_.empty()) {
      if (peer_finished_ || ending_ || core_->closing.load()) {
        close();
        return false;
      }
      idle_since_.store(now.time_since_epoch().count());
      set_deadline(now + core_->options.idle_timeout);
      read_more();
      return false;
    }
    parser_.emplace(core_->options.parser);
    set_deadline(now + core_->options.head_timeout);
  }
  in_.erase(0, parser_->feed(in_));
  if (parser_->failure()) {
    head_ = parser_->take_head();
    is_head_request_ = head_.method == "HEAD";
    core_->requests_total.fetch_add(1);
    refuse(*parser_->failure(), true);
    return false;
  }
  if (!parser_->head_complete()) {
    read_more();
    return false;
  }
  on_head();
  return true;
}

void Connection::on_head() {
  core_->requests_total.fetch_add(1);
  head_ = parser_->take_head();
  http_1_1_ = parser_->http_1_1();
  is_head_request_ = head_.method == "HEAD";
  close_after_ = !parser_->keep_alive();
  body_started_ = Clock::now();
  const bool complete = parser_->complete();

  if (core_->hooks.gate) {
    if (auto answer = core_->hooks.gate(head_)) return refuse_with(std::move(*answer), false);
  }
  std::string allowed;
  route_ = core_->find_route(head_.method, head_.path, &head_.path_argument, &allowed);
  if (route_ == nullptr) {
    if (allowed.empty()) {
      return refuse({404, "unknown_url", "unknown URL: " + head_.method + " " + head_.path.substr(0, 200)},
                    false);
    }
    return refuse({405, "method_not_allowed",
                   head_.path.substr(0, 200) + " takes " + allowed + ", not " + head_.method.substr(0, 32)},
                  false, {{"Allow", allowed}});
  }
  const std::string_view coding = head_.header("content-encoding");
  if (!coding.empty() && !equals_ignoring_case(coding, "identity")) {
    return refuse({415, "unsupported_media_type", "the request body must not be compressed"}, false);
  }
  if (core_->closing.load()) return refuse({503, "unavailable", "the server is shutting down"}, true);
  if (parser_->content_length().value_or(0) > route_->body_limit) {
    return refuse({413, "request_too_large",
                   "the request body has " + std::to_string(*parser_->content_length()) +
                       " bytes; this route takes at most " + std::to_string(route_->body_limit)},
                  true);
  }
  parser_->set_body_limit(route_->body_limit, false);
  phase_ = Phase::kBody;
  if (parser_->expects_continue() && !complete && in_.empty()) queue("HTTP/1.1 100 Continue\r\n\r\n");
  set_deadline(body_started_ + core_->options.body_timeout);
}

bool Connection::process_body() {
  if (phase_ != Phase::kBody && phase_ != Phase::kDrain) return false;
  if (!parser_->complete()) {
    const size_t before = parser_->body_received();
    in_.erase(0, parser_->feed(in_));
    const size_t received = parser_->body_received();
    if (received != before) {
      // The deadline moves with the body: a steady slow line may take its time, a trickle may not.
      const auto earned = std::chrono::milliseconds(received * 1000 / core_->options.body_rate);
      if (phase_ == Phase::kBody) set_deadline(body_started_ + core_->options.body_timeout + earned);
    }
  }
  if (phase_ == Phase::kDrain) {
    if (parser_->failure()) {
      refuse_with(std::move(*held_refusal_), true);
    } else if (parser_->complete()) {
      refuse_with(std::move(*held_refusal_), false);
    } else {
      read_more();
    }
    return false;
  }
  charge_body();
  if (parser_->failure()) {
    Refusal why = *parser_->failure();
    if (why.status == 413) why.message += ": at most " + std::to_string(route_->body_limit) + " bytes";
    refuse(why, true);
    return false;
  }
  if (core_->body_bytes.load() > static_cast<int64_t>(core_->options.max_body_bytes_in_memory)) {
    refuse({429, "server_busy", "too many large requests are being read; try again in 5 s"}, true,
           {{"Retry-After", "5"}});
    return false;
  }
  if (parser_->complete()) {
    dispatch();
    return false;
  }
  read_more();
  return false;
}

void Connection::charge_body() {
  const auto received = static_cast<int64_t>(parser_->body_received());
  core_->body_bytes.fetch_add(received - charged_);
  charged_ = received;
}

void Connection::release_body() {
  core_->body_bytes.fetch_sub(charged_);
  charged_ = 0;
}

void Connection::refuse(const Refusal& why, bool close, Headers extra) {
  Response response = core_->refusal_response(head_, why);
  for (Header& h : extra) response.headers.push_back(std::move(h));
  refuse_with(std::move(response), close);
}

// Answers without a handler. The body that is still to come is read and dropped when it is small, so that the
// next request on this connection can be found behind it.
void Connection::refuse_with(Response response, bool close) {
  const bool unread = parser_ && !parser_->complete() && phase_ != Phase::kAnswering;
  if (unread && !close) {
    const uint64_t limit = core_->options.drain_bytes;
    if (parser_->expects_continue() || parser_->content_length().value_or(0) > limit) {
      close = true;
    } else {
      parser_->set_body_limit(limit, true);
      held_refusal_ = std::move(response);
      phase_ = Phase::kDrain;
      set_deadline(Clock::now() + core_->options.head_timeout);
      return;
    }
  }
  core_->refused_total.fetch_add(1);
  if (head_.request_id.empty()) head_.request_id = random_id("req_");
  held_refusal_.reset();
  release_body();
  if (close) close_after_ = true;
  phase_ = Phase::kAnswering;
  serial_ = 0;
  deadline_ = kNever;
  send_plain(std::move(response));
}

void Connection::dispatch() {
  static std::atomic<uint64_t> serials{0};
  serial_ = serials.fetch_add(1) + 1;
  phase_ = Phase::kAnswering;
  deadline_ = kNever;
  core_->active.fetch_add(1);
  head_.received = Clock::now();
  // The head stays here too: its id, method and origin are needed when the reply is written.
  auto exchange =
      std::make_shared<ConnectionExchange>(shared_from_this(), serial_, head_, parser_->take_body());
  exchange_ = exchange;
  auto run = [exchange, handler = &route_->handler]() mutable {
    if (exchange->gone()) return;
    try {
      (*handler)(exchange);
    } catch (const std::exception& e) {
      LOG_ERROR("handler of {} failed: {}", exchange->head().path, e.what());
      exchange->respond(exchange->connection_->core()->refusal_response(
          exchange->head(), {500, "internal_error", "the server failed to answer this request"}));
    }
    exchange.reset();
  };
  if (route_->quick) {
    run();
  } else {
    core_->workers.push(std::move(run));
  }
}

}  // namespace firesteel::http
