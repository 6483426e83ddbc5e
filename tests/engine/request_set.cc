#include "request_set.h"

#include <iterator>
#include <random>

namespace firesteel {

std::vector<GenerationRequest> request_set(int32_t vocab, int32_t first, int32_t count) {
  constexpr int32_t kLengths[] = {1, 2, 255, 256, 257, 511, 512, 513, 700};
  std::vector<GenerationRequest> out;
  for (int32_t i = first; i < first + count; ++i) {
    std::mt19937_64 rng(0x46495245u + static_cast<uint64_t>(i));
    GenerationRequest r;
    const int32_t fixed = static_cast<int32_t>(std::size(kLengths));
    const int32_t n = i < fixed ? kLengths[i] : 1 + static_cast<int32_t>(rng() % 700);
    for (int32_t t = 0; t < n; ++t)
      r.prompt.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab)));
    r.max_tokens = 32 + static_cast<int32_t>(rng() % 97);
    switch (i % 6) {
      case 0:
      case 1:
        r.sampling = {};
        break;  // greedy
      case 2:
        r.sampling = {1.0, 0, 0.95, 0.0, {}};
        break;
      case 3:
        r.sampling = {0.7, 40, 0.9, 0.0, {}};
        break;
      case 4:
        r.sampling = {1.0, 0, 1.0, 0.05, {}};
        break;
      default:
        r.sampling = {1.3, 0, 1.0, 0.0, {}};
        break;
    }
    r.sampling.seed = rng();
    out.push_back(std::move(r));
  }
  return out;
}

uint64_t ids_hash(const std::vector<int32_t>& ids) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (const int32_t id : ids)
    for (int byte = 0; byte < 4; ++byte)
      h = (h ^ ((static_cast<uint32_t>(id) >> (8 * byte)) & 255)) * 0x100000001B3ull;
  return h;
}

}  // namespace firesteel
