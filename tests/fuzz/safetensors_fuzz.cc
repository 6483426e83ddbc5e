// The safetensors header reader on arbitrary text: the first eight bytes choose where the data starts and how
// long the file claims to be. What is accepted must satisfy every promise the loader relies on.
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "tensor/safetensors.h"

namespace {
void require(bool held) {
  if (!held) std::abort();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint32_t words[2] = {};
  if (size < sizeof words) return 0;
  std::memcpy(words, data, sizeof words);
  const std::string_view header(reinterpret_cast<const char*>(data) + sizeof words, size - sizeof words);
  const uint64_t start = words[0], file_size = words[1];
  const auto result = firesteel::parse_safetensors_header(header, start, file_size, "fuzz");
  if (!result.ok()) {
    require(result.error().code == firesteel::ErrorCode::kInvalidFile);
    require(result.error().message.find('\n') == std::string::npos);
    require(result.error().message.size() < 1000);
    return 0;
  }
  std::set<std::string_view> names;
  uint64_t text = 0;
  for (const firesteel::TensorInfo& t : *result) {
    require(names.insert(t.name).second);
    require(t.begin >= start && t.begin <= file_size && t.bytes <= file_size - t.begin);
    require(static_cast<uint64_t>(t.elements()) * firesteel::dtype_size(t.dtype) == t.bytes);
    text += t.name.size() + 2 * t.shape.size();
    for (const firesteel::TensorInfo& other : *result) {
      if (&other == &t || t.bytes == 0 || other.bytes == 0) continue;
      require(other.begin + other.bytes <= t.begin || t.begin + t.bytes <= other.begin);
    }
  }
  require(text <= header.size());
  return 0;
}
