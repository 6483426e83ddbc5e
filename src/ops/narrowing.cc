#include "ops/narrowing.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

#include "base/check.h"

namespace firesteel {
namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;  // one read

Status narrow(const MatrixSpec& spec, const std::byte* stored, NarrowedRow& row) {
  const auto k = static_cast<size_t>(spec.k);
  if (spec.format == MatrixFormat::kF32) {
    std::memcpy(row.wide.data(), stored, k * sizeof(float));
  } else {
    for (size_t c = 0; c < k; ++c) {
      uint16_t bits;
      std::memcpy(&bits, stored + 2 * c, 2);
      row.wide[c] = bf16_to_f32(bits);
    }
  }
  return spec.keep == MatrixKeep::kQ4
             ? q4_from_row(row.wide.data(), spec.k, row.codes.data(), row.q4.data())
             : fp8_from_row(row.wide.data(), spec.k, row.codes.data(), row.fp8.data());
}

}  // namespace

Status check_keep(const MatrixSpec& s) {
  const bool plain = s.format == MatrixFormat::kBf16 || s.format == MatrixFormat::kF32;
  const char* wrong = s.format == MatrixFormat::kFp8Rows || s.format == MatrixFormat::kQ4
                          ? "no checkpoint holds matrices in this format"
                      : is_narrowed(s) && !plain ? "only bf16 and fp32 matrices can be narrowed"
                      : s.keep == MatrixKeep::kQ4 && s.k % kQ4Group != 0
                          ? "4-bit matrices need a multiple of 64 columns"
                      : s.keep == MatrixKeep::kDecoded && s.format != MatrixFormat::kExl3
                          ? "only EXL3 matrices can be decoded"
                          : nullptr;
  if (wrong == nullptr) return Status::success();
  return Error{ErrorCode::kUnsupported, wrong};
}

Status narrow_rows(const MatrixSpec& spec, MatrixSource& source, ThreadPool& pool, int64_t together,
                   const std::function<void(int64_t row, const NarrowedRow&)>& use,
                   const std::function<Status(int64_t first, int64_t count)>& piece_done) {
  CHECK(is_narrowed(spec) && together > 0);
  const auto k = static_cast<size_t>(spec.k);
  const size_t row_bytes = k * (spec.format == MatrixFormat::kF32 ? 4 : 2);
  const int64_t fit =
      std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes / row_bytes) / together) * together;
  std::vector<std::byte> buffer(static_cast<size_t>(std::min<int64_t>(fit, spec.n)) * row_bytes);
  std::vector<NarrowedRow> rows(static_cast<size_t>(pool.size()));
  for (NarrowedRow& r : rows) {
    r.wide.resize(k);
    r.codes.resize(k);
    r.q4.resize(k / kQ4Group + 1);
    r.fp8.resize(k / kFp8Group + 1);
  }
  for (int64_t first = 0; first < spec.n; first += fit) {
    const int64_t count = std::min<int64_t>(fit, spec.n - first);
    RETURN_IF_ERROR(source.read_rows(MatrixPart::kWeight, first, count, buffer.data()));
    std::mutex mutex;
    int64_t failed_row = spec.n;
    Status failed;
    pool.parallel_for((count + together - 1) / together, [&](int64_t block, int worker) {
      NarrowedRow& row = rows[static_cast<size_t>(worker)];
      for (int64_t i = block * together; i < std::min(count, (block + 1) * together); ++i) {
        Status done = narrow(spec, buffer.data() + static_cast<size_t>(i) * row_bytes, row);
        if (done.ok()) {
          use(first + i, row);
          continue;
        }
        const std::lock_guard lock(mutex);
        if (first + i >= failed_row) return;
        failed_row = first + i;
        failed = std::move(done);
        return;
      }
    });
    if (!failed.ok()) {
      return Error{failed.error().code, "row " + std::to_string(failed_row) + ", " + failed.error().message};
    }
    if (piece_done) RETURN_IF_ERROR(piece_done(first, count));
  }
  return Status::success();
}

}  // namespace firesteel
