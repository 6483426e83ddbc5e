// Life and clocks of a connection; reading is in connection_read.cc, writing in connection_write.cc.
#include "http/connection.h"

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>

#include "base/log.h"

namespace firesteel::http {

ServerCore::~ServerCore() = default;

Connection::Connection(std::shared_ptr<ServerCore> core, Socket socket)
    : core_(std::move(core)), strand_(socket.get_executor()), socket_(std::move(socket)), timer_(strand_) {
  last_write_ = last_progress_ = Clock::now();
}

Connection::~Connection() {
  {
    std::lock_guard lock(core_->registry_mutex);
    core_->registry.erase(this);
  }
  core_->connections.fetch_sub(1);
}

void Connection::start() { process(); }

void Connection::start_refused() {
  phase_ = Phase::kAnswering;
  refuse_with(
      core_->refusal_response(head_, {503, "too_many_connections",
                                      "the server has as many connections as it may; try again later"}),
      true);
}

void Connection::close_if_idle() {
  if (idle_since() != 0 && in_.empty()) close();
}

void Connection::end(bool now) {
  ending_ = true;
  if (now) {
    if (phase_ == Phase::kAnswering) {
      lost();
    } else {
      close();
    }
  } else {
    close_if_idle();
  }
}

void Connection::lost() {
  if (phase_ == Phase::kClosed) return;
  auto exchange = exchange_.lock();
  const bool answering = phase_ == Phase::kAnswering && serial_ != 0;
  close();
  if (exchange && answering) {
    core_->client_gone_total.fetch_add(1);
    exchange->client_left();
  }
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kAnswering && serial_ != 0) core_->active.fetch_sub(1);
  phase_ = Phase::kClosed;
  idle_since_.store(0);
  release_body();
  boost::system::error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  out_.clear();
  pending_.store(0);
  in_ = {};
  parser_.reset();
}

void Connection::set_deadline(TimePoint when) {
  deadline_ = when;
  arm_timer();
}

Connection::TimePoint Connection::next_event() const {
  TimePoint t = std::min(deadline_, next_probe_);
  if (!out_.empty()) t = std::min(t, last_progress_ + core_->options.write_timeout);
  if (streaming_ && !reply_done_ && !keepalive_.empty() && core_->options.stream_silence.count() > 0) {
    t = std::min(t, last_write_ + core_->options.stream_silence);
  }
  return t;
}

void Connection::arm_timer() {
  const TimePoint t = next_event();
  // A timer that is due earlier will look again; moving it for every write would cost more than it saves.
  if (t >= armed_ || phase_ == Phase::kClosed) return;
  armed_ = t;
  timer_.expires_at(t);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& ec) {
    if (ec || self->phase_ == Phase::kClosed) return;
    self->armed_ = kNever;
    self->on_timer();
  });
}

void Connection::on_timer() {
  const TimePoint now = Clock::now();
  if (!out_.empty() && now >= last_progress_ + core_->options.write_timeout) return lost();
  if (now >= deadline_) {
    deadline_ = kNever;
    switch (phase_) {
      case Phase::kHead:
        if (!parser_) return close();
        refuse({408, "request_timeout", "the request head did not arrive in time"}, true);
        break;
      case Phase::kBody:
        refuse({408, "request_timeout", "the request body did not arrive in time"}, true);
        break;
      case Phase::kDrain:
        refuse_with(std::move(*held_refusal_), true);
        break;
      case Phase::kLinger:
        return close();
      default:
        break;
    }
  }
  if (now >= next_probe_) probe_half_closed();
  if (streaming_ && !reply_done_ && !keepalive_.empty() && out_.empty() &&
      core_->options.stream_silence.count() > 0 && now >= last_write_ + core_->options.stream_silence) {
    stream_bytes(serial_, keepalive_);
  }
  if (streaming_ && !out_.empty() && now >= last_write_ + core_->options.stream_silence) {
    last_write_ = now;  // bytes are waiting already: the silence is the client's own
  }
  if (phase_ != Phase::kClosed) arm_timer();
}

// --- ConnectionExchange

template <typename F>
void ConnectionExchange::run(F f) {
  if (connection_->core()->stopped.load(std::memory_order_acquire)) return;
  asio::dispatch(connection_->strand(), std::move(f));
}

ConnectionExchange::~ConnectionExchange() {
  if (answered_.load() || gone()) return;
  LOG_ERROR("request {} was dropped without an answer", head_.request_id);
  run([c = connection_, serial = serial_, head = head_] {
    c->send_response(serial, c->core()->refusal_response(
                                 head, {500, "internal_error", "the server failed to answer this request"}));
  });
}

void ConnectionExchange::drop_body() {
  body_ = {};
  run([c = connection_, serial = serial_] {
    if (c->is_current(serial)) c->release_body();
  });
}

void ConnectionExchange::add_header(std::string name, std::string value) {
  std::erase_if(headers_, [&](const Header& h) { return equals_ignoring_case(h.name, name); });
  headers_.push_back({std::move(name), std::move(value)});
}

void ConnectionExchange::respond(Response response) {
  if (answered_.exchange(true)) return;
  response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
  run([c = connection_, serial = serial_, r = std::move(response)]() mutable {
    c->send_response(serial, std::move(r));
  });
}

void ConnectionExchange::open_stream(Headers headers, std::string keepalive) {
  if (answered_.exchange(true)) return;
  headers.insert(headers.end(), headers_.begin(), headers_.end());
  run([c = connection_, serial = serial_, h = std::move(headers), k = std::move(keepalive)]() mutable {
    c->open_stream(serial, std::move(h), std::move(k));
  });
}

void ConnectionExchange::write(std::string bytes) {
  if (gone() || bytes.empty()) return;
  run([c = connection_, serial = serial_, b = std::move(bytes)]() mutable {
    c->stream_bytes(serial, std::move(b));
  });
}

void ConnectionExchange::close_stream() {
  run([c = connection_, serial = serial_] { c->end_stream(serial); });
}

bool ConnectionExchange::congested() const {
  return pending_bytes() > connection_->core()->options.stream_buffer;
}

void ConnectionExchange::on_drained(std::function<void()> resume) {
  run([self = std::static_pointer_cast<ConnectionExchange>(shared_from_this()),
       f = std::move(resume)]() mutable {
    if (!self->finished_) self->on_drained_ = std::move(f);
  });
}

void ConnectionExchange::on_gone(std::function<void()> callback) {
  run([self = std::static_pointer_cast<ConnectionExchange>(shared_from_this()),
       f = std::move(callback)]() mutable {
    if (self->gone()) {
      f();
    } else if (!self->finished_) {
      self->on_gone_ = std::move(f);
    }
  });
}

void ConnectionExchange::post(std::function<void()> f) {
  if (connection_->core()->stopped.load(std::memory_order_acquire)) return;
  asio::post(connection_->strand(), std::move(f));
}

void ConnectionExchange::post_at(std::chrono::steady_clock::time_point when, std::function<void()> f) {
  if (connection_->core()->stopped.load(std::memory_order_acquire)) return;
  const auto timer = std::make_shared<asio::steady_timer>(connection_->strand(), when);
  timer->async_wait([timer, f = std::move(f)](const boost::system::error_code& ec) {
    if (!ec) f();
  });
}

std::shared_ptr<Waker> ConnectionExchange::make_waker(std::function<void()> f) {
  return WakeHub::make_waker(connection_->core(), connection_->strand(), std::move(f));
}

void ConnectionExchange::client_left() {
  if (finished_) return;
  finished_ = true;
  gone_.store(true, std::memory_order_release);
  on_drained_ = nullptr;
  if (auto f = std::exchange(on_gone_, nullptr)) f();
}

void ConnectionExchange::drained() {
  if (on_drained_) on_drained_();
}

void ConnectionExchange::finished() {
  finished_ = true;
  on_drained_ = nullptr;
  on_gone_ = nullptr;
}

}  // namespace firesteel::http
