// The packed layouts, read back as the kernels read them, without a GPU.
#include "ops/cuda/pack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "quant/exl3.h"
#include "quant/narrow.h"
#include "support/random.h"
#include "tensor/dtype.h"

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

/// Narrowed rows: the codes where the fragments take them from, each row's scale, shifted, behind its group.
TEST(Pack, NarrowedTiles) {
  Random random;
  for (const int32_t k : {64, 192, 1088}) {
    for (const int32_t rows : {16, 5}) {
      MatrixSpec spec;
      spec.n = rows;
      spec.k = k;
      spec.keep = MatrixKeep::kQ4;
      std::vector<std::byte> four(cuda::packed_tile_bytes(spec));
      spec.keep = MatrixKeep::kFp8;
      std::vector<std::byte> eight(cuda::packed_tile_bytes(spec));
      std::vector<std::vector<float>> want4(16, std::vector<float>(static_cast<size_t>(k))), want8 = want4;
      for (int32_t r = 0; r < rows; ++r) {
        std::vector<float> w = random.normals(static_cast<size_t>(k), r + 1);
        std::vector<uint8_t> codes(w.size());
        std::vector<Q4Scale> q4(w.size() / 64);
        std::vector<uint16_t> fp8((w.size() + 127) / 128);
        ASSERT_TRUE(q4_from_row(w.data(), k, codes.data(), q4.data()).ok());
        cuda::pack_q4_row(codes.data(), q4.data(), r, k, four.data());
        for (size_t c = 0; c < w.size(); ++c) {
          want4[static_cast<size_t>(r)][c] = bf16_to_f32(q4_value(codes[c], q4[c / 64]));
        }
        ASSERT_TRUE(fp8_from_row(w.data(), k, codes.data(), fp8.data()).ok());
        cuda::pack_fp8_row(codes.data(), fp8.data(), r, k, eight.data());
        for (size_t c = 0; c < w.size(); ++c) {
          want8[static_cast<size_t>(r)][c] = bf16_to_f32(fp8_value(codes[c], fp8[c / 128]));
        }
      }
      const auto at16 = [](const std::vector<std::byte>& from, size_t at) {
        uint16_t v;
        std::memcpy(&v, from.data() + at, 2);
        return bf16_to_f32(v);
      };
      for (int32_t r = 0; r < 16; ++r) {
        for (int32_t c = 0; c < k; ++c) {
          const size_t slot = fragment_slot(r, c), group = slot / 1024, step = slot / 256 % 4,
                       lane = slot / 8 % 32, reg = slot % 8 / 2, half = slot % 2;
          // As the kernel reads it: a word a step, its bits as bf16 times the shifted scale, plus the offset.
          uint32_t word;
          std::memcpy(&word, four.data() + group * 576 + lane * 16 + step * 4, 4);
          const uint32_t bits = word >> (16 * half + 8 * (reg / 2)) & (reg % 2 == 0 ? 0x0F : 0xF0);
          const size_t row_scale = group * 576 + 512 + lane / 4 * 8 + reg % 2 * 4;
          const float q4 = std::fmaf(bf16_to_f32(static_cast<uint16_t>(bits)), at16(four, row_scale),
                                     at16(four, row_scale + 2));
          ASSERT_EQ(bf16_to_f32(f32_to_bf16(q4)) * 0x1p32f,
                    want4[static_cast<size_t>(r)][static_cast<size_t>(c)])
              << r << ", " << c;
          const auto code = static_cast<uint8_t>(
              eight[group * 1056 + step / 2 * 512 + lane * 16 + step % 2 * 8 + slot % 8]);
          const uint16_t raw = static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7F) << 4);
          const float fp8 = bf16_to_f32(raw) * at16(eight, group * 1056 + 1024 + lane / 4 * 4 + reg % 2 * 2);
          ASSERT_EQ(bf16_to_f32(f32_to_bf16(fp8)) * 0x1p32f,
                    want8[static_cast<size_t>(r)][static_cast<size_t>(c)])
              << r << ", " << c;
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
