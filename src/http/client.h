// A small blocking HTTP/1.1 client for this program's own tools (benches, checks): plain http, one
// connection, one exchange. Used by one thread. Event streams are handed over as they arrive.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "http/message.h"

namespace firesteel::http {

struct Url {
  std::string host;  // without the brackets of an IPv6 address
  uint16_t port = 80;
  std::string path;  // "" or "/prefix", no slash at its end

  std::string authority() const;  // as a Host header names it
};
/// "http://host[:port][/path]". kInvalidArgument for anything else; https is kUnsupported.
Result<Url> parse_url(std::string_view text);

struct ClientRequest {
  std::string method = "GET";
  std::string path;  // appended to the URL's own
  Headers headers;   // beside Host, Content-Length and, with a body, Content-Type: application/json
  std::string body;
};

struct ClientReply {
  int status = 0;
  Headers headers;
  std::string body;  // empty when a sink took it

  std::string_view header(std::string_view name) const;
};

class Client {
 public:
  /// kIo with the system's reason.
  static Result<std::unique_ptr<Client>> connect(const Url& url, std::chrono::milliseconds timeout);
  ~Client();

  /// Takes the pieces of a 2xx reply's body as they come; false ends the exchange.
  using BodySink = std::function<bool(std::string_view)>;
  /// Sends and reads the reply; once per client. `silence`: the longest wait for the next bytes. kIo when the
  /// server goes, keeps silent or does not speak HTTP; kLimit for a body above 64 MiB without a sink.
  Result<ClientReply> exchange(const ClientRequest& request, std::chrono::milliseconds silence,
                               const BodySink& sink = {});

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// connect() and exchange() in one, for whole replies.
Result<ClientReply> fetch(const Url& url, const ClientRequest& request, std::chrono::milliseconds timeout);

}  // namespace firesteel::http
