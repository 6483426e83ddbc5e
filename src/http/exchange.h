// One request being answered: what a handler holds. The HTTP server implements it; tests may.
//
// Every method may be called from any thread. A handler may return before it has answered and keep the shared
// pointer; if the last pointer goes without an answer the client gets a 500. Calls after the client left do
// nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "http/message.h"

namespace firesteel::http {

/// Runs a function on the exchange's own sequence after wake(). wake() takes no lock and allocates nothing:
/// the engine calls it in the middle of a round. Wakes that come before the function ran are one.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void wake() = 0;
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  virtual ~Exchange() = default;

  virtual const RequestHead& head() const = 0;
  virtual const std::string& body() const = 0;
  /// Frees the body once it has been parsed.
  virtual void drop_body() = 0;

  /// Goes out with the head of whatever answers; before respond() and open_stream(). A later value replaces
  /// an earlier one.
  virtual void add_header(std::string name, std::string value) = 0;

  /// Sends a whole reply; exactly one of respond() and open_stream() may be used, once.
  virtual void respond(Response response) = 0;

  /// Opens a text/event-stream reply. After `silence` without a write `keepalive` is sent, if it is not
  /// empty.
  virtual void open_stream(Headers headers, std::string keepalive) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void close_stream() = 0;
  /// Bytes handed over and not yet taken by the client's socket. A producer pauses above the server's stream
  /// limit…
  virtual size_t pending_bytes() const = 0;
  virtual bool congested() const = 0;
  /// … and goes on when this is called (on the sequence), set before the stream is opened.
  virtual void on_drained(std::function<void()> resume) = 0;

  /// True once the client is known to have left.
  virtual bool gone() const = 0;
  /// Called once, on the sequence, when the client leaves before the reply was complete; at once if it
  /// already has.
  virtual void on_gone(std::function<void()> callback) = 0;

  /// Runs `f` on the exchange's sequence: functions of one exchange never run at the same time.
  virtual void post(std::function<void()> f) = 0;
  /// The same, not before `when`. An exchange that was answered in the meantime is no obstacle.
  virtual void post_at(std::chrono::steady_clock::time_point when, std::function<void()> f) = 0;
  virtual std::shared_ptr<Waker> make_waker(std::function<void()> f) = 0;
};

}  // namespace firesteel::http
