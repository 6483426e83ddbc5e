#include "ops/cuda/cuda_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/cuda/cuda_ops_impl.h"
#include "tensor/dtype.h"

namespace firesteel::cuda {

namespace {

constexpr size_t kStagingBytes = size_t{32} << 20;
constexpr size_t kTableBytes = size_t{4} << 20;  // expert tables of all layers
constexpr size_t kBoundBytes = size_t{4} << 20;  // of the batch tables; more is taken when a batch needs it
constexpr size_t kMinScratch = size_t{64} << 20;

}  // namespace

Result<std::unique_ptr<CudaOps>> CudaOps::make(int ordinal, KvFormat kv) {
  std::unique_ptr<CudaOps> ops(new CudaOps(kv));
  ASSIGN_OR_RETURN(ops->device_, gpu::Device::open(ordinal));
  ASSIGN_OR_RETURN(ops->stream_, ops->device_->stream());
  ASSIGN_OR_RETURN(ops->kernels_, load_kernels(*ops->device_));
  ASSIGN_OR_RETURN(ops->staging_, ops->device_->allocate_pinned(kStagingBytes, "the loading buffer"));
  ASSIGN_OR_RETURN(ops->bound_, ops->device_->allocate(kBoundBytes, "the batch tables"));
  ASSIGN_OR_RETURN(ops->tables_, ops->device_->allocate(kTableBytes, "the expert tables"));
  ASSIGN_OR_RETURN(ops->bound_copied_, ops->device_->event(false));
  return ops;
}

CudaOps::~CudaOps() {
  if (stream_.handle() != nullptr && !stream_.synchronize().ok()) {
    // A failed device has nothing left to wait for; its memory goes with the context.
    return;
  }
}

size_t CudaOps::kda_slot_bytes(const KdaWeights& w) const {
  const size_t wide = static_cast<size_t>(w.heads) * static_cast<size_t>(w.dim);
  const size_t history = padded(static_cast<size_t>(w.taps - 1) * 3 * wide * sizeof(Bits16));
  return history + padded(wide * static_cast<size_t>(w.dim) * sizeof(float));
}

size_t CudaOps::tail_slot_bytes(const IndexerWeights& w) const {
  return padded(size_t{2} * static_cast<size_t>(w.kpool) * static_cast<size_t>(w.dim) * sizeof(Bits16));
}

size_t CudaOps::scratch_bytes(int32_t rows) const {
  // The expert op's down slices come in passes that take at most 192 MiB; the rest grows with the rows: for
  // the published widths about 200 KiB a row at one of two ranks.
  constexpr size_t kFixed = size_t{288} << 20, kPerRow = size_t{256} << 10;
  return (rows > 64 ? kFixed : kMinScratch) + static_cast<size_t>(rows) * kPerRow;
}

Result<std::byte*> CudaOps::allocate(size_t bytes, std::string_view what) {
  RETURN_IF_ERROR(device_->make_current());
  ASSIGN_OR_RETURN(gpu::Buffer buffer, device_->allocate(bytes, what));
  owned_.push_back(std::move(buffer));
  return owned_.back().data();
}

void CudaOps::set_scratch(std::byte* scratch, size_t bytes) {
  scratch_ = scratch;
  scratch_bytes_ = bytes;
}

bool CudaOps::begin_scratch(size_t bytes) {
  if (!status_.ok()) return false;
  if (bytes > scratch_bytes_) {
    check(stream_.synchronize());  // nothing may still use what is replaced
    auto grown = device_->allocate(bytes + bytes / 4, "scratch");
    if (!grown.ok()) {
      check(grown.error());
      return false;
    }
    own_scratch_ = std::move(grown).value();
    scratch_ = own_scratch_.data();
    scratch_bytes_ = own_scratch_.size();
  }
  scratch_at_ = scratch_;
  return status_.ok();
}

uint64_t CudaOps::own_memory() const {
  // Memory that the GPU shares with the machine is counted by the machine.
  if (device_->info().integrated) return 0;
  const auto memory = device_->memory();
  if (!memory.ok()) return 1;  // nothing can be planned on it
  const uint64_t reserve = std::max<uint64_t>(memory->total / 64, 512ull << 20);
  return memory->free > reserve ? memory->free - reserve : 1;
}

void CudaOps::upload(void* dst, const void* host, size_t bytes) {
  check(device_->make_current());
  check(device_->to_device(stream_, dst, host, bytes));
  check(stream_.synchronize());
}
void CudaOps::download(void* host, const void* src, size_t bytes) {
  check(device_->make_current());
  check(device_->to_host(stream_, host, src, bytes));
  check(stream_.synchronize());
}
void CudaOps::zero(void* dst, size_t bytes) {
  check(device_->make_current());
  check(device_->fill(stream_, dst, 0, bytes));
  check(stream_.synchronize());
}
void CudaOps::copy(void* dst, const void* src, size_t bytes) {
  check(device_->make_current());
  check(device_->on_device(stream_, dst, src, bytes));
  check(stream_.synchronize());
}

void CudaOps::download_act(float* host, const Act* src, size_t count) {
  check(device_->make_current());
  if (count == 0 || !begin_scratch(count * sizeof(float))) return;
  ConvertParams p{};
  p.src = src;
  p.dst = take<float>(count);
  p.count = static_cast<int64_t>(count);
  p.to_f32 = 1;
  run(kernels_.convert, {{blocks_of(p.count, 256)}, 256}, p);
  download(host, p.dst, count * sizeof(float));
}

void CudaOps::upload_act(Act* dst, const float* host, size_t count) {
  check(device_->make_current());
  if (count == 0 || !begin_scratch(count * sizeof(float))) return;
  ConvertParams p{};
  float* wide = take<float>(count);
  upload(wide, host, count * sizeof(float));
  p.src = wide;
  p.dst = dst;
  p.count = static_cast<int64_t>(count);
  run(kernels_.convert, {{blocks_of(p.count, 256)}, 256}, p);
}

Result<Matrix> CudaOps::load_matrix(const MatrixSpec& spec, MatrixSource& source, std::byte* dst) {
  RETURN_IF_ERROR(device_->make_current());
  if (spec.n < 1 || spec.k < 1) return Error{ErrorCode::kUnsupported, "a matrix is empty"};
  if (spec.format == MatrixFormat::kExl3 &&
      (spec.n % 128 != 0 || spec.k % 128 != 0 || spec.bits < 1 || spec.bits > 8)) {
    return Error{ErrorCode::kUnsupported,
                 "EXL3 matrices need 1 to 8 bits and sides that are multiples of 128, not " +
                     std::to_string(spec.n) + " by " + std::to_string(spec.k)};
  }
  Matrix m{spec, dst};
  if (spec.format == MatrixFormat::kExl3) {
    if (spec.decode) {
      RETURN_IF_ERROR(load_decoded(spec, source, dst));
      m.spec.format = MatrixFormat::kBf16;
      m.spec.bits = 0;
    } else {
      RETURN_IF_ERROR(load_exl3(spec, source, dst));
    }
  } else {
    RETURN_IF_ERROR(load_packed(spec, source, dst));
  }
  m.spec.decode = false;
  RETURN_IF_ERROR(stream_.synchronize());
  return m;
}

Status CudaOps::load_packed(const MatrixSpec& spec, MatrixSource& source, std::byte* dst) {
  const size_t element = spec.format == MatrixFormat::kF32 ? 4 : spec.format == MatrixFormat::kBf16 ? 2 : 1;
  const size_t row_bytes = static_cast<size_t>(spec.k) * element, tile_bytes = packed_tile_bytes(spec);
  const int32_t tiles = (spec.n + kTileN - 1) / kTileN;
  const int32_t fit = static_cast<int32_t>(std::max<size_t>(1, staging_.size() / tile_bytes));
  CHECK(tile_bytes <= staging_.size());
  std::vector<std::byte> raw(row_bytes * kTileN);
  for (int32_t first = 0; first < tiles; first += fit) {
    const int32_t count = std::min(fit, tiles - first);
    RETURN_IF_ERROR(stream_.synchronize());  // the staging memory is free again
    size_t bytes = 0;
    for (int32_t t = 0; t < count; ++t) {
      const int32_t row = (first + t) * kTileN, rows = std::min(kTileN, spec.n - row);
      std::byte* to = staging_.data() + static_cast<size_t>(t) * tile_bytes;
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
    RETURN_IF_ERROR(
        device_->to_device(stream_, dst + static_cast<size_t>(first) * tile_bytes, staging_.data(), bytes));
  }
  RETURN_IF_ERROR(stream_.synchronize());
  if (spec.format == MatrixFormat::kFp8Block) {
    const int32_t rows = (spec.n + 127) / 128, columns = (spec.k + 127) / 128;
    std::vector<float> scale(static_cast<size_t>(rows) * static_cast<size_t>(columns));
    RETURN_IF_ERROR(source.read_rows(MatrixPart::kScale, 0, rows, scale.data()));
    RETURN_IF_ERROR(
        device_->to_device(stream_, dst + packed_layout(spec).scale, scale.data(), scale.size() * 4));
    RETURN_IF_ERROR(stream_.synchronize());
  }
  return {};
}

Status CudaOps::load_exl3(const MatrixSpec& spec, MatrixSource& source, std::byte* dst) {
  const PackedLayout at = packed_layout(spec);
  const int32_t tiles_n = spec.n / 16, groups = spec.k / kGroupK;
  const size_t row_bytes = static_cast<size_t>(tiles_n) * 32 * spec.bits;
  std::vector<std::byte> raw(4 * row_bytes), packed(packed_tile_bytes(spec) * static_cast<size_t>(tiles_n));
  for (int32_t g = 0; g < groups; ++g) {
    RETURN_IF_ERROR(source.read_rows(MatrixPart::kWeight, int64_t{4} * g, 4, raw.data()));
    const std::byte* const rows[4] = {raw.data(), raw.data() + row_bytes, raw.data() + 2 * row_bytes,
                                      raw.data() + 3 * row_bytes};
    pack_exl3_group(rows, tiles_n, spec.bits, groups, g, packed.data());
  }
  RETURN_IF_ERROR(device_->to_device(stream_, dst, packed.data(), packed.size()));
  RETURN_IF_ERROR(stream_.synchronize());
  std::vector<uint16_t> vector(static_cast<size_t>(std::max(spec.n, spec.k)));
  RETURN_IF_ERROR(source.read_rows(MatrixPart::kSuh, 0, spec.k, vector.data()));
  RETURN_IF_ERROR(
      device_->to_device(stream_, dst + at.suh, vector.data(), size_t{2} * static_cast<size_t>(spec.k)));
  RETURN_IF_ERROR(stream_.synchronize());
  RETURN_IF_ERROR(source.read_rows(MatrixPart::kSvh, 0, spec.n, vector.data()));
  RETURN_IF_ERROR(
      device_->to_device(stream_, dst + at.svh, vector.data(), size_t{2} * static_cast<size_t>(spec.n)));
  return stream_.synchronize();
}

/// Decodes by the product kernel itself: W times unit vectors, a block of columns at a time.
Status CudaOps::load_decoded(const MatrixSpec& spec, MatrixSource& source, std::byte* dst) {
  MatrixSpec plain = spec;
  plain.decode = false;
  plain.slices = 1;
  ASSIGN_OR_RETURN(gpu::Buffer trellis,
                   device_->allocate(packed_layout(plain).bytes, "an EXL3 matrix being decoded"));
  RETURN_IF_ERROR(load_exl3(plain, source, trellis.data()));
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

namespace firesteel {

int cuda_device_count() {
  const auto count = gpu::Device::count();
  return count.ok() ? *count : 0;
}

Result<CudaOpsParts> make_cuda_ops_parts(int ordinal, KvFormat kv) {
  ASSIGN_OR_RETURN(auto ops, cuda::CudaOps::make(ordinal, kv));
  CudaOpsParts parts;
  parts.device = &ops->device();
  parts.stream = &ops->stream();
  parts.ops = std::move(ops);
  return parts;
}

Result<std::unique_ptr<Ops>> make_cuda_ops(int ordinal, KvFormat kv) {
  ASSIGN_OR_RETURN(CudaOpsParts parts, make_cuda_ops_parts(ordinal, kv));
  return std::move(parts.ops);
}

}  // namespace firesteel
