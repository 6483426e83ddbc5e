// What the connections of one HttpServer share. Internal to http: only server.cc, connection.cc and
// wake_hub.cc may include it, because it brings Asio.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/strand.hpp>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "http/server.h"
#include "http/worker_queue.h"

namespace firesteel::http {

namespace asio = boost::asio;
using Strand = asio::strand<asio::io_context::executor_type>;
using Socket = asio::basic_stream_socket<asio::ip::tcp, Strand>;

class Connection;
class WakeHub;

struct ServerCore : std::enable_shared_from_this<ServerCore> {
  ServerCore(ServerOptions o, std::vector<Route> r, ServerHooks h)
      : options(std::move(o)), routes(std::move(r)), hooks(std::move(h)), workers(options.worker_threads) {}
  ~ServerCore();

  /// The route of a path and method; null with `allowed` empty: unknown path, else the methods it has.
  const Route* find_route(const std::string& method, const std::string& path, std::string* argument,
                          std::string* allowed) const;
  Response refusal_response(const RequestHead& head, const Refusal& why) const;

  const ServerOptions options;
  const std::vector<Route> routes;
  const ServerHooks hooks;
  asio::io_context io;
  WorkerQueue workers;
  std::unique_ptr<WakeHub> hub;

  std::atomic<bool> closing{false};  // no new requests
  std::atomic<bool> stopped{false};  // threads are gone or going
  std::atomic<uint64_t> connections_total{0}, requests_total{0}, refused_total{0}, client_gone_total{0};
  std::atomic<int64_t> connections{0}, active{0};
  std::atomic<int64_t> body_bytes{0};

  std::mutex registry_mutex;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> registry;
};

/// Carries wakes from engine threads to sequences without a lock: wakers queue themselves on an atomic list,
/// and one eventfd write per batch rouses the thread that empties it. Owned by the core; wakers keep the core
/// alive.
class WakeHub {
 public:
  static std::unique_ptr<WakeHub> create(
      asio::io_context& io);  // null when the system has no descriptor left
  void listen();
  /// Drops what is queued and everything that comes later; after the threads have ended.
  void close();
  static std::shared_ptr<Waker> make_waker(std::shared_ptr<ServerCore> core, Strand strand,
                                           std::function<void()> f);

 private:
  class StrandWaker;
  WakeHub(asio::io_context& io, int fd) : event_(io, fd) {}
  void enqueue(StrandWaker* waker);
  void run_queued();
  void drop_queued();

  asio::posix::stream_descriptor event_;
  std::atomic<StrandWaker*> head_{nullptr};
  std::atomic<bool> signalled_{false}, closed_{false};
};

/// Makes a connection of a fresh socket and starts it; `refused`: it only gets a 503.
void start_connection(const std::shared_ptr<ServerCore>& core, Socket socket, bool refused);
/// Closes the connection that has waited longest for a next request; false when none waits.
bool evict_idle_connection(ServerCore& core);
/// Asks every connection to end: idle ones at once, the others after their reply (`now`: at once as well).
void end_connections(ServerCore& core, bool now);

}  // namespace firesteel::http
