// Tiles and codebooks against recorded vectors and a bit-by-bit reading of the format.
#include "quant/exl3.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/digest.h"
#include "support/random.h"
#include "tensor/dtype.h"

namespace firesteel {
namespace {

using test::crc32;
using test::Random;

constexpr Codebook kCodebooks[] = {Codebook::k3Inst, Codebook::kMcg, Codebook::kMul1};

TEST(Codebook, TablesHaveTheRecordedDigests) {
  const uint32_t crcs[] = {0x4C83D524, 0xD2D13C52, 0x2BDF05C5};
  const uint16_t samples[3][6] = {{0x3A25, 0xBB5B, 0x3B74, 0xC066, 0xB7F8, 0xB110},
                                  {0x3F60, 0x304E, 0xBA13, 0x3E0F, 0xB915, 0x3ACD},
                                  {0xC2E8, 0x3921, 0xB72D, 0xB89E, 0xBAF2, 0xB936}};
  const size_t distinct[] = {10598, 10746, 913};
  for (int c = 0; c < 3; ++c) {
    const auto table = codebook_table(kCodebooks[c]);
    EXPECT_EQ(crc32(table.data(), table.size_bytes()), crcs[c]);
    int at = 0;
    for (const uint32_t s : {0u, 1u, 2u, 0x1234u, 0x8000u, 0xFFFFu}) EXPECT_EQ(table[s], samples[c][at++]);
    EXPECT_EQ(std::set<uint16_t>(table.begin(), table.end()).size(), distinct[c]);
    for (const uint16_t bits : table) {
      ASSERT_NE(bits & 0x7C00, 0x7C00);
      ASSERT_TRUE((bits & 0x7C00) != 0 || (bits & 0x3FF) == 0);
    }
  }
}

struct Recorded {
  int bits;
  uint16_t first[4], last;
  uint32_t states_crc, inner_crc[3];
};

// One tile whose 16-bit word i is (i·40503 + 12345) mod 65536.
constexpr Recorded kRecorded[] = {
    {1, {0xae77, 0x5cef, 0xb9de, 0x73bc}, 0xd73b, 0x7662fa40, {0xf6d7657a, 0xc224991f, 0xdb66d975}},
    {2, {0xeaaf, 0xaabc, 0xaaf3, 0xabce}, 0xbaab, 0x0cc14928, {0x38d40eea, 0x96fc911a, 0xfa102047}},
    {3, {0xf0de, 0x86f3, 0x379c, 0xbce7}, 0x9e1b, 0xc40d3fe6, {0x27a4178e, 0x2afabe76, 0x4449a39e}},
    {4, {0x18bc, 0x8bce, 0xbce7, 0xce70}, 0x818b, 0xb1948730, {0x5986dbc4, 0x91a38e6a, 0x271b44bc}},
    {5, {0x9f79, 0xef39, 0xe738, 0xe703}, 0x64fb, 0xa766dcec, {0x49b592c6, 0x512c6c01, 0x891e49de}},
    {6, {0x1af3, 0xbce7, 0x39c0, 0x7030}, 0x486b, 0x86fa3adb, {0x414d117b, 0x8cfa064b, 0x6305703b}},
    {7, {0xede7, 0xf39c, 0xce06, 0x0303}, 0x2bdb, 0x84d184d4, {0x9dee1af1, 0x959b88f4, 0x229ccba7}},
    {8, {0x4bce, 0xce70, 0x7030, 0x3039}, 0x0f4b, 0x43eb63ed, {0xb0df5439, 0xa5bc8185, 0xe10fd750}},
};

std::vector<uint16_t> recorded_words(int bits) {
  std::vector<uint16_t> words(static_cast<size_t>(16 * bits));
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint16_t>(i * 40503 + 12345);
  return words;
}

std::vector<uint16_t> states_of(const std::vector<uint16_t>& words, int bits) {
  std::vector<uint16_t> states(256);
  exl3_tile_states(words.data(), bits, states.data());
  return states;
}

TEST(Exl3Tile, RecordedVectors) {
  for (const Recorded& r : kRecorded) {
    const std::vector<uint16_t> words = recorded_words(r.bits);
    const std::vector<uint16_t> states = states_of(words, r.bits);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(states[i], r.first[i]) << r.bits;
    EXPECT_EQ(states[255], r.last) << r.bits;
    EXPECT_EQ(crc32(states.data(), 512), r.states_crc) << r.bits;
    for (int c = 0; c < 3; ++c) {
      std::vector<uint16_t> inner(256);
      const Exl3Trellis trellis{words.data(), 16, 16, r.bits, kCodebooks[c]};
      exl3_decode(trellis, exl3_all_tiles(trellis), inner.data(), 16);
      EXPECT_EQ(crc32(inner.data(), 512), r.inner_crc[c]) << r.bits << " " << c;
    }
  }
}

/// The format read bit by bit, as its description has it.
std::vector<uint16_t> slow_states(const std::vector<uint16_t>& words, int bits, bool swap_pairs) {
  std::vector<int> ring;
  for (size_t i = 0; i < words.size(); i += 2) {
    const uint32_t w = swap_pairs ? words[i] | static_cast<uint32_t>(words[i + 1]) << 16
                                  : words[i + 1] | static_cast<uint32_t>(words[i]) << 16;
    for (int b = 31; b >= 0; --b) ring.push_back(static_cast<int>(w >> b & 1));
  }
  std::vector<uint16_t> out;
  const int size = static_cast<int>(ring.size());
  for (int e = 0; e < 256; ++e) {
    uint32_t s = 0;
    for (int i = (e + 1) * bits - 16; i < (e + 1) * bits; ++i) {
      s = s << 1 | static_cast<uint32_t>(ring[static_cast<size_t>((i + size) % size)]);
    }
    out.push_back(static_cast<uint16_t>(s));
  }
  return out;
}

TEST(Exl3Tile, RandomTilesAgainstTheBitByBitReading) {
  Random random;
  for (int bits = 1; bits <= 8; ++bits) {
    for (int round = 0; round < 64; ++round) {
      const auto words = random.words(static_cast<size_t>(16 * bits));
      ASSERT_EQ(states_of(words, bits), slow_states(words, bits, true)) << bits;
      // Words taken in file order are the classic mistake; the comparison must see it.
      ASSERT_NE(states_of(words, bits), slow_states(words, bits, false)) << bits;
    }
  }
}

TEST(Exl3Tile, PackIsTheInverseOfReading) {
  Random random;
  for (int bits = 1; bits <= 8; ++bits) {
    for (int round = 0; round < 64; ++round) {
      const auto words = random.words(static_cast<size_t>(16 * bits));
      std::vector<uint16_t> states = states_of(words, bits);
      for (size_t e = 0; e < 256; ++e) {  // the trellis: each state continues the one before, around the ring
        ASSERT_EQ(states[(e + 1) % 256] >> bits, states[e] & ((1 << (16 - bits)) - 1));
      }
      std::vector<uint16_t> packed(words.size());
      exl3_pack_states(states.data(), bits, packed.data());
      ASSERT_EQ(packed, words) << bits;
      // Only the low bits of a state are stored.
      for (uint16_t& s : states) s &= static_cast<uint16_t>((1 << bits) - 1);
      exl3_pack_states(states.data(), bits, packed.data());
      ASSERT_EQ(packed, words) << bits;
    }
  }
}

TEST(Exl3Tile, OrderCoversTheTileOnce) {
  std::set<std::pair<int, int>> seen;
  for (int e = 0; e < 256; ++e) seen.insert({exl3_row(e), exl3_column(e)});
  EXPECT_EQ(seen.size(), 256u);
  EXPECT_EQ(*seen.begin(), std::make_pair(0, 0));
  EXPECT_EQ(*seen.rbegin(), std::make_pair(15, 15));
}

TEST(Exl3Decode, FormsAndRangesAgree) {
  Random random;
  const int64_t k = 16 * 9, n = 16 * 7;
  for (int bits = 1; bits <= 8; ++bits) {
    const auto words = random.words(static_cast<size_t>(k / 16 * (n / 16) * 16 * bits));
    const Exl3Trellis trellis{words.data(), k, n, bits, kCodebooks[bits % 3]};
    const auto table = codebook_table(trellis.codebook);
    // Element by element from the states.
    std::vector<uint16_t> want(static_cast<size_t>(k * n));
    for (int64_t kt = 0; kt < k / 16; ++kt) {
      for (int64_t nt = 0; nt < n / 16; ++nt) {
        uint16_t states[256];
        exl3_tile_states(words.data() + (kt * (n / 16) + nt) * 16 * bits, bits, states);
        for (int e = 0; e < 256; ++e)
          want[(kt * 16 + exl3_row(e)) * n + nt * 16 + exl3_column(e)] = table[states[e]];
      }
    }
    std::vector<uint16_t> rows(want.size()), columns(want.size());
    exl3_decode(trellis, exl3_all_tiles(trellis), rows.data(), n);
    ASSERT_EQ(rows, want) << bits;
    exl3_decode_transposed(trellis, exl3_all_tiles(trellis), columns.data(), k);
    for (int64_t r = 0; r < k; ++r) {
      for (int64_t c = 0; c < n; ++c) ASSERT_EQ(columns[c * k + r], want[r * n + c]) << bits;
    }
    // A part decodes to the part, and nothing outside it is touched.
    const Exl3TileRange range{2, 5, 3, 6};
    std::vector<uint16_t> part(48 * 50, 0xAAAA), part_t(48 * 50, 0xAAAA);
    exl3_decode(trellis, range, part.data(), 50);
    exl3_decode_transposed(trellis, range, part_t.data(), 50);
    for (int64_t r = 0; r < 48; ++r) {
      for (int64_t c = 0; c < 48; ++c) {
        ASSERT_EQ(part[r * 50 + c], want[(r + 32) * n + c + 48]);
        ASSERT_EQ(part_t[c * 50 + r], want[(r + 32) * n + c + 48]);
      }
      for (int64_t c = 48; c < 50; ++c) {
        ASSERT_EQ(part[r * 50 + c], 0xAAAA);
        ASSERT_EQ(part_t[r * 50 + c], 0xAAAA);
      }
    }
  }
}

TEST(Exl3Signs, PackedSigns) {
  const uint16_t packed[] = {0x8001, 0x0002};
  uint16_t out[32];
  exl3_unpack_signs(packed, 32, out);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(f16_to_f32(out[i]), i == 0 || i == 15 || i == 17 ? -1.0f : 1.0f) << i;
  }
}

}  // namespace
}  // namespace firesteel
