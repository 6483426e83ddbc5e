#include <sys/socket.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <charconv>
#include <ctime>

#include "http/connection.h"

namespace firesteel::http {
namespace {

constexpr int kMaxProbes = 4;
constexpr size_t kGatherBuffers = 16;

// A header value can never end its line: handlers build values out of what clients sent.
void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (char c : value) {
    if (static_cast<unsigned char>(c) >= 32 && c != 127) out.push_back(c);
  }
  out.append("\r\n");
}

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  char text[40];
  const int n = std::snprintf(text, sizeof text, "%s, %02d %s %04d %02d:%02d:%02d GMT", kDays[parts.tm_wday],
                              parts.tm_mday, kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour,
                              parts.tm_min, parts.tm_sec);
  return {text, static_cast<size_t>(n)};
}

}  // namespace

void Connection::send_head(const Response& response, bool chunked, std::optional<uint64_t> length) {
  if (core_->closing.load() || ending_ || peer_finished_) close_after_ = close_after_ || in_.empty();
  std::string out = "HTTP/1.1 " + std::to_string(response.status) + " ";
  out.append(reason_phrase(response.status)).append("\r\n");
  append_header(out, "Date", http_date());
  if (!response.content_type.empty()) append_header(out, "Content-Type", response.content_type);
  if (length) append_header(out, "Content-Length", std::to_string(*length));
  if (chunked) append_header(out, "Transfer-Encoding", "chunked");
  append_header(out, "x-request-id", head_.request_id);
  for (const Header& h : response.headers) append_header(out, h.name, h.value);
  if (core_->hooks.decorate) {
    Headers extra;
    core_->hooks.decorate(head_, extra);
    for (const Header& h : extra) append_header(out, h.name, h.value);
  }
  if (close_after_) {
    append_header(out, "Connection", "close");
  } else if (!http_1_1_) {
    append_header(out, "Connection", "keep-alive");
  }
  out.append("\r\n");
  reply_started_ = true;
  if (core_->hooks.answered) core_->hooks.answered(head_, response);
  queue(std::move(out));
}

void Connection::send_plain(Response response) {
  const bool no_body = response.status == 204;
  if (no_body) response.content_type.clear();
  const auto length = no_body ? std::nullopt : std::optional<uint64_t>(response.body.size());
  send_head(response, false, length);
  reply_done_ = true;
  if (!is_head_request_ && !no_body && !response.body.empty()) queue(std::move(response.body));
}

void Connection::send_response(uint64_t serial, Response response) {
  if (!is_current(serial) || reply_started_) return;
  send_plain(std::move(response));
}

void Connection::open_stream(uint64_t serial, Headers headers, std::string keepalive) {
  if (!is_current(serial) || reply_started_) return;
  Response response;
  response.content_type = "text/event-stream";
  response.headers = std::move(headers);
  response.headers.push_back({"Cache-Control", "no-cache"});
  response.headers.push_back({"X-Accel-Buffering", "no"});
  chunked_ = http_1_1_;
  if (!chunked_) close_after_ = true;  // HTTP/1.0 has only the end of the connection to end a reply
  streaming_ = true;
  keepalive_ = std::move(keepalive);
  last_write_ = Clock::now();
  send_head(response, chunked_, std::nullopt);
}

void Connection::stream_bytes(uint64_t serial, std::string bytes) {
  if (!is_current(serial) || !streaming_ || reply_done_ || bytes.empty()) return;
  last_write_ = Clock::now();
  if (!chunked_) return queue(std::move(bytes));
  char size[20];
  const auto end = std::to_chars(size, size + sizeof size, bytes.size(), 16);
  std::string framed;
  framed.reserve(bytes.size() + 24);
  framed.append(size, end.ptr).append("\r\n").append(bytes).append("\r\n");
  queue(std::move(framed));
}

void Connection::end_stream(uint64_t serial) {
  if (!is_current(serial) || !streaming_ || reply_done_) return;
  reply_done_ = true;
  if (chunked_) return queue("0\r\n\r\n");
  if (out_.empty()) finish_reply();
}

void Connection::queue(std::string bytes) {
  if (phase_ == Phase::kClosed) return;
  if (out_.empty()) last_progress_ = Clock::now();
  pending_.fetch_add(bytes.size(), std::memory_order_relaxed);
  out_.push_back(std::move(bytes));
  flush();
}

void Connection::flush() {
  if (writing_ || out_.empty() || phase_ == Phase::kClosed) return;
  std::array<asio::const_buffer, kGatherBuffers> buffers;
  size_t count = 0;
  for (const std::string& s : out_) {
    const size_t skip = count == 0 ? out_offset_ : 0;
    buffers[count++] = asio::const_buffer(s.data() + skip, s.size() - skip);
    if (count == kGatherBuffers) break;
  }
  writing_ = true;
  socket_.async_write_some(buffers,
                           [self = shared_from_this()](const boost::system::error_code& ec, size_t n) {
                             self->writing_ = false;
                             if (self->phase_ == Phase::kClosed) return;
                             if (ec) return self->lost();
                             self->on_written(n);
                           });
  arm_timer();
}

void Connection::on_written(size_t n) {
  last_progress_ = Clock::now();
  const size_t before = pending_.fetch_sub(n, std::memory_order_relaxed);
  while (n > 0) {
    const size_t front = out_.front().size() - out_offset_;
    if (n < front) {
      out_offset_ += n;
      break;
    }
    n -= front;
    out_offset_ = 0;
    out_.pop_front();
  }
  if (!out_.empty()) flush();
  if (out_.empty() && reply_done_) return finish_reply();
  const size_t low = core_->options.stream_buffer / 2;
  if (streaming_ && before > low && pending_bytes() <= low) {
    if (auto exchange = exchange_.lock()) exchange->drained();
  }
}

void Connection::finish_reply() {
  if (phase_ != Phase::kAnswering) return;
  if (auto exchange = exchange_.lock(); exchange && serial_ != 0) exchange->finished();
  exchange_.reset();
  if (serial_ != 0) core_->active.fetch_sub(1);
  serial_ = 0;
  release_body();
  reply_started_ = reply_done_ = streaming_ = chunked_ = false;
  keepalive_.clear();
  probes_ = 0;
  next_probe_ = kNever;
  parser_.reset();
  route_ = nullptr;
  head_ = {};
  if (close_after_) {
    // The write side first, and read on: closing with unread bytes would reset the connection and could take
    // the reply away from a client that has not read it yet.
    boost::system::error_code ec;
    socket_.shutdown(Socket::shutdown_send, ec);
    if (ec || peer_finished_) return close();
    phase_ = Phase::kLinger;
    in_ = {};
    const auto now = Clock::now();
    linger_end_ = now + core_->options.linger_most;
    set_deadline(now + core_->options.linger_timeout);
    read_more();
    return;
  }
  phase_ = Phase::kHead;
  process();
}

// After the client closed its sending half: something harmless is written now and then. A client that is
// really gone answers with a reset, which ends its request; one that still reads ignores an interim response
// or a comment.
void Connection::probe_half_closed() {
  next_probe_ = kNever;
  if (phase_ != Phase::kAnswering || reply_done_ || !peer_finished_) return;
  if (streaming_) {
    stream_bytes(serial_, ": \n\n");
  } else if (http_1_1_ && !reply_started_) {
    queue("HTTP/1.1 100 Continue\r\n\r\n");
  }
  if (++probes_ < kMaxProbes) {
    next_probe_ = Clock::now() + std::chrono::seconds(probes_ * probes_);
    arm_timer();
  }
}

void Connection::watch_for_reset() {
  socket_.async_wait(Socket::wait_error, [self = shared_from_this()](const boost::system::error_code& ec) {
    if (ec || self->phase_ != Phase::kAnswering) return;
    // Reading would only repeat the end of input; the socket's own error tells a reset from everything else.
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(self->socket_.native_handle(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) self->lost();
  });
}

}  // namespace firesteel::http
