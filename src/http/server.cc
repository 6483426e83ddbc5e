#include "http/server.h"

#include <sys/resource.h>

#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>

#include "base/log.h"
#include "http/connection.h"
#include "http/server_core.h"

namespace firesteel::http {
namespace {

using asio::ip::tcp;

constexpr size_t kOverflowConnections = 256;  // beyond the limit, so that they can be told so

std::string default_body(const Refusal& why) {
  // Codes and messages are our own words plus a path; what JSON could not hold is left out.
  std::string clean;
  for (char c : why.message) {
    if (static_cast<unsigned char>(c) >= 32 && static_cast<unsigned char>(c) < 127 && c != '"' && c != '\\') {
      clean.push_back(c);
    }
  }
  return "{\"error\":{\"code\":\"" + why.code + "\",\"message\":\"" + clean + "\"}}";
}

// Every connection is a descriptor: the soft limit (1,024 by default) is far below what the hard one grants.
void raise_descriptor_limit(size_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, wanted);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// `argument`: what stands at the pattern's {}, the rest of the path at its end, one segment within it.
bool matches(std::string_view pattern, std::string_view path, std::string_view* argument) {
  const size_t hole = pattern.find("/{}");
  if (hole == std::string_view::npos) return pattern == path;
  const std::string_view before = pattern.substr(0, hole + 1), after = pattern.substr(hole + 3);
  if (path.size() <= before.size() + after.size()) return false;
  if (!path.starts_with(before) || !path.ends_with(after)) return false;
  *argument = path.substr(before.size(), path.size() - before.size() - after.size());
  return after.empty() || argument->find('/') == std::string_view::npos;
}

}  // namespace

const Route* ServerCore::find_route(const std::string& method, const std::string& path, std::string* argument,
                                    std::string* allowed) const {
  bool specific = false;  // a route that says more than "…/{}" has this path: it alone decides
  for (const Route& route : routes) {
    std::string_view matched;
    if (!matches(route.path, path, &matched)) continue;
    const bool open_ended = route.path.ends_with("/{}");
    if (open_ended && specific) continue;
    if (route.method == method || (method == "HEAD" && route.method == "GET")) {
      *argument = percent_decode(matched);
      return &route;
    }
    specific = specific || !open_ended;
    if (!allowed->empty()) allowed->append(", ");
    allowed->append(route.method);
  }
  return nullptr;
}

Response ServerCore::refusal_response(const RequestHead& head, const Refusal& why) const {
  if (hooks.refusal) return hooks.refusal(head, why);
  Response response;
  response.status = why.status;
  response.body = default_body(why);
  return response;
}

struct HttpServer::Impl {
  Impl(ServerOptions options, std::vector<Route> routes, ServerHooks hooks)
      : core(std::make_shared<ServerCore>(std::move(options), std::move(routes), std::move(hooks))),
        strand(asio::make_strand(core->io)),
        acceptor(strand),
        retry(strand),
        guard(asio::make_work_guard(core->io)) {}

  Status listen();
  void accept();
  void on_accept(const boost::system::error_code& ec, Socket socket);

  std::shared_ptr<ServerCore> core;
  const Strand strand;  // of the two below
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  asio::executor_work_guard<asio::io_context::executor_type> guard;
  std::vector<std::thread> threads;
  std::mutex stop_mutex;
  uint16_t port = 0;
  bool loopback = true;
};

Status HttpServer::Impl::listen() {
  const ServerOptions& o = core->options;
  boost::system::error_code ec;
  asio::ip::address address = asio::ip::make_address(o.host == "localhost" ? "127.0.0.1" : o.host, ec);
  if (ec) {
    tcp::resolver resolver(core->io);
    const auto found = resolver.resolve(o.host, "", ec);
    if (ec || found.empty()) {
      return Error{ErrorCode::kIo, "cannot resolve host " + o.host + ": " + ec.message()};
    }
    address = found.begin()->endpoint().address();
  }
  const tcp::endpoint endpoint(address, o.port);
  const auto failed = [&](const char* what) {
    return Error{ErrorCode::kIo, std::string("cannot ") + what + " " + o.host + ":" + std::to_string(o.port) +
                                     ": " + ec.message()};
  };
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (ec) return failed("bind");
  acceptor.listen(1024, ec);
  if (ec) return failed("listen on");
  port = acceptor.local_endpoint(ec).port();
  loopback = address.is_loopback();
  return Status::success();
}

void HttpServer::Impl::accept() {
  acceptor.async_accept(
      asio::make_strand(core->io),
      [this](const boost::system::error_code& ec, Socket socket) { on_accept(ec, std::move(socket)); });
}

void HttpServer::Impl::on_accept(const boost::system::error_code& ec, Socket socket) {
  if (ec == asio::error::operation_aborted || core->closing.load()) return;
  if (ec) {
    // Out of descriptors or memory: those in use come back, so wait instead of spinning.
    LOG_WARN("accept: {}", ec.message());
    evict_idle_connection(*core);
    retry.expires_after(std::chrono::milliseconds(50));
    retry.async_wait([this](const boost::system::error_code& e) {
      if (!e && !core->closing.load()) accept();
    });
    return;
  }
  const auto now_open = static_cast<size_t>(core->connections.load());
  const size_t limit = core->options.max_connections;
  if (now_open < limit || evict_idle_connection(*core)) {
    start_connection(core, std::move(socket), false);
  } else if (now_open < limit + kOverflowConnections) {
    start_connection(core, std::move(socket), true);
  }
  accept();
}

void start_connection(const std::shared_ptr<ServerCore>& core, Socket socket, bool refused) {
  boost::system::error_code ignored;
  socket.non_blocking(true, ignored);
  socket.set_option(tcp::no_delay(true), ignored);
  core->connections_total.fetch_add(1);
  core->connections.fetch_add(1);
  auto connection = std::make_shared<Connection>(core, std::move(socket));
  {
    std::lock_guard lock(core->registry_mutex);
    core->registry.emplace(connection.get(), connection);
  }
  asio::post(connection->strand(), [connection, refused] {
    if (refused) {
      connection->start_refused();
    } else {
      connection->start();
    }
  });
}

bool evict_idle_connection(ServerCore& core) {
  std::shared_ptr<Connection> oldest;
  int64_t since = 0;
  {
    // Locked pointers are collected and released outside: the last owner's destructor takes this mutex.
    std::vector<std::shared_ptr<Connection>> all;
    {
      std::lock_guard lock(core.registry_mutex);
      for (auto& [raw, weak] : core.registry) {
        if (auto c = weak.lock()) all.push_back(std::move(c));
      }
    }
    for (auto& c : all) {
      const int64_t idle = c->idle_since();
      if (idle != 0 && (oldest == nullptr || idle < since)) {
        oldest = c;
        since = idle;
      }
    }
  }
  if (!oldest) return false;
  asio::post(oldest->strand(), [oldest] { oldest->close_if_idle(); });
  return true;
}

void end_connections(ServerCore& core, bool now) {
  std::vector<std::shared_ptr<Connection>> all;
  {
    std::lock_guard lock(core.registry_mutex);
    for (auto& [raw, weak] : core.registry) {
      if (auto c = weak.lock()) all.push_back(std::move(c));
    }
  }
  for (auto& c : all) {
    asio::post(c->strand(), [c, now] { c->end(now); });
  }
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(ServerOptions options, std::vector<Route> routes,
                                                      ServerHooks hooks) {
  raise_descriptor_limit(options.max_connections + kOverflowConnections + 256);
  auto impl = std::make_shared<Impl>(std::move(options), std::move(routes), std::move(hooks));
  impl->core->hub = WakeHub::create(impl->core->io);
  if (!impl->core->hub)
    return Error{ErrorCode::kIo, "cannot create an event descriptor; raise the limit of open files"};
  RETURN_IF_ERROR(impl->listen());
  impl->core->hub->listen();
  impl->accept();
  const int threads = std::max(1, impl->core->options.io_threads);
  for (int i = 0; i < threads; ++i) {
    impl->threads.emplace_back([core = impl->core] { core->io.run(); });
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { stop(); }

uint16_t HttpServer::port() const { return impl_->port; }
bool HttpServer::loopback() const { return impl_->loopback; }

ServerCounters HttpServer::counters() const {
  const ServerCore& c = *impl_->core;
  ServerCounters out;
  out.connections_total = c.connections_total.load();
  out.requests_total = c.requests_total.load();
  out.refused_total = c.refused_total.load();
  out.client_gone_total = c.client_gone_total.load();
  out.connections = c.connections.load();
  out.active = c.active.load();
  return out;
}

void HttpServer::begin_shutdown() {
  if (impl_->core->closing.exchange(true)) return;
  asio::post(impl_->strand, [impl = impl_] {
    boost::system::error_code ignored;
    impl->acceptor.close(ignored);
    impl->retry.cancel();
  });
  end_connections(*impl_->core, false);
}

bool HttpServer::wait_idle(std::chrono::milliseconds limit) const {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (impl_->core->active.load() > 0) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void HttpServer::stop() {
  std::lock_guard lock(impl_->stop_mutex);
  if (impl_->core->stopped.load()) return;
  begin_shutdown();
  impl_->core->workers.stop();
  end_connections(*impl_->core, true);
  // Closed connections leave the io_context without work; what is left over is cut after a moment.
  impl_->guard.reset();
  asio::post(impl_->core->io, [core = impl_->core] { core->hub->close(); });
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (!impl_->core->io.stopped() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  impl_->core->stopped.store(true);
  impl_->core->io.stop();
  for (std::thread& t : impl_->threads) {
    if (t.joinable()) t.join();
  }
  impl_->core->io.restart();
  impl_->core->io
      .poll();  // whatever was posted meanwhile runs against closed connections and lets go of them
}

}  // namespace firesteel::http
