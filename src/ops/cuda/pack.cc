#include "ops/cuda/pack.h"

#include <cmath>
#include <cstring>

#include "ops/cuda/params.h"
#include "tensor/dtype.h"

namespace firesteel::cuda {

namespace {

size_t align_up(size_t n) { return (n + 255) / 256 * 256; }
int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

/// Calls set(slot, row, column) for every element of a group in the order it is stored.
template <typename Set>
void each_slot(Set&& set) {
  size_t slot = 0;
  for (int step = 0; step < 4; ++step) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int r = 0; r < 4; ++r) {
        const int row = lane / 4 + 8 * (r % 2);
        const int column = 32 * (step / 2) + 8 * (lane % 4) + 4 * (step % 2) + 2 * (r / 2);
        set(slot, row, column);
        slot += 2;
      }
    }
  }
}

}  // namespace

MatrixSpec loaded_spec(const MatrixSpec& spec) {
  MatrixSpec s = spec;
  switch (spec.keep) {
    case MatrixKeep::kStored:
      break;
    case MatrixKeep::kDecoded:
      s.format = MatrixFormat::kBf16;
      s.bits = 0;
      break;
    case MatrixKeep::kFp8:
      s.format = MatrixFormat::kFp8Rows;
      break;
    case MatrixKeep::kQ4:
      s.format = MatrixFormat::kQ4;
      break;
  }
  s.keep = MatrixKeep::kStored;
  return s;
}

size_t packed_tile_bytes(const MatrixSpec& spec) {
  const MatrixSpec s = loaded_spec(spec);
  const size_t groups = static_cast<size_t>(ceil_div(s.k, kGroupK));
  switch (s.format) {
    case MatrixFormat::kF32:
      return size_t{kTileN} * static_cast<size_t>(s.k) * 4;
    case MatrixFormat::kBf16:
      return groups * 2048;
    case MatrixFormat::kFp8Block:
      return groups * 1024;
    case MatrixFormat::kExl3:
      return groups * 128 * size_t{s.bits};
    case MatrixFormat::kFp8Rows:
      return groups * kFp8RowsGroupBytes;
    case MatrixFormat::kQ4:
      return groups * kQ4GroupBytes;
  }
  return 0;
}

PackedLayout packed_layout(const MatrixSpec& spec) {
  const MatrixSpec s = loaded_spec(spec);
  PackedLayout l;
  if (s.format == MatrixFormat::kF32) {
    l.bytes = align_up(static_cast<size_t>(s.n) * static_cast<size_t>(s.k) * 4);
    return l;
  }
  l.bytes = align_up(static_cast<size_t>(ceil_div(s.n, kTileN)) * packed_tile_bytes(s));
  if (s.format == MatrixFormat::kFp8Block) {
    l.scale = l.bytes;
    l.bytes += align_up(size_t{4} * static_cast<size_t>(ceil_div(s.n, 128)) *
                        static_cast<size_t>(ceil_div(s.k, 128)));
  } else if (s.format == MatrixFormat::kExl3) {
    l.suh = l.bytes;
    l.svh = l.suh + align_up(size_t{2} * static_cast<size_t>(s.k));
    l.bytes = l.svh + align_up(size_t{2} * static_cast<size_t>(s.n));
  }
  return l;
}

void pack_bf16_tile(const uint16_t* src, int32_t rows, int32_t k, std::byte* dst) {
  for (int32_t group = 0; group < ceil_div(k, kGroupK); ++group) {
    auto* out = reinterpret_cast<uint16_t*>(dst + static_cast<size_t>(group) * 2048);
    each_slot([&](size_t slot, int row, int column) {
      const int32_t c = group * kGroupK + column;
      const uint16_t* from = src + static_cast<size_t>(row) * static_cast<size_t>(k) + c;
      out[slot] = row < rows && c < k ? from[0] : 0;
      out[slot + 1] = row < rows && c + 1 < k ? from[1] : 0;
    });
  }
}

void pack_fp8_tile(const uint8_t* src, int32_t rows, int32_t k, std::byte* dst) {
  for (int32_t group = 0; group < ceil_div(k, kGroupK); ++group) {
    auto* out = reinterpret_cast<uint8_t*>(dst + static_cast<size_t>(group) * 1024);
    each_slot([&](size_t slot, int row, int column) {
      // Steps 2h and 2h+1 of a lane lie side by side: [half][lane][step][register].
      const size_t step = slot / 256, lane = slot / 8 % 32, in = slot % 8;
      const size_t at = step / 2 * 512 + lane * 16 + step % 2 * 8 + in;
      const int32_t c = group * kGroupK + column;
      const uint8_t* from = src + static_cast<size_t>(row) * static_cast<size_t>(k) + c;
      out[at] = row < rows && c < k ? from[0] : 0;
      out[at + 1] = row < rows && c + 1 < k ? from[1] : 0;
    });
  }
}

namespace {

/// bf16 times a power of two, exactly; the ranges of quant/narrow.h leave the room.
uint16_t scaled(uint16_t bf16, int exponent) { return f32_to_bf16(std::ldexp(bf16_to_f32(bf16), exponent)); }

void put16(std::byte* at, uint16_t v) { std::memcpy(at, &v, 2); }

/// Where element (row, column) of a group lies: k-step, lane, register and half of the register.
struct Slot {
  size_t step, lane, reg, half;
};
Slot slot_of(int32_t row, int32_t column) {
  const int32_t in = column % 32;
  return {static_cast<size_t>(column / 32 * 2 + in % 8 / 4), static_cast<size_t>(row % 8 * 4 + in / 8),
          static_cast<size_t>(row / 8 + 2 * (in % 4 / 2)), static_cast<size_t>(in % 2)};
}

}  // namespace

void pack_fp8_row(const uint8_t* codes, const uint16_t* scales, int32_t row, int32_t k, std::byte* tile) {
  for (int32_t group = 0; group < ceil_div(k, kGroupK); ++group) {
    std::byte* out = tile + static_cast<size_t>(group) * kFp8RowsGroupBytes;
    for (int32_t c = 0; c < kGroupK; ++c) {
      const Slot s = slot_of(row, c);
      const size_t at = s.step / 2 * 512 + s.lane * 16 + s.step % 2 * 8 + s.reg * 2 + s.half;
      const int32_t column = group * kGroupK + c;
      out[at] = std::byte{column < k ? codes[column] : uint8_t{0}};
    }
    put16(out + 1024 + row % 8 * 4 + row / 8 * 2,
          scaled(scales[group * kGroupK / kFp8Group], kFp8ScaleShift));
  }
}

void pack_q4_row(const uint8_t* codes, const Q4Scale* scales, int32_t row, int32_t k, std::byte* tile) {
  for (int32_t group = 0; group < k / kGroupK; ++group) {
    std::byte* out = tile + static_cast<size_t>(group) * kQ4GroupBytes;
    for (int32_t c = 0; c < kGroupK; ++c) {
      const Slot s = slot_of(row, c);
      // Registers 2r and 2r+1 of a half share a byte.
      std::byte& at = out[s.lane * 16 + s.step * 4 + s.half * 2 + s.reg / 2];
      at |= std::byte{codes[group * kGroupK + c]} << static_cast<int>(4 * (s.reg % 2));
    }
    std::byte* to = out + 512 + row % 8 * 8 + row / 8 * 4;
    put16(to, scaled(scales[group].scale, row < 8 ? kQ4LowShift : kQ4HighShift));
    put16(to + 2, scaled(scales[group].offset, -kNarrowShift));
  }
}

void pack_exl3_group(const std::byte* const src[4], int32_t tiles_n, int32_t bits, int32_t groups,
                     int32_t group, std::byte* dst) {
  const size_t k = static_cast<size_t>(bits), tile_bytes = 32 * k, group_bytes = 128 * k;
  for (int32_t n = 0; n < tiles_n; ++n) {
    std::byte* out =
        dst +
        (static_cast<size_t>(n) * static_cast<size_t>(groups) + static_cast<size_t>(group)) * group_bytes;
    for (size_t tile = 0; tile < 4; ++tile) {
      const std::byte* in = src[tile] + static_cast<size_t>(n) * tile_bytes;
      for (size_t lane = 0; lane < 32; ++lane) {
        for (size_t j = 0; j < k; ++j) {
          // Byte b of the tile's bit stream lies in the little-endian word b/4, its first bit in the word's
          // top byte.
          const size_t b = k * lane + j;
          const std::byte value = in[(b & ~size_t{3}) + 3 - (b & 3)];
          const size_t at = k * tile + j, word = at / 4, byte = 3 - at % 4;
          const size_t four = k / 4 * 4;  // words in planes of four
          size_t where;
          if (word < four) {
            where = word / 4 * 512 + lane * 16 + word % 4 * 4;
          } else if ((k & 2) != 0 && word < four + 2) {
            where = k / 4 * 512 + lane * 8 + (word - four) * 4;
          } else {
            where = k / 4 * 512 + ((k & 2) != 0 ? 256 : 0) + lane * 4;
          }
          out[where + byte] = value;
        }
      }
    }
  }
}

}  // namespace firesteel::cuda
