#include "ops/random_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tensor/dtype.h"

namespace firesteel {

float random_trellis_deviation(Codebook codebook) { return codebook == Codebook::kMul1 ? 1.0f : 1.244f; }

Status RandomSource::read_rows(MatrixPart part, int64_t first, int64_t count, void* dst) {
  const bool exl3 = spec_.format == MatrixFormat::kExl3;
  const float deviation = 1.0f / std::sqrt(static_cast<float>(weights_.full_k));
  const int64_t row0 = weights_.first_row, column0 = weights_.first_column;
  auto* bytes = static_cast<std::byte*>(dst);
  const uint64_t seed = random_bits(weights_.seed, static_cast<uint64_t>(part));
  const auto bits_at = [seed](int64_t row, int64_t column) {
    return random_bits(seed, static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(column));
  };
  switch (part) {
    case MatrixPart::kWeight:
      if (exl3) {
        const int64_t words = spec_.n / 16 * 4 * spec_.bits, word0 = row0 / 16 * 4 * spec_.bits;
        for (int64_t r = 0; r < count; ++r)
          for (int64_t i = 0; i < words; ++i) {
            const uint64_t word = bits_at(column0 / 16 + first + r, word0 + i);
            std::memcpy(bytes + 8 * (r * words + i), &word, 8);
          }
        return {};
      }
      for (int64_t r = 0; r < count; ++r)
        for (int64_t c = 0; c < spec_.k; ++c) {
          const uint64_t random = bits_at(row0 + first + r, column0 + c);
          // Uniform in ±√3 has variance 1.
          const float value = (static_cast<float>(random >> 40) * 0x1p-23f - 1.0f) * 1.7320508f * deviation;
          const int64_t at = r * spec_.k + c;
          if (spec_.format == MatrixFormat::kF32) {
            reinterpret_cast<float*>(dst)[at] = value;
          } else if (spec_.format == MatrixFormat::kBf16) {
            reinterpret_cast<uint16_t*>(dst)[at] = f32_to_bf16(value);
          } else {  // any finite code: sign and magnitude up to 0x7e
            bytes[at] = static_cast<std::byte>((random >> 63) << 7 | (random & 0xffff) * 127 >> 16);
          }
        }
      return {};
    case MatrixPart::kScale: {
      const int64_t columns = (spec_.k + 127) / 128;
      // Codes of uniform bits have a root mean square of about 96.
      std::fill_n(static_cast<float*>(dst), count * columns, deviation / 96.0f);
      return {};
    }
    case MatrixPart::kSuh:
      // The same for every matrix of one input width, as in the known checkpoints.
      for (int64_t i = 0; i < count; ++i)
        static_cast<uint16_t*>(dst)[i] =
            f32_to_f16(random_bits(17, static_cast<uint64_t>(column0 + first + i)) >> 63 ? -1.0f : 1.0f);
      return {};
    case MatrixPart::kSvh: {
      const float scale = deviation / random_trellis_deviation(spec_.codebook);
      for (int64_t i = 0; i < count; ++i)
        static_cast<uint16_t*>(dst)[i] = f32_to_f16(bits_at(row0 + first + i, 0) >> 63 ? -scale : scale);
      return {};
    }
  }
  return {};
}

}  // namespace firesteel
