// The packed layouts, read back as the kernels read them, without a GPU.
#include "ops/cuda/pack.h"

#include <gtest/gtest.h>

#include <cstring>

#include "quant/exl3.h"
#include "support/random.h"

namespace firesteel::test {
namespace {

/// Element (row, column) of a packed 16-channel tile row as the fragment of mma.m16n8k16 defines it: lane
/// 4g+t holds in register r row g + 8·(r%2) and slots 2t + 8·(r/2) + {0,1} of its k-step; slots are columns
/// in the order of x reads.
size_t fragment_slot(int32_t row, int32_t column) {
  const int32_t group = column / 64, half = column / 32 % 2, in = column % 32;
  const int32_t t = in / 8, step = 2 * half + in % 8 / 4, pair = in % 4 / 2, e = in % 2;
  const int32_t lane = row % 8 * 4 + t, reg = row / 8 + 2 * pair;
  return static_cast<size_t>(group) * 1024 + static_cast<size_t>(step) * 256 + static_cast<size_t>(lane) * 8 +
         static_cast<size_t>(reg) * 2 + static_cast<size_t>(e);
}

TEST(Pack, Bf16AndFp8Tiles) {
  Random random;
  for (const int32_t k : {64, 300, 1001}) {
    for (const int32_t rows : {16, 5}) {
      MatrixSpec spec;
      spec.n = rows;
      spec.k = k;
      const auto src = random.words(static_cast<size_t>(rows) * static_cast<size_t>(k));
      std::vector<uint8_t> codes(src.size());
      for (size_t i = 0; i < src.size(); ++i) codes[i] = static_cast<uint8_t>(src[i]);
      spec.format = MatrixFormat::kBf16;
      std::vector<std::byte> wide(cuda::packed_tile_bytes(spec), std::byte{0xAA});
      cuda::pack_bf16_tile(src.data(), rows, k, wide.data());
      spec.format = MatrixFormat::kFp8Block;
      std::vector<std::byte> narrow(cuda::packed_tile_bytes(spec), std::byte{0xAA});
      cuda::pack_fp8_tile(codes.data(), rows, k, narrow.data());
      const auto* w = reinterpret_cast<const uint16_t*>(wide.data());
      const auto* n = reinterpret_cast<const uint8_t*>(narrow.data());
      for (int32_t r = 0; r < 16; ++r) {
        for (int32_t c = 0; c < (k + 63) / 64 * 64; ++c) {
          const bool real = r < rows && c < k;
          const size_t at = static_cast<size_t>(r) * static_cast<size_t>(k) + static_cast<size_t>(c);
          const size_t slot = fragment_slot(r, c);
          ASSERT_EQ(w[slot], real ? src[at] : 0) << r << ", " << c;
          // FP8: both steps of a half side by side in a lane's 16 bytes.
          const size_t group = slot / 1024, step = slot / 256 % 4, lane = slot / 8 % 32, in = slot % 8;
          const size_t byte = group * 1024 + step / 2 * 512 + lane * 16 + step % 2 * 8 + in;
          ASSERT_EQ(n[byte], real ? codes[at] : 0) << r << ", " << c;
        }
      }
    }
  }
}

/// A lane's states from its own K bytes of a tile and the 16 bits of the lanes before: what exl3.cuh does.
TEST(Pack, Exl3GroupsHoldTheStates) {
  Random random;
  for (int bits = 1; bits <= 8; ++bits) {
    const int32_t tiles_n = 8, groups = 2;
    const size_t k = static_cast<size_t>(bits), tile_bytes = 32 * k;
    std::vector<uint16_t> trellis = random.words(static_cast<size_t>(tiles_n * groups * 4) * 16 * k);
    const auto* bytes = reinterpret_cast<const std::byte*>(trellis.data());
    std::vector<std::byte> packed(static_cast<size_t>(tiles_n * groups) * 128 * k);
    for (int32_t g = 0; g < groups; ++g) {
      const std::byte* rows[4];
      for (int32_t i = 0; i < 4; ++i)
        rows[i] = bytes + static_cast<size_t>((4 * g + i) * tiles_n) * tile_bytes;
      cuda::pack_exl3_group(rows, tiles_n, bits, groups, g, packed.data());
    }
    for (int32_t g = 0; g < groups; ++g) {
      for (int32_t n = 0; n < tiles_n; ++n) {
        const std::byte* group = packed.data() + static_cast<size_t>(n * groups + g) * 128 * k;
        const auto word = [&](size_t lane, size_t i) {
          const size_t four = k / 4 * 4;
          size_t at;
          if (i < four) {
            at = i / 4 * 512 + lane * 16 + i % 4 * 4;
          } else if (k % 4 >= 2 && i < four + 2) {
            at = k / 4 * 512 + lane * 8 + (i - four) * 4;
          } else {
            at = k / 4 * 512 + (k % 4 >= 2 ? 256 : 0) + lane * 4;
          }
          uint32_t v;
          std::memcpy(&v, group + at, 4);
          return v;
        };
        // Bit b (from the top) of lane's string of 32·bits bits.
        const auto bit = [&](size_t lane, size_t b) { return word(lane, b / 32) >> (31 - b % 32) & 1; };
        for (size_t tile = 0; tile < 4; ++tile) {
          uint16_t states[256];
          exl3_tile_states(trellis.data() +
                               (static_cast<size_t>(4 * g) + tile) * static_cast<size_t>(tiles_n) * 16 * k +
                               static_cast<size_t>(n) * 16 * k,
                           bits, states);
          for (size_t e = 0; e < 256; ++e) {
            uint32_t state = 0;
            for (size_t i = 0; i < 16; ++i) {
              // Stream bit of the tile, counted from its beginning, with the ring's wrap.
              const size_t b = ((e + 1) * k + 256 * k - 16 + i) % (256 * k);
              state = state << 1 | bit(b / (8 * k), tile * 8 * k + b % (8 * k));
            }
            ASSERT_EQ(state, states[e]) << bits << " bits, element " << e;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace firesteel::test
