#include "quant/exl3.h"

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace firesteel {
namespace {

static_assert(std::endian::native == std::endian::little);

/// A tile's ring as bytes in stream order, with the last word repeated before the first (the windows of the
/// first elements reach back over the seam) and room for reading four bytes at the end.
template <int kBits>
struct Stream {
  explicit Stream(const uint16_t* words) {
    constexpr int kWords = 8 * kBits;
    std::array<uint32_t, kWords> w;
    std::memcpy(w.data(), words, sizeof w);
    for (uint32_t& x : w) x = __builtin_bswap32(x);
    std::memcpy(bytes, &w[kWords - 1], 4);
    std::memcpy(bytes + 4, w.data(), sizeof w);
    std::memset(bytes + 4 + sizeof w, 0, 4);
  }

  /// State of element 8·lane + j. A lane's eight elements take kBits whole bytes, so offsets depend on j
  /// alone.
  uint32_t state(int lane, int j) const {
    const int first_bit = (j + 1) * kBits + 16;  // of the window, from the repeated word's first bit
    uint32_t four;
    std::memcpy(&four, bytes + lane * kBits + first_bit / 8, 4);
    return __builtin_bswap32(four) >> (16 - first_bit % 8) & 0xFFFF;
  }

  uint8_t bytes[4 + 32 * kBits + 4];
};

template <int kBits>
void tile_states(const uint16_t* words, uint16_t* states) {
  const Stream<kBits> stream(words);
  for (int lane = 0; lane < 32; ++lane) {
    for (int j = 0; j < 8; ++j) states[8 * lane + j] = static_cast<uint16_t>(stream.state(lane, j));
  }
}

template <int kBits, bool kTransposed>
void decode_tile(const uint16_t* words, const uint16_t* table, uint16_t* out, int64_t stride) {
  const Stream<kBits> stream(words);
  for (int lane = 0; lane < 32; ++lane) {
    const int row = exl3_row(8 * lane), column = exl3_column(8 * lane);
    uint16_t* base = kTransposed ? out + column * stride + row : out + row * stride + column;
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const int down = exl3_row(j), right = exl3_column(j);
      base[kTransposed ? right * stride + down : down * stride + right] = table[stream.state(lane, j)];
    }
  }
}

using StatesFunction = void (*)(const uint16_t*, uint16_t*);
using DecodeFunction = void (*)(const uint16_t*, const uint16_t*, uint16_t*, int64_t);

template <size_t... kIndex>
constexpr auto states_functions(std::index_sequence<kIndex...>) {
  return std::array<StatesFunction, sizeof...(kIndex)>{tile_states<static_cast<int>(kIndex) + 1>...};
}

template <bool kTransposed, size_t... kIndex>
constexpr auto decode_functions(std::index_sequence<kIndex...>) {
  return std::array<DecodeFunction, sizeof...(kIndex)>{
      decode_tile<static_cast<int>(kIndex) + 1, kTransposed>...};
}

using AllBits = std::make_index_sequence<kExl3MaxBits>;
constexpr auto kStates = states_functions(AllBits{});
constexpr auto kDecode = decode_functions<false>(AllBits{});
constexpr auto kDecodeTransposed = decode_functions<true>(AllBits{});

size_t bits_index(int bits) {
  CHECK(bits >= 1 && bits <= kExl3MaxBits);
  return static_cast<size_t>(bits - 1);
}

void check_range(const Exl3Trellis& t, const Exl3TileRange& r) {
  CHECK(t.k % kExl3Tile == 0 && t.n % kExl3Tile == 0);
  CHECK(0 <= r.k_begin && r.k_begin <= r.k_end && r.k_end <= t.k / kExl3Tile);
  CHECK(0 <= r.n_begin && r.n_begin <= r.n_end && r.n_end <= t.n / kExl3Tile);
}

}  // namespace

void exl3_tile_states(const uint16_t* words, int bits, uint16_t* states) {
  kStates[bits_index(bits)](words, states);
}

void exl3_pack_states(const uint16_t* states, int bits, uint16_t* words) {
  CHECK(bits >= 1 && bits <= kExl3MaxBits);
  uint32_t held = 0;  // stream bits not yet written, the oldest highest
  int count = 0;
  int at = 0;
  for (int e = 0; e < kExl3TileElements; ++e) {
    held = held << bits | (states[e] & ((1u << bits) - 1));
    count += bits;
    if (count >= 16) {
      count -= 16;
      words[at++ ^ 1] = static_cast<uint16_t>(held >> count);  // the halves of a pair change places
    }
  }
}

void exl3_decode(const Exl3Trellis& trellis, const Exl3TileRange& range, uint16_t* out, int64_t stride) {
  check_range(trellis, range);
  const DecodeFunction decode = kDecode[bits_index(trellis.bits)];
  const uint16_t* table = codebook_table(trellis.codebook).data();
  for (int64_t kt = range.k_begin; kt < range.k_end; ++kt) {
    uint16_t* rows = out + (kt - range.k_begin) * kExl3Tile * stride;
    for (int64_t nt = range.n_begin; nt < range.n_end; ++nt) {
      decode(trellis.tile(kt, nt), table, rows + (nt - range.n_begin) * kExl3Tile, stride);
    }
  }
}

void exl3_decode_transposed(const Exl3Trellis& trellis, const Exl3TileRange& range, uint16_t* out,
                            int64_t stride) {
  check_range(trellis, range);
  const DecodeFunction decode = kDecodeTransposed[bits_index(trellis.bits)];
  const uint16_t* table = codebook_table(trellis.codebook).data();
  for (int64_t nt = range.n_begin; nt < range.n_end; ++nt) {
    uint16_t* rows = out + (nt - range.n_begin) * kExl3Tile * stride;
    for (int64_t kt = range.k_begin; kt < range.k_end; ++kt) {
      decode(trellis.tile(kt, nt), table, rows + (kt - range.k_begin) * kExl3Tile, stride);
    }
  }
}

void exl3_unpack_signs(const uint16_t* packed, int64_t channels, uint16_t* out) {
  for (int64_t i = 0; i < channels; ++i) out[i] = packed[i / 16] >> (i % 16) & 1 ? 0xBC00 : 0x3C00;
}

}  // namespace firesteel
