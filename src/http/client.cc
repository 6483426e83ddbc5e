#include "http/client.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <charconv>
#include <optional>

namespace firesteel::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using tcp = asio::ip::tcp;
using Parser = beast::http::response_parser<beast::http::buffer_body>;

constexpr size_t kMaxBody = 64u << 20;

std::string seconds_text(std::chrono::milliseconds t) {
  return std::to_string((t.count() + 999) / 1000) + " s";
}

}  // namespace

std::string Url::authority() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == 80 ? name : name + ":" + std::to_string(port);
}

Result<Url> parse_url(std::string_view text) {
  const Error bad{ErrorCode::kInvalidArgument,
                  "expected a URL like http://127.0.0.1:8888, not " + std::string(text.substr(0, 200))};
  if (text.starts_with("https://"))
    return Error{ErrorCode::kUnsupported, "only http:// URLs can be used, not https://"};
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme)) return bad;
  for (const char c : text) {
    if (c <= 32 || c == 127 || c == '@' || c == '?' || c == '#') return bad;
  }
  text.remove_prefix(kScheme.size());
  Url url;
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos) {
    url.path = text.substr(slash);
    while (url.path.ends_with('/')) url.path.pop_back();
    text = text.substr(0, slash);
  }
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return bad;
    url.host = text.substr(1, close - 1);
    port = text.substr(close + 1);
  } else {
    const size_t colon = std::min(text.find(':'), text.size());
    url.host = text.substr(0, colon);
    port = text.substr(colon);
  }
  if (!port.empty()) {
    const char* end = port.data() + port.size();
    const auto [at, ec] = std::from_chars(port.data() + 1, end, url.port);
    if (port.front() != ':' || ec != std::errc() || at != end || url.port == 0) return bad;
  }
  if (url.host.empty()) return bad;
  return url;
}

std::string_view ClientReply::header(std::string_view name) const {
  for (const Header& h : headers) {
    if (equals_ignoring_case(h.name, name)) return h.value;
  }
  return {};
}

struct Client::Impl {
  explicit Impl(Url u) : url(std::move(u)) {}

  /// Runs one asynchronous step to its end, or gives up and closes the socket.
  template <typename Start>
  boost::system::error_code run(std::chrono::milliseconds timeout, Start start) {
    std::optional<boost::system::error_code> result;
    start([&result](const boost::system::error_code& ec, auto&&...) { result = ec; });
    io.restart();
    io.run_for(timeout);
    if (result) return *result;
    boost::system::error_code ignored;
    socket.close(ignored);
    io.restart();
    io.run();
    return asio::error::timed_out;
  }
  Error failure(const char* what, const boost::system::error_code& ec,
                std::chrono::milliseconds timeout) const {
    std::string why = ec.message();
    if (ec == asio::error::timed_out) why = "nothing came for " + seconds_text(timeout);
    if (ec == asio::error::eof || ec == beast::http::error::end_of_stream ||
        ec == beast::http::error::partial_message) {
      why = "the server closed the connection";
    }
    return {ErrorCode::kIo, std::string(what) + " " + url.authority() + ": " + why};
  }
  Result<ClientReply> read(std::chrono::milliseconds silence, const BodySink& sink);

  const Url url;
  asio::io_context io;
  tcp::socket socket{io};
  beast::flat_buffer buffer;
};

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

Result<std::unique_ptr<Client>> Client::connect(const Url& url, std::chrono::milliseconds timeout) {
  auto impl = std::make_unique<Impl>(url);
  boost::system::error_code ec;
  tcp::resolver resolver(impl->io);
  const auto found = resolver.resolve(url.host, std::to_string(url.port), ec);
  if (ec) return impl->failure("cannot resolve", ec, timeout);
  ec = impl->run(timeout, [&](auto done) { asio::async_connect(impl->socket, found, std::move(done)); });
  if (ec) return impl->failure("cannot connect to", ec, timeout);
  impl->socket.set_option(tcp::no_delay(true), ec);
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

Result<ClientReply> Client::exchange(const ClientRequest& request, std::chrono::milliseconds silence,
                                     const BodySink& sink) {
  Impl& impl = *impl_;
  std::string head = request.method + " " + impl.url.path + request.path +
                     " HTTP/1.1\r\nHost: " + impl.url.authority() + "\r\nConnection: close\r\n";
  for (const Header& h : request.headers) head += h.name + ": " + h.value + "\r\n";
  if (!request.body.empty()) {
    head +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(request.body.size()) + "\r\n";
  }
  head += "\r\n";
  const std::array<asio::const_buffer, 2> out = {asio::buffer(head), asio::buffer(request.body)};
  const auto ec = impl.run(silence, [&](auto done) { asio::async_write(impl.socket, out, std::move(done)); });
  // A server may refuse and close before it has read everything: its answer is still there to read.
  if (ec == asio::error::timed_out) return impl.failure("cannot send to", ec, silence);
  return impl.read(silence, sink);
}

Result<ClientReply> Client::Impl::read(std::chrono::milliseconds silence, const BodySink& sink) {
  std::optional<Parser> parser;
  do {
    parser.emplace();
    parser->header_limit(64u << 10);
    parser->body_limit(boost::none);
    const auto ec = run(silence, [&](auto done) {
      beast::http::async_read_header(socket, buffer, *parser, std::move(done));
    });
    if (ec) return failure("no answer from", ec, silence);
  } while (parser->get().result_int() / 100 == 1);  // interim

  ClientReply reply;
  reply.status = static_cast<int>(parser->get().result_int());
  for (const auto& field : parser->get().base()) {
    reply.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  const bool to_sink = sink && reply.status / 100 == 2;
  std::array<char, 32u << 10> bytes;
  while (!parser->is_done()) {
    auto& body = parser->get().body();
    body.data = bytes.data();
    body.size = bytes.size();
    auto ec = run(silence,
                  [&](auto done) { beast::http::async_read_some(socket, buffer, *parser, std::move(done)); });
    if (ec == beast::http::error::need_buffer) ec = {};
    const std::string_view piece(bytes.data(), bytes.size() - body.size);
    if (!piece.empty()) {
      if (!to_sink) {
        reply.body.append(piece);
      } else if (!sink(piece)) {
        return reply;
      }
    }
    if (ec) return failure("lost the answer of", ec, silence);
    if (reply.body.size() > kMaxBody)
      return Error{ErrorCode::kLimit, "the answer of " + url.authority() + " is larger than 64 MiB"};
  }
  return reply;
}

Result<ClientReply> fetch(const Url& url, const ClientRequest& request, std::chrono::milliseconds timeout) {
  ASSIGN_OR_RETURN(const auto client, Client::connect(url, timeout));
  return client->exchange(request, timeout);
}

}  // namespace firesteel::http
