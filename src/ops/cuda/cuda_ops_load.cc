// Loading weights into the packed layouts of the CUDA backend, by several threads at once.
#include <algorithm>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "ops/cuda/cuda_ops_impl.h"
#include "ops/narrowing.h"
#include "tensor/dtype.h"

namespace firesteel::cuda {

namespace {

constexpr size_t kLoadingBytes = size_t{16} << 20;  // page-locked, of a thread
constexpr int kMostLoadThreads = 16;
constexpr int32_t kMaxNarrowedK =
    1 << 20;  // a tile row and what it is read from are far from filling the buffer

}  // namespace

Result<LoadingPool::Lease> LoadingPool::take(const gpu::Device& device) {
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Loading> loading = std::move(idle_.back());
      idle_.pop_back();
      return Lease(*this, std::move(loading));
    }
  }
  auto loading = std::make_unique<Loading>();
  ASSIGN_OR_RETURN(loading->stream, device.stream());
  ASSIGN_OR_RETURN(loading->staging, device.allocate_pinned(kLoadingBytes, "a loading buffer"));
  return Lease(*this, std::move(loading));
}

void LoadingPool::give_back(std::unique_ptr<Loading> loading) {
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(loading));
}

void LoadingPool::clear() {
  std::lock_guard lock(mutex_);
  idle_.clear();
}

int CudaOps::load_threads() const {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostLoadThreads);
}

Result<Matrix> CudaOps::load_matrix(const MatrixSpec& spec, MatrixSource& source, std::byte* dst) {
  RETURN_IF_ERROR(device_->make_current());
  ASSIGN_OR_RETURN(const LoadingPool::Lease lease, loadings_.take(*device_));
  Loading& at = *lease;
  if (spec.n < 1 || spec.k < 1) return Error{ErrorCode::kUnsupported, "a matrix is empty"};
  if (spec.format == MatrixFormat::kExl3 &&
      (spec.n % 128 != 0 || spec.k % 128 != 0 || spec.bits < 1 || spec.bits > 8)) {
    return Error{ErrorCode::kUnsupported,
                 "EXL3 matrices need 1 to 8 bits and sides that are multiples of 128, not " +
                     std::to_string(spec.n) + " by " + std::to_string(spec.k)};
  }
  RETURN_IF_ERROR(check_keep(spec));
  if (is_narrowed(spec)) {
    RETURN_IF_ERROR(load_narrowed(spec, source, dst, at));
  } else if (spec.keep == MatrixKeep::kDecoded) {
    RETURN_IF_ERROR(load_decoded(spec, source, dst, at));
  } else if (spec.format == MatrixFormat::kExl3) {
    RETURN_IF_ERROR(load_exl3(spec, source, dst, at));
  } else {
    RETURN_IF_ERROR(load_packed(spec, source, dst, at));
  }
  return Matrix{loaded_spec(spec), dst};
}

Status CudaOps::load_narrowed(const MatrixSpec& spec, MatrixSource& source, std::byte* dst, Loading& at) {
  const size_t tile_bytes = packed_tile_bytes(spec);
  const int32_t tiles = (spec.n + kTileN - 1) / kTileN;
  if (spec.k > kMaxNarrowedK) return Error{ErrorCode::kUnsupported, "a narrowed matrix has too many columns"};
  // Several matrices come at once: this one takes its share of the threads.
  const auto threads = static_cast<int32_t>(std::thread::hardware_concurrency());
  ThreadPool pool(std::clamp(threads / load_threads(), 1, tiles));
  int64_t piece = 0;  // first row of the piece in the staging memory
  const auto pack = [&](int64_t row, const NarrowedRow& from) {
    const auto in_tile = static_cast<int32_t>(row % kTileN);
    std::byte* tile = at.staging.data() + static_cast<size_t>((row - piece) / kTileN) * tile_bytes;
    if (in_tile == 0) std::memset(tile, 0, tile_bytes);
    if (spec.keep == MatrixKeep::kQ4) {
      pack_q4_row(from.codes.data(), from.q4.data(), in_tile, spec.k, tile);
    } else {
      pack_fp8_row(from.codes.data(), from.fp8.data(), in_tile, spec.k, tile);
    }
  };
  const auto upload_piece = [&](int64_t first, int64_t count) -> Status {
    const size_t bytes = static_cast<size_t>((count + kTileN - 1) / kTileN) * tile_bytes;
    CHECK(bytes <= at.staging.size());
    RETURN_IF_ERROR(device_->to_device(at.stream, dst + static_cast<size_t>(first / kTileN) * tile_bytes,
                                       at.staging.data(), bytes));
    piece = first + count;
    return at.stream.synchronize();  // the staging memory is free again
  };
  RETURN_IF_ERROR(at.stream.synchronize());
  return narrow_rows(spec, source, pool, kTileN, pack, upload_piece);
}

Status CudaOps::load_packed(const MatrixSpec& spec, MatrixSource& source, std::byte* dst, Loading& at) {
  const size_t element = spec.format == MatrixFormat::kF32 ? 4 : spec.format == MatrixFormat::kBf16 ? 2 : 1;
  const size_t row_bytes = static_cast<size_t>(spec.k) * element, tile_bytes = packed_tile_bytes(spec);
  const int32_t tiles = (spec.n + kTileN - 1) / kTileN;
  const int32_t fit = static_cast<int32_t>(std::max<size_t>(1, at.staging.size() / tile_bytes));
  CHECK(tile_bytes <= at.staging.size());
  std::vector<std::byte>& raw = at.raw;
  raw.resize(row_bytes * kTileN);
  for (int32_t first = 0; first < tiles; first += fit) {
    const int32_t count = std::min(fit, tiles - first);
    RETURN_IF_ERROR(at.stream.synchronize());  // the staging memory is free again
    size_t bytes = 0;
    for (int32_t t = 0; t < count; ++t) {
      const int32_t row = (first + t) * kTileN, rows = std::min(kTileN, spec.n - row);
      std::byte* to = at.staging.data() + static_cast<size_t>(t) * tile_bytes;
      if (spec.format == MatrixFormat::kF32) {
        RETURN_IF_ERROR(source.read_rows(MatrixPart::kWeight, row, rows, to));
        bytes += static_cast<size_t>(rows) * row_bytes;
        continue;
      }
      RETURN_IF_ERROR(source.read_rows(MatrixPart::kWeight, row, rows, raw.data()));
      if (spec.format == MatrixFormat::kBf16) {
        pack_bf16_tile(reinterpret_cast<const uint16_t*>(raw.data()), rows, spec.k, to);
      } else {
        pack_fp8_tile(reinterpret_cast<const uint8_t*>(raw.data()), rows, spec.k, to);
      }
      bytes += tile_bytes;
    }
    RETURN_IF_ERROR(device_->to_device(at.stream, dst + static_cast<size_t>(first) * tile_bytes,
                                       at.staging.data(), bytes));
  }
  RETURN_IF_ERROR(at.stream.synchronize());
  if (spec.format == MatrixFormat::kFp8Block) {
    const int32_t rows = (spec.n + 127) / 128, columns = (spec.k + 127) / 128;
    std::vector<float> scale(static_cast<size_t>(rows) * static_cast<size_t>(columns));
    RETURN_IF_ERROR(source.read_rows(MatrixPart::kScale, 0, rows, scale.data()));
    RETURN_IF_ERROR(
        device_->to_device(at.stream, dst + packed_layout(spec).scale, scale.data(), scale.size() * 4));
    RETURN_IF_ERROR(at.stream.synchronize());
  }
  return {};
}

Status CudaOps::load_exl3(const MatrixSpec& spec, MatrixSource& source, std::byte* dst, Loading& at) {
  const PackedLayout layout = packed_layout(spec);
  const int32_t tiles_n = spec.n / 16, groups = spec.k / kGroupK;
  const size_t row_bytes = static_cast<size_t>(tiles_n) * 32 * spec.bits;
  const size_t bytes = packed_tile_bytes(spec) * static_cast<size_t>(tiles_n);
  // Rows of the checkpoint lie across tile rows: the whole matrix is packed before it goes.
  std::vector<std::byte> large;
  if (bytes > at.staging.size()) large.resize(bytes);
  std::byte* const packed = large.empty() ? at.staging.data() : large.data();
  at.raw.resize(4 * row_bytes);
  for (int32_t g = 0; g < groups; ++g) {
    RETURN_IF_ERROR(source.read_rows(MatrixPart::kWeight, int64_t{4} * g, 4, at.raw.data()));
    const std::byte* const rows[4] = {at.raw.data(), at.raw.data() + row_bytes, at.raw.data() + 2 * row_bytes,
                                      at.raw.data() + 3 * row_bytes};
    pack_exl3_group(rows, tiles_n, spec.bits, groups, g, packed);
  }
  RETURN_IF_ERROR(device_->to_device(at.stream, dst, packed, bytes));
  const auto vector = [&](MatrixPart part, int32_t count, size_t offset) -> Status {
    at.raw.resize(size_t{2} * static_cast<size_t>(count));
    RETURN_IF_ERROR(source.read_rows(part, 0, count, at.raw.data()));
    RETURN_IF_ERROR(device_->to_device(at.stream, dst + offset, at.raw.data(), at.raw.size()));
    return at.stream.synchronize();  // the memory is free again
  };
  RETURN_IF_ERROR(vector(MatrixPart::kSuh, spec.k, layout.suh));
  return vector(MatrixPart::kSvh, spec.n, layout.svh);
}

/// Decodes by the product kernel itself: W times unit vectors, a block of columns at a time.
Status CudaOps::load_decoded(const MatrixSpec& spec, MatrixSource& source, std::byte* dst, Loading& at) {
  std::lock_guard lock(decode_mutex_);  // it computes, which one thread may
  MatrixSpec plain = spec;
  plain.keep = MatrixKeep::kStored;
  plain.slices = 1;
  ASSIGN_OR_RETURN(gpu::Buffer trellis,
                   device_->allocate(packed_layout(plain).bytes, "an EXL3 matrix being decoded"));
  RETURN_IF_ERROR(load_exl3(plain, source, trellis.data(), at));
  const Matrix m{plain, trellis.data()};
  constexpr int32_t kColumns = 128;
  const size_t n = static_cast<size_t>(spec.n), k = static_cast<size_t>(spec.k);
  ASSIGN_OR_RETURN(gpu::Buffer unit, device_->allocate(kColumns * k * 2, "unit vectors"));
  ASSIGN_OR_RETURN(gpu::Buffer columns, device_->allocate(kColumns * n * 4, "decoded columns"));
  std::vector<uint16_t> ones(kColumns * k), whole(n * k);
  std::vector<float> y(kColumns * n);
  for (size_t c0 = 0; c0 < k; c0 += kColumns) {
    std::fill(ones.begin(), ones.end(), uint16_t{0});
    for (size_t i = 0; i < kColumns; ++i) ones[i * k + c0 + i] = 0x3f80;
    RETURN_IF_ERROR(device_->to_device(stream_, unit.data(), ones.data(), ones.size() * 2));
    Product p;
    p.x = reinterpret_cast<const Bits16*>(unit.data());
    p.ldx = spec.k;
    p.rows = kColumns;
    p.y = columns.data();
    p.ldy = spec.n;
    p.f32 = true;
    if (begin_scratch(product_bytes({&m, 1}, kColumns))) products({&m, 1}, p);
    RETURN_IF_ERROR(device_->to_host(stream_, y.data(), columns.data(), y.size() * 4));
    RETURN_IF_ERROR(finish());
    for (size_t i = 0; i < kColumns; ++i) {
      for (size_t r = 0; r < n; ++r) whole[r * k + c0 + i] = f32_to_bf16(y[i * n + r]);
    }
  }
  const size_t tile_bytes = packed_tile_bytes(spec);
  std::vector<std::byte> packed(n / 16 * tile_bytes);
  for (size_t t = 0; t < n / 16; ++t)
    pack_bf16_tile(whole.data() + t * 16 * k, 16, spec.k, packed.data() + t * tile_bytes);
  RETURN_IF_ERROR(device_->to_device(stream_, dst, packed.data(), packed.size()));
  return stream_.synchronize();
}

}  // namespace firesteel::cuda
