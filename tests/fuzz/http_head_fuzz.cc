// Bytes of a socket through the request parser: no crash, and the same result however the bytes were cut. The
// first byte chooses the cuts, the rest is the input.
#include "request_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace firesteel::fuzz;
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  require_equal(read_request(bytes, 0), read_request(bytes, data[0] + 1u));
  return 0;
}
