#include "ops/cpu/cpu_ops.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "quant/kv_row.h"

namespace firesteel::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// What each thread may need at once (a tile of products with its four slices, attention blocks), and the part
// shared by the rows of a pass: enough for one row of the widest matrix, and for a good pass of prompt rows.
constexpr size_t kWorkerBytes = size_t{1} << 20;
constexpr size_t kLeastShared = size_t{16} << 20;
constexpr size_t kMostShared = size_t{96} << 20;
constexpr size_t kSharedPerRow = size_t{192} << 10;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

int32_t Scratch::rows_that_fit(int32_t rows, size_t floats) const {
  const size_t fit = left_ / (sizeof(float) * std::max<size_t>(floats, 1) + 64);
  CHECK(fit >= 1);
  return static_cast<int32_t>(std::min<size_t>(fit, static_cast<size_t>(rows)));
}

CpuOps::~CpuOps() {
  for (void* p : owned_) std::free(p);
}

size_t CpuOps::kv_bytes(int32_t n) const {
  return kv_ == KvFormat::kFp8 ? kv_row_bytes(n) : sizeof(float) * static_cast<size_t>(n);
}

void CpuOps::store_kv(const float* x, int32_t n, std::byte* row) const {
  if (kv_ == KvFormat::kFp8) {
    kv_row_quantize(x, n, row);
  } else {
    std::memcpy(row, x, sizeof(float) * static_cast<size_t>(n));
  }
}

const float* CpuOps::load_kv(const std::byte* row, int32_t n, float* room) const {
  if (kv_ == KvFormat::kWide) return reinterpret_cast<const float*>(row);
  kv_row_dequantize(row, n, room);
  return room;
}

size_t CpuOps::kda_slot_bytes(const KdaWeights& w) const {
  const size_t heads = static_cast<size_t>(w.heads), dim = static_cast<size_t>(w.dim);
  return sizeof(float) * (static_cast<size_t>(w.taps - 1) * 3 * heads * dim + heads * dim * dim);
}
size_t CpuOps::tail_slot_bytes(const IndexerWeights& w) const {
  return sizeof(float) * static_cast<size_t>(w.kpool) * 2 * static_cast<size_t>(w.dim);
}

size_t CpuOps::scratch_bytes(int32_t rows) const {
  const size_t r = static_cast<size_t>(std::max(rows, 1));
  return round_up(2 * sizeof(int32_t) * r, 64) + 64 + static_cast<size_t>(workers()) * kWorkerBytes +
         std::clamp(r * kSharedPerRow, kLeastShared, kMostShared);
}

Result<std::byte*> CpuOps::allocate(size_t bytes, std::string_view what) {
  // Large arenas on huge pages: a decode step walks all weights once, and the page walk would show.
  const bool large = bytes >= 4 * kHugePage;
  const size_t align = large ? kHugePage : 256;
  const size_t size = round_up(std::max<size_t>(bytes, 1), align);
  void* p = size < bytes ? nullptr : std::aligned_alloc(align, size);
  if (p == nullptr) {
    return Error{ErrorCode::kOutOfMemory,
                 "no memory for " + std::string(what) + ": " + std::to_string(bytes) + " bytes"};
  }
  if (large) madvise(p, size, MADV_HUGEPAGE);  // advice only: a refusal changes nothing
  owned_.push_back(p);
  return static_cast<std::byte*>(p);
}

void CpuOps::set_scratch(std::byte* scratch, size_t bytes) {
  scratch_ = scratch;
  scratch_bytes_ = bytes;
}

Result<Matrix> CpuOps::load_matrix(const MatrixSpec& spec, MatrixSource& source, std::byte* dst) {
  return cpu::load_matrix(spec, source, dst, pool_);
}

void CpuOps::upload(void* dst, const void* host, size_t bytes) { std::memcpy(dst, host, bytes); }
void CpuOps::download(void* host, const void* src, size_t bytes) { std::memcpy(host, src, bytes); }
void CpuOps::zero(void* dst, size_t bytes) { std::memset(dst, 0, bytes); }
void CpuOps::copy(void* dst, const void* src, size_t bytes) { std::memmove(dst, src, bytes); }
void CpuOps::download_act(float* host, const Act* src, size_t count) {
  std::memcpy(host, f32(src), sizeof(float) * count);
}
void CpuOps::upload_act(Act* dst, const float* host, size_t count) {
  std::memcpy(f32(dst), host, sizeof(float) * count);
}

size_t CpuOps::exchange_bytes(int ranks, int32_t rows, int32_t n) const {
  return SumExchange::buffer_bytes(ranks, static_cast<size_t>(rows) * static_cast<size_t>(n));
}

void CpuOps::connect(Communicator* comm) {
  alone_ = false;
  comm_ = comm;
}

void CpuOps::exchange_begin(Stage, float* part, int32_t n) {
  if (alone_ || !fault_.ok()) return;
  if (comm_ == nullptr) {
    fault_ = Error{ErrorCode::kUnavailable, "the other ranks are lost"};
    return;
  }
  const std::span<float> whole(part, static_cast<size_t>(batch_.rows) * static_cast<size_t>(n));
  fault_ = exchange_.begin(*comm_, whole, exchange_buffer_);
}

void CpuOps::exchange_end(Stage, float*, int32_t) {
  if (!alone_ && fault_.ok()) fault_ = exchange_.end();
}

Status CpuOps::finish() { return std::exchange(fault_, Status()); }

void CpuOps::bind(const Batch& batch) {
  batch_ = batch;
  Scratch s(scratch_, scratch_bytes_);
  positions_ = s.take<int32_t>(static_cast<size_t>(batch.rows));
  row_segment_ = s.take<int32_t>(static_cast<size_t>(batch.rows));
  int32_t next = 0;
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    const Segment& g = batch.segments[i];
    CHECK(g.first_row == next && g.rows > 0 && g.start >= 0 && next + g.rows <= batch.rows);
    for (int32_t r = 0; r < g.rows; ++r) {
      positions_[next + r] = g.start + r;
      row_segment_[next + r] = static_cast<int32_t>(i);
    }
    next += g.rows;
  }
  CHECK(next == batch.rows);
}

Scratch CpuOps::scratch() const {
  Scratch s(scratch_, scratch_bytes_);
  s.take<int32_t>(static_cast<size_t>(batch_.rows));  // positions_ and row_segment_ stay
  s.take<int32_t>(static_cast<size_t>(batch_.rows));
  return s;
}

}  // namespace firesteel::cpu

namespace firesteel {

std::unique_ptr<Ops> make_cpu_ops(int threads, KvFormat kv) {
  return std::make_unique<cpu::CpuOps>(threads, kv);
}

}  // namespace firesteel
