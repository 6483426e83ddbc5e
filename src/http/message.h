// Plain values of one HTTP exchange: request head, response, refusal. No sockets, no parser, no threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace firesteel::http {

struct Header {
  std::string name;
  std::string value;
};
using Headers = std::vector<Header>;

/// The head of a request that parsed. Names of headers are as sent; look-ups ignore case.
struct RequestHead {
  std::string method;
  std::string path;   // no query, no trailing slash ("/" stays)
  std::string query;  // without '?'
  Headers headers;
  std::string request_id;     // the client's own when it is printable and short, else generated
  std::string path_argument;  // what the route's {} matched, percent-decoded
  std::chrono::steady_clock::time_point received;  // when body and all had arrived; set for handlers

  /// Value of the first header of that name, or "".
  std::string_view header(std::string_view name) const;
  bool has_header(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  Headers headers;
  std::string body;
  std::string error_code;  // of a refusal, for ServerHooks::answered; not sent
};

/// Why the server itself refuses a request, before any handler sees it.
struct Refusal {
  int status = 400;
  std::string code;     // "method_not_allowed", "request_too_large", …
  std::string message;  // one sentence for a person
};

bool equals_ignoring_case(std::string_view a, std::string_view b);
std::string_view reason_phrase(int status);
/// %41 → A; a broken escape stays as written.
std::string percent_decode(std::string_view s);
/// `prefix` + 24 lower-case hexadecimal digits, unique in this process and not predictable from earlier ones.
std::string random_id(std::string_view prefix);

}  // namespace firesteel::http
