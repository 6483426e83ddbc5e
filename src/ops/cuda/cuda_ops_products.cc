// Products of matrices in every format: which kernel takes them, and how it is launched.
#include <algorithm>

#include "ops/cuda/cuda_ops_impl.h"
#include "ops/cuda/launch.h"

namespace firesteel::cuda {

namespace {
constexpr int32_t kFewWarps = 8;        // of a block of the kernels for few rows
constexpr int32_t kRingMostUnits = 64;  // of a tile, so that their sums fit twice
}  // namespace

int32_t CudaOps::kind_of(const MatrixSpec& s) {
  return s.format == MatrixFormat::kExl3 ? s.bits + 16 * static_cast<int32_t>(s.codebook) : 0;
}

MatrixRef CudaOps::ref_of(const Matrix& m) {
  const PackedLayout at = packed_layout(m.spec);
  const auto* data = static_cast<const uint8_t*>(m.data);
  MatrixRef r{};
  r.data = data;
  r.n = m.spec.n;
  r.k = m.spec.k;
  r.kind = kind_of(m.spec);
  if (m.spec.format == MatrixFormat::kFp8Block) r.scale = reinterpret_cast<const float*>(data + at.scale);
  if (m.spec.format == MatrixFormat::kExl3) {
    r.suh = reinterpret_cast<const Bits16*>(data + at.suh);
    r.svh = reinterpret_cast<const Bits16*>(data + at.svh);
  }
  return r;
}

const MatmulKernels& CudaOps::kernels_of(const MatrixSpec& s) const {
  if (s.format == MatrixFormat::kFp8Block) return kernels_.fp8;
  if (s.format == MatrixFormat::kFp8Rows) return kernels_.fp8_rows;
  if (s.format == MatrixFormat::kQ4) return kernels_.q4;
  if (s.format == MatrixFormat::kExl3) return kernels_.exl3[static_cast<size_t>(s.codebook)][s.bits];
  return kernels_.bf16;
}

void CudaOps::set_slices(Product& p, const MatrixSpec& spec, int64_t stride) {
  p.slices = spec.slices;
  for (int i = 0; i < 4; ++i) p.slice_end[i] = spec.slice_end[i];
  if (spec.slices == 1) p.slice_end[0] = spec.k;
  p.slice_stride = stride;
}

void CudaOps::product_f32(const Matrix& w, const Product& p, int32_t column) {
  MatvecF32Params q{};
  q.w = static_cast<const float*>(w.data);
  q.x = p.x;
  q.y = p.y;
  q.ldx = p.ldx;
  q.ldy = p.ldy;
  q.n = w.spec.n;
  q.k = w.spec.k;
  q.rows = p.rows;
  q.out_f32 = p.f32;
  q.column = column;
  copy_slices(q, p);
  run(kernels_.matvec_f32,
      {{blocks_of(w.spec.n, 8), static_cast<unsigned>(p.rows), static_cast<unsigned>(std::max(1, p.slices))},
       256},
      q);
}

int32_t CudaOps::unit_span_of(const MatrixSpec& spec, const Product& p) {
  const int32_t unit = spec.format == MatrixFormat::kFp8Block ? kFp8Unit : kUnit;
  if (p.slices == 0) return (spec.k + unit - 1) / unit;
  int32_t most = 1;
  for (int32_t i = 0, begin = 0; i < p.slices; begin = p.slice_end[i++]) {
    most = std::max(most, (p.slice_end[i] - begin + unit - 1) / unit);
  }
  return most;
}

bool CudaOps::folds(const MatrixSpec& spec) const {
  if (rows_ > kFewRows || spec.slices == 1 || needs_padding(spec.k, spec.k)) return false;
  if (spec.format != MatrixFormat::kBf16 && spec.format != MatrixFormat::kFp8Rows &&
      spec.format != MatrixFormat::kQ4) {
    return false;
  }
  int32_t units = 0;
  for (int32_t i = 0, begin = 0; i < spec.slices; begin = spec.slice_end[i++])
    units += (spec.slice_end[i] - begin + kUnit - 1) / kUnit;
  return units > 0 && units <= kFewWarps;
}

bool CudaOps::large_fits(const MatmulKernels& k, int64_t channel_tiles, int32_t rows, int64_t slices) const {
  return rows > kRowsPerTile && k.large.function != nullptr &&
         channel_tiles * blocks_of(rows, k.large_rows) * slices >= device_->info().multiprocessors;
}

bool CudaOps::adds_neighbours(const MatrixSpec& spec) const {
  if (spec.slices < 2 || spec.format == MatrixFormat::kExl3 || spec.format == MatrixFormat::kF32)
    return false;
  const MatmulKernels& k = kernels_of(spec);
  return large_fits(k, k.large_channels > 0 ? blocks_of(spec.n, k.large_channels) : 0, rows_,
                    (spec.slices + 1) / 2);
}

const Bits16* CudaOps::pad(const Bits16* x, int64_t ldx, int32_t k, int32_t rows) {
  PadParams p{};
  p.x = x;
  p.ldx = ldx;
  p.ldy = padded_k(k);
  p.k = k;
  p.rows = rows;
  p.y = take<Bits16>(static_cast<size_t>(rows) * static_cast<size_t>(p.ldy));
  run(kernels_.pad_rows, {{blocks_of(p.ldy, 256), static_cast<unsigned>(rows)}, 256}, p);
  return p.y;
}

size_t CudaOps::product_bytes(std::span<const Matrix> ws, int32_t rows) {
  // Inputs that need padding are padded once.
  size_t bytes = ws.empty()
                     ? 0
                     : padded(static_cast<size_t>(rows) * static_cast<size_t>(padded_k(ws[0].spec.k)) * 2),
         columns = 0, units = 0;
  for (const Matrix& w : ws) {
    if (w.spec.format != MatrixFormat::kExl3) continue;
    bytes += padded(static_cast<size_t>(rows) * static_cast<size_t>(w.spec.k) * sizeof(Bits16));
    columns += static_cast<size_t>(w.spec.n);
    // Slices of unequal length take the span of the longest.
    units = std::max(units, static_cast<size_t>(w.spec.k / kUnit + 2 * w.spec.slices + 4));
  }
  if (rows <= kFewRows)
    bytes += padded(units * columns * static_cast<size_t>(rows) * sizeof(float)) + ws.size() * 256;
  return bytes;
}

void CudaOps::products(std::span<const Matrix> ws, Product& p) {
  p.unit_span = 1;
  if (!status_.ok() || p.rows == 0) return;
  const Bits16* const given = p.x;
  const int64_t given_ld = p.ldx;
  const Bits16* padded_x = nullptr;
  int32_t column = 0;
  for (size_t i = 0; i < ws.size();) {
    const MatrixSpec& spec = ws[i].spec;
    if (spec.n == 0) {  // this rank has no part of it
      ++i;
      continue;
    }
    if (spec.format == MatrixFormat::kF32) {
      p.x = given;
      p.ldx = given_ld;
      product_f32(ws[i], p, column);
      column += spec.n;
      ++i;
      continue;
    }
    // Neighbours of one format go together.
    size_t end = i + 1;
    while (end < ws.size() && end - i < kMaxJoined && ws[end].spec.n > 0 &&
           ws[end].spec.format == spec.format && kind_of(ws[end].spec) == kind_of(spec)) {
      ++end;
    }
    const bool exl3 = spec.format == MatrixFormat::kExl3;
    if (!exl3 && p.io == nullptr && needs_padding(spec.k, given_ld)) {
      if (padded_x == nullptr) padded_x = pad(given, given_ld, spec.k, p.rows);
      p.x = padded_x;
      p.ldx = padded_k(spec.k);
    } else {
      p.x = given;
      p.ldx = given_ld;
    }
    const MatmulKernels& k = kernels_of(spec);
    const bool few = p.rows <= kFewRows && k.few1.function != nullptr;
    int32_t span = few || p.unit_sums ? unit_span_of(spec, p) : 1;
    if (p.fold) {
      span = 0;
      for (int32_t s = 0, begin = 0; s < p.slices; begin = p.slice_end[s++])
        span += (p.slice_end[s] - begin + kUnit - 1) / kUnit;
    }
    bool by_unit = few && span > 1 && (exl3 || p.unit_sums);
    // Few units: more channels a block, so that no warp is idle.
    int32_t split = exl3 || by_unit || span < 2 ? 8 : span < 4 ? 4 : span < 8 ? 2 : 1;
    // Folded, the units of a block meet at once.
    if (p.fold) split = span > 4 ? 1 : span > 2 ? 2 : span > 1 ? 4 : 8;
    const auto slices = static_cast<unsigned>(p.fold         ? 1
                                              : p.neighbours ? (p.slices + 1) / 2
                                                             : std::max(1, p.slices));
    // Large narrowed matrices are bound by decoding: two tiles a warp share the inputs. The same sums in the
    // same order.
    int64_t two_tile_blocks = 0;
    for (size_t j = i; j < end; ++j)
      two_tile_blocks += blocks_of(ws[j].spec.n, 2 * kTileN * std::min(split, 4));
    const bool two = few && p.rows <= 8 && k.few1_two.function != nullptr &&
                     two_tile_blocks * slices >= 2 * device_->info().multiprocessors;
    const bool ring =
        !two && p.rows <= 8 && k.ring.function != nullptr && (by_unit || span <= kRingMostUnits);
    const bool wide =
        two || (few && p.rows > 8 && !exl3);  // two tiles a warp share the inputs of up to 32 rows
    if (wide) split = std::min(split, 4);
    // Larger tiles only where there are enough of them for every multiprocessor.
    int64_t tiles = 0;
    for (size_t j = i; j < end && k.large_channels > 0; ++j)
      tiles += blocks_of(ws[j].spec.n, k.large_channels);
    const bool large = !few && large_fits(k, tiles, p.rows, slices);
    // Narrow products of prompts: too few tiles to fill the GPU, unless each unit is a block's.
    if (!few && p.unit_sums && !exl3 && span > 1) {
      by_unit = blocks_of(spec.n, kBlockN) * blocks_of(p.rows, kRowsPerTile) * slices <
                static_cast<unsigned>(device_->info().multiprocessors);
    }
    const int32_t channels = ring    ? kTileN
                             : few   ? kTileN * split * (wide ? 2 : 1)
                             : large ? k.large_channels
                                     : kBlockN;
    MatmulParams q{};
    q.x = p.x;
    q.ldx = p.ldx;
    q.y = p.y;
    q.ldy = p.ldy;
    q.rows = p.rows;
    q.out_f32 = p.f32;
    q.kind = kind_of(spec);
    q.joined = static_cast<int32_t>(end - i);
    q.split = split;
    copy_slices(q, p);
    q.fold = p.fold;
    if (p.io != nullptr) {
      q.apart = 1;
      std::copy(p.io + i, p.io + end, q.io);
    }
    int32_t blocks = 0;
    const int32_t column0 = column;
    for (size_t j = i; j < end; ++j) {
      MatrixRef& r = q.parts[j - i];
      r = ref_of(ws[j]);
      r.column = column;
      r.block_begin = blocks;
      column += r.n;
      blocks += (r.n + channels - 1) / channels;
    }
    const int32_t width = column - column0;
    if (exl3) {
      // Every matrix has its own input signs and scales.
      Bits16* rotated = take<Bits16>(static_cast<size_t>(end - i) * static_cast<size_t>(p.rows) *
                                     static_cast<size_t>(spec.k));
      for (size_t j = i; j < end; ++j) {
        RotateParams r{};
        r.x = p.x;
        r.y = rotated + static_cast<int64_t>(j - i) * p.rows * spec.k;
        r.ldx = p.ldx;
        r.ldy = spec.k;
        r.k = spec.k;
        r.rows = p.rows;
        r.suh = q.parts[j - i].suh;
        run(kernels_.rotate, {{blocks_of(spec.k, 1024), static_cast<unsigned>(p.rows)}, 256}, r);
      }
      q.x = rotated;
      q.ldx = spec.k;
      q.x_part_stride = p.rows;
    }
    if (!few) {
      q.rows_inner = 1;  // the rows stay in L2 while the weights pass once
      if (by_unit) q.unit_span = p.unit_span = span;
      const unsigned row_blocks = blocks_of(p.rows, large ? k.large_rows : kRowsPerTile);
      if (p.neighbours) {
        q.stash =
            take<float>(size_t{row_blocks} * static_cast<size_t>(blocks) * slices * kWideRows * kBlockN);
      }
      run(large ? k.large : k.many,
          {{row_blocks, static_cast<unsigned>(blocks),
            slices * static_cast<unsigned>(std::max(1, q.unit_span))},
           256,
           large ? k.large_shared : k.many_shared},
          q);
      i = end;
      continue;
    }
    float* sums = nullptr;
    if (by_unit) {
      q.unit_span = span;
      if (exl3) {
        q.raw = 1;
        sums = take<float>(slices * static_cast<size_t>(span) * static_cast<size_t>(p.rows) *
                           static_cast<size_t>(width));
        q.y = sums;
        q.out_f32 = 1;
        q.ldy = width;
        q.column_shift = column0;
        q.slice_stride = static_cast<int64_t>(p.rows) * width;
      } else {
        p.unit_span = span;
      }
    }
    const unsigned parts = by_unit ? slices * static_cast<unsigned>(span) : slices;
    if (ring) {
      run_ring(k, q, blocks, by_unit ? 1 : span, parts);
      i = end;
      continue;
    }
    const bool one = p.rows <= 8;
    run(two   ? k.few1_two
        : one ? k.few1
              : k.few4,
        {{static_cast<unsigned>(blocks), 1, parts},
         256,
         two   ? k.few1_two_shared
         : one ? k.few1_shared
               : k.few4_shared},
        q);
    if (sums != nullptr) {
      FinishParams f{};
      f.sums = sums;
      f.y = p.y;
      f.unit_stride = q.slice_stride;
      f.ld = width;
      f.ldy = p.ldy;
      f.slice_stride = p.slice_stride;
      f.rows = p.rows;
      f.slices = static_cast<int32_t>(slices);
      f.unit_span = span;
      f.out_f32 = p.f32;
      f.joined = q.joined;
      f.blocks = blocks;
      f.column0 = column0;
      std::copy_n(q.parts, q.joined, f.parts);
      run(kernels_.exl3_finish, {{blocks_of(blocks, 8), static_cast<unsigned>(p.rows), slices}, 256}, f);
    }
    i = end;
  }
}

}  // namespace firesteel::cuda
