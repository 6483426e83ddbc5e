#include "model/fingerprint.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace firesteel {
namespace {

constexpr uint64_t kSampleBytes = 4096;  // of a tensor, from its middle
constexpr size_t kSamples = 256;         // tensors of a file that are sampled

}  // namespace

Result<std::string> model_fingerprint(const Checkpoint& checkpoint) {
  std::ifstream in(checkpoint.dir() + "/config.json", std::ios::binary);
  if (!in) return Error{ErrorCode::kNotFound, checkpoint.dir() + "/config.json: cannot be read"};
  const std::string config((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  uint64_t hash = XXH3_64bits(config.data(), config.size());
  const auto mix = [&](const void* bytes, size_t size) { hash = XXH3_64bits_withSeed(bytes, size, hash); };
  std::vector<char> sample(kSampleBytes);
  for (const SafetensorsFile& file : checkpoint.files()) {
    const size_t every = std::max<size_t>(1, file.tensors().size() / kSamples);
    size_t i = 0;
    for (const TensorInfo& t : file.tensors()) {
      const std::string about = t.name + std::to_string(static_cast<int>(t.dtype)) + shape_text(t.shape);
      mix(about.data(), about.size());
      if (i++ % every != 0) continue;
      const uint64_t bytes = std::min(kSampleBytes, t.bytes);
      RETURN_IF_ERROR(file.read(t, (t.bytes - bytes) / 2, bytes, sample.data()));
      mix(sample.data(), static_cast<size_t>(bytes));
    }
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return std::string(text);
}

}  // namespace firesteel
