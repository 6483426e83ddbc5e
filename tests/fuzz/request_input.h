// A request read from bytes that arrive in pieces; shared by the targets of the request parser.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "http/request_parser.h"

namespace firesteel::fuzz {

using http::ParserLimits;
using http::RequestParser;

struct Outcome {
  bool head = false, complete = false;
  int failure = 0;
  size_t used = 0;
  std::string path, body;
  size_t headers = 0;
};

// `pace` 0: all at once; else pieces whose sizes follow from it.
inline Outcome read_request(std::string_view bytes, uint32_t pace) {
  ParserLimits limits;
  limits.head_bytes = 2048;
  limits.headers = 16;
  limits.frame_bytes = 256;
  RequestParser parser(limits);
  Outcome out;
  std::string in;
  uint32_t state = pace;
  size_t sent = 0;
  while (sent < bytes.size() && !parser.complete() && !parser.failure()) {
    size_t n = bytes.size();
    if (pace != 0) {
      state = state * 1664525u + 1013904223u;
      n = 1 + (state >> 24) % 17;
    }
    n = std::min(n, bytes.size() - sent);
    in.append(bytes.substr(sent, n));
    sent += n;
    for (;;) {
      const size_t used = parser.feed(in);
      if (used > in.size()) abort();
      in.erase(0, used);
      out.used += used;
      if (parser.head_complete() && !out.head) {
        out.head = true;
        out.path = parser.head().path;
        out.headers = parser.head().headers.size();
        if (parser.head().request_id.empty()) abort();
        parser.set_body_limit(512, false);
        continue;
      }
      break;
    }
  }
  out.complete = parser.complete();
  if (parser.failure()) out.failure = parser.failure()->status;
  if (out.complete) {
    out.body = parser.take_body();
    if (out.body.size() > 512) abort();
  }
  return out;
}

/// Which of two faults is met first may depend on the cut; what a complete request is may not.
inline void require_equal(const Outcome& whole, const Outcome& cut) {
  if (whole.complete != cut.complete || whole.body != cut.body || whole.path != cut.path ||
      whole.headers != cut.headers || (whole.complete && whole.used != cut.used) ||
      (whole.complete && cut.failure != 0)) {
    abort();
  }
}

}  // namespace firesteel::fuzz
