#include "model/matrix_source.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace firesteel {
namespace {

/// Copies columns [col, col + cols) (bytes) of rows [row, row + count) of a row-major tensor with `stride`
/// bytes a row.
Status read_block(const TensorRef& t, uint64_t row, uint64_t count, uint64_t stride, uint64_t col,
                  uint64_t cols, void* dst) {
  if (cols == stride) return t.file->read(*t.info, row * stride, count * stride, dst);
  auto* out = static_cast<std::byte*>(dst);
  for (uint64_t i = 0; i < count; ++i) {
    RETURN_IF_ERROR(t.file->read(*t.info, (row + i) * stride + col, cols, out + i * cols));
  }
  return Status::success();
}

/// fp16 scales of channels [first, first + count); packed signs (bit set = -1) become ±1.
Status read_scales(const TensorRef& t, uint64_t first, uint64_t count, void* dst) {
  if (t.info->dtype == DType::kF16) return t.file->read(*t.info, first * 2, count * 2, dst);
  constexpr uint16_t kOne = 0x3C00, kMinusOne = 0xBC00;
  const uint64_t first_word = first / 16, words = (first + count + 15) / 16 - first_word;
  std::vector<uint16_t> packed(words);
  RETURN_IF_ERROR(t.file->read(*t.info, first_word * 2, words * 2, packed.data()));
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t channel = first + i - first_word * 16;
    const uint16_t value = (packed[channel / 16] >> (channel % 16) & 1) != 0 ? kMinusOne : kOne;
    std::memcpy(static_cast<std::byte*>(dst) + i * 2, &value, 2);
  }
  return Status::success();
}

}  // namespace

Status FileMatrixSource::read_rows(MatrixPart part, int64_t first, int64_t count, void* dst) {
  CHECK(first >= 0 && count >= 0);
  const auto u = [](int64_t v) { return static_cast<uint64_t>(v); };
  const Range rows = ref_.rows, cols = ref_.cols;
  const bool exl3 = ref_.spec.format == MatrixFormat::kExl3;
  switch (part) {
    case MatrixPart::kWeight:
      if (exl3) {
        CHECK(first + count <= cols.size() / 16);
        const uint64_t tile = 32ull * ref_.spec.bits;
        return read_block(ref_.weight, u(cols.begin / 16 + first), u(count), u(ref_.full_n / 16) * tile,
                          u(rows.begin / 16) * tile, u(rows.size() / 16) * tile, dst);
      } else {
        CHECK(first + count <= rows.size());
        const uint64_t size = dtype_size(ref_.weight.info->dtype);
        return read_block(ref_.weight, u(rows.begin + first), u(count), u(ref_.full_k) * size,
                          u(cols.begin) * size, u(cols.size()) * size, dst);
      }
    case MatrixPart::kScale: {
      CHECK(ref_.scale);
      const int32_t first_row = rows.begin / 128, end_row = (rows.end + 127) / 128;
      const int32_t first_col = cols.begin / 128, end_col = (cols.end + 127) / 128;
      CHECK(first + count <= end_row - first_row);
      return read_block(ref_.scale, u(first_row + first), u(count), u((ref_.full_k + 127) / 128) * 4,
                        u(first_col) * 4, u(end_col - first_col) * 4, dst);
    }
    case MatrixPart::kSuh:
      CHECK(exl3 && first + count <= cols.size());
      return read_scales(ref_.suh, u(cols.begin + first), u(count), dst);
    case MatrixPart::kSvh:
      CHECK(exl3 && first + count <= rows.size());
      return read_scales(ref_.svh, u(rows.begin + first), u(count), dst);
  }
  return Error{ErrorCode::kInternal, "unknown matrix part"};
}

Status read_vector(const VectorRef& ref, float* dst) {
  std::vector<std::byte> raw;
  for (const VectorRef::Piece& piece : ref.pieces) {
    const DType type = piece.tensor.info->dtype;
    const auto count = static_cast<size_t>(piece.count);
    if (count == 0) continue;  // a rank without heads
    const size_t size = dtype_size(type);
    raw.resize(count * size);
    RETURN_IF_ERROR(piece.tensor.file->read(*piece.tensor.info, static_cast<uint64_t>(piece.first) * size,
                                            raw.size(), raw.data()));
    if (type == DType::kF32) {
      std::memcpy(dst, raw.data(), raw.size());
    } else {
      for (size_t i = 0; i < count; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, raw.data() + i * 2, 2);
        dst[i] = type == DType::kBf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
      }
    }
    dst += count;
  }
  return Status::success();
}

Result<bool> same_suh(const std::vector<const MatrixRef*>& matrices) {
  std::vector<uint16_t> first, other;
  for (const MatrixRef* m : matrices) {
    if (m->spec.format != MatrixFormat::kExl3 || m->empty()) return false;
    std::vector<uint16_t>& suh = m == matrices.front() ? first : other;
    suh.resize(static_cast<size_t>(m->spec.k));
    RETURN_IF_ERROR(FileMatrixSource(*m).read_rows(MatrixPart::kSuh, 0, m->spec.k, suh.data()));
    if (m != matrices.front() && other != first) return false;
  }
  return !matrices.empty();
}

}  // namespace firesteel
