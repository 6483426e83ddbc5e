// Chunked bodies. Composed ones (any cut into chunks, extensions, trailers, a next request right behind) come
// out as they went in and end where they end; with a byte changed, and for any bytes, the result is the same
// however they arrive.
#include <cstdio>
#include <string>

#include "choices.h"
#include "request_input.h"

namespace {

using namespace firesteel::fuzz;

constexpr char kHead[] =
    "POST /v1/x HTTP/1.1\r\nHost: a\r\nX-Request-Id: r\r\nTransfer-Encoding: chunked\r\n\r\n";
constexpr const char* kExtensions[] = {"", "", "", "", ";a", ";a=b", ";name=\"q;\\\" \"", ";a;b=c;d"};
constexpr const char* kTrailers[] = {
    "", "", "", "", "X: y\r\n", "X:\r\n", "A: b\r\nC: d e\r\n", "Digest: \xC3\xA4\r\n"};

std::string compose(Choices& in, std::string* body) {
  std::string out = kHead;
  for (uint32_t n = in.below(6); n > 0; --n) {
    std::string part;
    for (uint32_t size = 1 + in.below(40); part.size() < size;) part += static_cast<char>(in.next());
    char frame[24];
    std::snprintf(frame, sizeof frame, in.once_in(4) ? "%04zX" : "%zx", part.size());
    *body += part;
    out += frame + std::string(in.of(kExtensions)) + "\r\n" + part + "\r\n";
  }
  return out + (in.once_in(8) ? "000" : "0") + in.of(kExtensions) + "\r\n" + in.of(kTrailers) + "\r\n";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Choices in(data, size);
  const uint8_t how = in.next();
  const uint32_t pace = 1u + in.next();
  std::string bytes, body;
  if (how % 4 == 3) {
    bytes = kHead + std::string(in.rest());
  } else {
    bytes = compose(in, &body);
    if (how % 4 == 2)
      bytes[sizeof kHead - 1 + in.next() % (bytes.size() - sizeof kHead + 1)] = static_cast<char>(in.next());
  }
  const size_t end = bytes.size();
  if (how & 16) bytes += "GET / HTTP/1.1\r\n";
  const Outcome whole = read_request(bytes, 0), cut = read_request(bytes, pace);
  require_equal(whole, cut);
  if (how % 4 < 2) require(whole.complete && whole.body == body && whole.used == end);
  return 0;
}
