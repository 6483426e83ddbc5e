// The EXL3 weight format: bit streams of 16×16 tiles, and the matrices they stand for.
//
// A matrix W [k, n] (y = x W; the transpose of the usual checkpoint orientation) is stored as `trellis`
// [k/16, n/16, 16·bits] of 16-bit words, two fp16 vectors suh [k] and svh [n], and a codebook:
//
//   W = diag(suh) · H · Ŵ · H · diag(svh)         H: 128-point Hadamard blocks (hadamard.h) on either side
//   Ŵ[16·kt + row(e), 16·nt + col(e)] = codebook(state(e)) for the 256 elements e of tile (kt, nt)
//
// Ŵ is the "inner" matrix, exact in fp16. A tile is a ring of 256·bits stream bits: its words in pairs, the
// first of a pair the low half of a 32-bit word, read from the top bit down. state(e) = the 16 bits that end
// at bit (e+1)·bits.
//
// Everything is a pure function of its arguments and callable from any thread; ranges let callers split the
// work. The words must be 2-byte aligned: tensors in files may start at odd bytes, so copy first.
#pragma once

#include <cstdint>

#include "quant/codebook.h"

namespace firesteel {

constexpr int64_t kExl3Tile = 16;
constexpr int kExl3TileElements = 256;
constexpr int kExl3MaxBits = 8;

/// Where element e (0..255) of a tile's stream lies in the tile: the order of tensor-core operands.
constexpr int exl3_row(int e) { return 2 * (e >> 3 & 3) + (e & 1) + 8 * (e >> 1 & 1); }  // along k
constexpr int exl3_column(int e) { return (e >> 5) + 8 * (e >> 2 & 1); }                 // along n

/// The 256 states of one tile of 16·bits words, in stream order.
void exl3_tile_states(const uint16_t* words, int bits, uint16_t* states);
/// The inverse: stores the low `bits` bits of each of 256 states.
void exl3_pack_states(const uint16_t* states, int bits, uint16_t* words);

/// A trellis as loaded; not owned. k and n are multiples of 16, bits is 1 to 8 (exl3_group.h checks files).
struct Exl3Trellis {
  const uint16_t* words = nullptr;
  int64_t k = 0, n = 0;
  int bits = 0;
  Codebook codebook = Codebook::k3Inst;

  int64_t tile_words() const { return kExl3Tile * bits; }
  const uint16_t* tile(int64_t kt, int64_t nt) const {
    return words + (kt * (n / kExl3Tile) + nt) * tile_words();
  }
};

/// Tiles [k_begin, k_end) × [n_begin, n_end), counted in tiles.
struct Exl3TileRange {
  int64_t k_begin = 0, k_end = 0, n_begin = 0, n_end = 0;
};
/// Every tile.
inline Exl3TileRange exl3_all_tiles(const Exl3Trellis& t) { return {0, t.k / kExl3Tile, 0, t.n / kExl3Tile}; }

/// Ŵ of the range as fp16 bits, row-major [k, n]: `out` is the range's first element, rows are `stride`
/// elements apart.
void exl3_decode(const Exl3Trellis& trellis, const Exl3TileRange& range, uint16_t* out, int64_t stride);
/// The same values as [n, k], the usual orientation of weights.
void exl3_decode_transposed(const Exl3Trellis& trellis, const Exl3TileRange& range, uint16_t* out,
                            int64_t stride);

/// Signs of early checkpoints (`su`, `sv`): bit b of word w belongs to channel 16·w + b, set = -1. Writes
/// fp16 ±1.
void exl3_unpack_signs(const uint16_t* packed, int64_t channels, uint16_t* out);

/// W itself in fp32, rows [128·block_begin, 128·block_end) of [k, n] packed into `out`. suh [k] and svh [n]
/// are fp16 bits. Order of the arithmetic: Hadamard along k, times suh, Hadamard along n, times svh.
void exl3_dense(const Exl3Trellis& trellis, const uint16_t* suh, const uint16_t* svh, int64_t block_begin,
                int64_t block_end, float* out);

}  // namespace firesteel
