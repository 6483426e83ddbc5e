// The device layouts of weights, written on the host while loading. Pure functions, any thread.
//
// All formats but fp32 are cut into groups of 16 output channels × 64 columns, channel tiles outermost, so
// that a warp's walk along K is one sequential stream and every lane's 16-byte load is what its tensor-core
// fragment needs:
//   bf16  [⌈n/16⌉][⌈k/64⌉][4 k-steps][32 lanes][4 registers of 2]; k-step 2h+s, lane 4g+t, register r holds
//   row
//         g + 8·(r%2), columns 32h + 8t + 4s + 2·(r/2) + {0, 1}; beyond n and k: zeros
//   FP8   the same order of elements, one byte each: [2 halves][32 lanes][16 codes]; scales fp32
//   [⌈n/128⌉][⌈k/128⌉] EXL3  [n/16][k/64][planes]: lane L's K bytes of each of the four tiles as one
//   big-endian string of K words; planes of
//         four, two and one words a lane; then suh fp16 [k], svh fp16 [n]
//   narrowed matrices (quant/narrow.h), scales behind the codes of each group, 16 rows of them; the kernels'
//   weights are 2^-32 of the true ones, for a reason that weights.cuh gives:
//   FP8 by rows  1024 bytes as FP8, then for each g < 8 the scales of rows g and g + 8 times 2^88, bf16
//   q4    [32 lanes][4 k-steps] words of 8 codes, register r element e in bits 16e + 4r …; then for each g <
//   8
//         scale · 2^101 and offset · 2^-32 of row g, scale · 2^97 and offset · 2^-32 of row g + 8, bf16
//   fp32  row-major
// Parts start at multiples of 256 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/ops.h"
#include "quant/narrow.h"

namespace firesteel::cuda {

struct PackedLayout {
  size_t scale = 0, suh = 0, svh = 0;  // offsets
  size_t bytes = 0;
};

/// What the spec becomes once loaded (ops.h, MatrixKeep).
MatrixSpec loaded_spec(const MatrixSpec& spec);

PackedLayout packed_layout(const MatrixSpec& spec);

/// Bytes of one 16-channel tile row (all of K); of kF32: 16 rows.
size_t packed_tile_bytes(const MatrixSpec& spec);

/// Packs `rows` (≤ 16) output channels, row-major elements of `k` columns, to one tile row.
void pack_bf16_tile(const uint16_t* src, int32_t rows, int32_t k, std::byte* dst);
void pack_fp8_tile(const uint8_t* src, int32_t rows, int32_t k, std::byte* dst);

/// Packs one narrowed row, `row` < 16 of its tile; the rows of a tile that no channel has must be zeros.
void pack_fp8_row(const uint8_t* codes, const uint16_t* scales, int32_t row, int32_t k, std::byte* tile);
void pack_q4_row(const uint8_t* codes, const Q4Scale* scales, int32_t row, int32_t k, std::byte* tile);

/// Packs four k-tiles of `tiles_n` tiles each (rows `src[0..3]` of the checkpoint's trellis): group `group`
/// of every tile row of dst.
void pack_exl3_group(const std::byte* const src[4], int32_t tiles_n, int32_t bits, int32_t groups,
                     int32_t group, std::byte* dst);

}  // namespace firesteel::cuda
