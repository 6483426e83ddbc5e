// Bytes of a connection → one HTTP/1.1 request, without any input or output of its own, so that it can be
// fuzzed and tested byte by byte. One parser per request, used by one thread.
//
// What it refuses for the sake of everything behind it (a request that two readers could see differently):
// both Content-Length and Transfer-Encoding, more than one Content-Length, any transfer coding but a single
// "chunked", a missing or repeated Host on HTTP/1.1, header folding tricks and control bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/message.h"

namespace firesteel::http {

struct ParserLimits {
  size_t head_bytes = 64u << 10;  // request line and headers together
  size_t headers = 128;
  size_t frame_bytes = 16u << 10;  // one chunk header with extensions, or the trailers of a chunked body
};

class RequestParser {
 public:
  explicit RequestParser(const ParserLimits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  /// Takes bytes from the front of `bytes` and says how many; the caller offers the rest again, with more
  /// behind it. Pauses when the head is complete, so that limits can be set before any byte of the body is
  /// taken.
  size_t feed(std::string_view bytes);

  bool head_complete() const;
  bool complete() const;
  /// Set once the input cannot be this server's HTTP; the connection must be closed after the answer.
  const std::optional<Refusal>& failure() const;

  // After head_complete():
  const RequestHead& head() const;
  RequestHead take_head();
  bool keep_alive() const;
  bool http_1_1() const;
  bool expects_continue() const;
  /// Declared length; none for a chunked body.
  std::optional<uint64_t> content_length() const;
  /// The most body bytes to take; beyond it the parser fails with 413. `discard`: count them, keep none.
  void set_body_limit(uint64_t bytes, bool discard);

  uint64_t body_received() const;
  std::string take_body();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace firesteel::http
