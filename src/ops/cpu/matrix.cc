#include "ops/cpu/matrix.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "ops/cpu/vec.h"
#include "ops/narrowing.h"
#include "quant/exl3.h"
#include "quant/hadamard.h"
#include "tensor/dtype.h"

namespace firesteel::cpu {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kLoadBytes = size_t{4} << 20;  // one read

size_t align_up(size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }
int32_t blocks(int32_t n) { return (n + kScaleBlock - 1) / kScaleBlock; }

size_t element_bytes(MatrixFormat format) {
  switch (format) {
    case MatrixFormat::kF32:
      return 4;
    case MatrixFormat::kFp8Block:
      return 1;
    case MatrixFormat::kBf16:
    case MatrixFormat::kExl3:
      return 2;
    case MatrixFormat::kFp8Rows:
    case MatrixFormat::kQ4:
      break;  // kept as bf16
  }
  return 0;
}

struct Layout {
  size_t scale = 0, suh = 0, svh = 0, bytes = 0;
};
Layout layout(const MatrixSpec& s) {
  Layout l;
  l.bytes = align_up(size_t(s.n) * size_t(s.k) * element_bytes(s.format));
  if (s.format == MatrixFormat::kFp8Block) {
    l.scale = l.bytes;
    l.bytes += align_up(size_t(blocks(s.n)) * size_t(blocks(s.k)) * 4);
  } else if (s.format == MatrixFormat::kExl3) {
    l.suh = l.bytes;
    l.svh = l.suh + align_up(size_t(s.k) * 4);
    l.bytes = l.svh + align_up(size_t(s.n) * 4);
  }
  return l;
}

Error too_odd(const MatrixSpec& s, const char* why) {
  return Error{ErrorCode::kUnsupported, "a matrix of " + std::to_string(s.n) + " by " + std::to_string(s.k) +
                                            " is not supported: " + why};
}

/// Reads `rows` rows of `row_bytes` each in bounded pieces and hands each piece to use(first, count, bytes).
template <typename Use>
Status read_pieces(MatrixSource& source, MatrixPart part, int64_t rows, size_t row_bytes,
                   std::vector<std::byte>& buffer, Use&& use) {
  const int64_t fit = std::max<int64_t>(1, static_cast<int64_t>(kLoadBytes / row_bytes));
  buffer.resize(static_cast<size_t>(std::min(fit, rows)) * row_bytes);
  for (int64_t first = 0; first < rows; first += fit) {
    const int64_t count = std::min(fit, rows - first);
    RETURN_IF_ERROR(source.read_rows(part, first, count, buffer.data()));
    use(first, count, buffer.data());
  }
  return Status::success();
}

/// Reads fp16 vectors as fp32.
Status read_scales(MatrixSource& source, MatrixPart part, int32_t n, float* dst,
                   std::vector<std::byte>& buffer) {
  return read_pieces(source, part, n, 2, buffer, [&](int64_t first, int64_t count, const std::byte* bytes) {
    for (int64_t i = 0; i < count; ++i) {
      uint16_t h;
      std::memcpy(&h, bytes + i * 2, 2);
      dst[first + i] = f16_to_f32(h);
    }
  });
}

/// The inner matrix transposed to [n, k] as fp16 bits, columns of tiles in parallel.
Status read_trellis(const MatrixSpec& spec, MatrixSource& source, uint16_t* dst, ThreadPool& pool,
                    std::vector<std::byte>& buffer) {
  constexpr int64_t kTiles = 4;  // columns of tiles of one task
  const int64_t tiles_n = spec.n / kExl3Tile;
  const size_t row_bytes = static_cast<size_t>(tiles_n * kExl3Tile * 2) * spec.bits;
  return read_pieces(source, MatrixPart::kWeight, spec.k / kExl3Tile, row_bytes, buffer,
                     [&](int64_t first, int64_t count, const std::byte* bytes) {
                       const Exl3Trellis piece{reinterpret_cast<const uint16_t*>(bytes), count * kExl3Tile,
                                               spec.n, spec.bits, spec.codebook};
                       pool.parallel_for((tiles_n + kTiles - 1) / kTiles, [&](int64_t t, int) {
                         const int64_t from = t * kTiles, to = std::min(tiles_n, from + kTiles);
                         exl3_decode_transposed(piece, {0, count, from, to},
                                                dst + from * kExl3Tile * spec.k + first * kExl3Tile, spec.k);
                       });
                     });
}

/// Turns the inner matrix [n, k] into the matrix itself, in the order of exl3_dense (the same bits,
/// transposed).
void unrotate(float* w, int32_t n, int32_t k, const float* suh, const float* svh, ThreadPool& pool) {
  pool.parallel_for(n / kHadamard, [&](int64_t b, int) {
    float* rows = w + b * kHadamard * k;
    for (int64_t r = 0; r < kHadamard; ++r) {
      hadamard_blocks(rows + r * k, k);
      for (int64_t c = 0; c < k; ++c) rows[r * k + c] *= suh[c];
    }
    hadamard_128_columns(rows, k, k);
    for (int64_t r = 0; r < kHadamard; ++r) {
      for (int64_t c = 0; c < k; ++c) rows[r * k + c] *= svh[b * kHadamard + r];
    }
  });
}

/// Each row narrowed and at once read back: the bf16 matrix that the narrowed one is.
Status load_narrowed(const MatrixSpec& spec, MatrixSource& source, uint16_t* dst, ThreadPool& pool) {
  const auto read_back = [&](int64_t row, const NarrowedRow& from) {
    uint16_t* to = dst + row * spec.k;
    for (int64_t c = 0; c < spec.k; ++c) {
      to[c] = spec.keep == MatrixKeep::kQ4 ? q4_value(from.codes[c], from.q4[c / kQ4Group])
                                           : fp8_value(from.codes[c], from.fp8[c / kFp8Group]);
    }
  };
  return narrow_rows(spec, source, pool, 1, read_back, nullptr);
}

Result<Matrix> load(const MatrixSpec& spec, MatrixSource& source, std::byte* dst, ThreadPool& pool) {
  std::vector<std::byte> buffer;
  Matrix m{loaded_spec(spec), dst};
  if (is_narrowed(spec)) {
    RETURN_IF_ERROR(load_narrowed(spec, source, reinterpret_cast<uint16_t*>(dst), pool));
    return m;
  }
  const size_t row_bytes = size_t(spec.k) * element_bytes(spec.format);
  if (spec.format != MatrixFormat::kExl3) {
    const int64_t fit = std::max<int64_t>(1, static_cast<int64_t>(kLoadBytes / row_bytes));
    for (int64_t first = 0; first < spec.n; first += fit) {  // the stored form is ours: no copy between
      RETURN_IF_ERROR(source.read_rows(MatrixPart::kWeight, first, std::min<int64_t>(fit, spec.n - first),
                                       dst + static_cast<size_t>(first) * row_bytes));
    }
    if (spec.format == MatrixFormat::kFp8Block) {
      RETURN_IF_ERROR(source.read_rows(MatrixPart::kScale, 0, blocks(spec.n), dst + layout(spec).scale));
    }
    return m;
  }
  if (spec.keep != MatrixKeep::kDecoded) {
    const Layout at = layout(spec);
    RETURN_IF_ERROR(
        read_scales(source, MatrixPart::kSuh, spec.k, reinterpret_cast<float*>(dst + at.suh), buffer));
    RETURN_IF_ERROR(
        read_scales(source, MatrixPart::kSvh, spec.n, reinterpret_cast<float*>(dst + at.svh), buffer));
    RETURN_IF_ERROR(read_trellis(spec, source, reinterpret_cast<uint16_t*>(dst), pool, buffer));
    return m;
  }
  std::vector<float> suh(static_cast<size_t>(spec.k)), svh(static_cast<size_t>(spec.n));
  RETURN_IF_ERROR(read_scales(source, MatrixPart::kSuh, spec.k, suh.data(), buffer));
  RETURN_IF_ERROR(read_scales(source, MatrixPart::kSvh, spec.n, svh.data(), buffer));
  // The fp16 codes fill the lower half of dst, then widen in place from the last row down.
  auto* half = reinterpret_cast<uint16_t*>(dst);
  RETURN_IF_ERROR(read_trellis(spec, source, half, pool, buffer));
  auto* wide = reinterpret_cast<float*>(dst);
  for (int64_t i = int64_t{spec.n} * spec.k - 1; i >= 0; --i) {
    uint16_t h;
    std::memcpy(&h, half + i, 2);
    const float f = f16_to_f32(h);
    std::memcpy(wide + i, &f, 4);
  }
  unrotate(wide, spec.n, spec.k, suh.data(), svh.data(), pool);
  return m;
}

}  // namespace

MatrixSpec loaded_spec(const MatrixSpec& spec) {
  MatrixSpec s = spec;
  if (spec.keep == MatrixKeep::kDecoded && spec.format == MatrixFormat::kExl3) {
    s.format = MatrixFormat::kF32;
    s.bits = 0;
  }
  if (is_narrowed(spec)) s.format = MatrixFormat::kBf16;
  s.keep = MatrixKeep::kStored;
  return s;
}

size_t matrix_bytes(const MatrixSpec& spec) { return layout(loaded_spec(spec)).bytes; }

Status check_spec(const MatrixSpec& s) {
  if (s.n < 1 || s.k < 1) return too_odd(s, "it is empty");
  if (s.k > kMaxK) return too_odd(s, "more than 262144 columns");
  if (s.format == MatrixFormat::kExl3) {
    if (s.n % kHadamard != 0 || s.k % kHadamard != 0) return too_odd(s, "EXL3 needs multiples of 128");
    if (s.bits < 1 || s.bits > 8) return too_odd(s, "EXL3 has 1 to 8 bits");
  }
  RETURN_IF_ERROR(check_keep(s));
  if (s.slices != 1) {
    if (s.slices != 2 && s.slices != 4) return too_odd(s, "it must have 1, 2 or 4 slices");
    int32_t last = 0;
    for (int32_t i = 0; i < s.slices; ++i) {
      const int32_t end = s.slice_end[i];
      if (end < last || end > s.k || (end % kHadamard != 0 && end != s.k))
        return too_odd(s, "slices out of order");
      last = end;
    }
    if (last != s.k) return too_odd(s, "its slices do not end at its last column");
  }
  return Status::success();
}

Result<Matrix> load_matrix(const MatrixSpec& spec, MatrixSource& source, std::byte* dst, ThreadPool& pool) {
  RETURN_IF_ERROR(check_spec(spec));
  try {
    return load(spec, source, dst, pool);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kOutOfMemory, "no memory for the buffer that weights are read through"};
  }
}

MatrixView view(const Matrix& m) {
  const auto* data = static_cast<const std::byte*>(m.data);
  const Layout at = layout(m.spec);
  MatrixView v{m.spec.format, m.spec.n, m.spec.k, data};
  if (m.spec.format == MatrixFormat::kFp8Block) v.scale = reinterpret_cast<const float*>(data + at.scale);
  if (m.spec.format == MatrixFormat::kExl3) {
    v.suh = reinterpret_cast<const float*>(data + at.suh);
    v.svh = reinterpret_cast<const float*>(data + at.svh);
  }
  return v;
}

}  // namespace firesteel::cpu
