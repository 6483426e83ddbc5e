#include "ops/cuda/cuda_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/cuda/cuda_ops_impl.h"
#include "tensor/dtype.h"

namespace firesteel::cuda {

namespace {

constexpr size_t kStagingBytes = size_t{32} << 20;  // the batch tables on their way to the device
constexpr size_t kTableBytes = size_t{4} << 20;     // expert tables of all layers
constexpr size_t kBoundBytes = size_t{4} << 20;  // of the batch tables; more is taken when a batch needs it
constexpr size_t kMinScratch = size_t{64} << 20;

}  // namespace

Result<std::unique_ptr<CudaOps>> CudaOps::make(int ordinal, KvFormat kv, ExchangeChoice choice) {
  std::unique_ptr<CudaOps> ops(new CudaOps(kv, choice));
  ASSIGN_OR_RETURN(ops->device_, gpu::Device::open(ordinal));
  ops->experts_in_order_ = ops->device_->info().integrated;
  ASSIGN_OR_RETURN(ops->stream_, ops->device_->stream());
  ASSIGN_OR_RETURN(ops->kernels_, load_kernels(*ops->device_));
  ASSIGN_OR_RETURN(ops->staging_,
                   ops->device_->allocate_pinned(kStagingBytes, "the host copy of the batch tables"));
  ASSIGN_OR_RETURN(ops->draw_staging_,
                   ops->device_->allocate_pinned(kDrawStagingBytes, "the host copy of drawn tokens"));
  ASSIGN_OR_RETURN(ops->bound_, ops->device_->allocate(kBoundBytes, "the batch tables"));
  ASSIGN_OR_RETURN(ops->tables_, ops->device_->allocate(kTableBytes, "the expert tables"));
  ASSIGN_OR_RETURN(ops->picks_, ops->device_->allocate(kPicksSize * sizeof(int32_t), "the router's choice"));
  ASSIGN_OR_RETURN(ops->bound_copied_, ops->device_->event(false));
  return ops;
}

CudaOps::~CudaOps() {
  recordings_.clear();  // before the exchange whose group they hold
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
  // The expert op's down slices come in passes; the rest grows with the rows: for the published widths about
  // 190 KiB a row where one rank has all of them.
  constexpr size_t kPerRow = size_t{256} << 10;
  return kMinScratch + (rows > 64 ? down_pass_bytes() : 0) + static_cast<size_t>(rows) * kPerRow;
}

Result<std::byte*> CudaOps::allocate(size_t bytes, std::string_view what) {
  RETURN_IF_ERROR(device_->make_current());
  ASSIGN_OR_RETURN(gpu::Buffer buffer, device_->allocate(bytes, what));
  owned_.push_back(std::move(buffer));
  return owned_.back().data();
}

void CudaOps::set_scratch(std::byte* scratch, size_t bytes) {
  loadings_.clear();  // the weights are there
  own_scratch_ = gpu::Buffer();
  scratch_ = scratch;
  scratch_bytes_ = bytes;
}

size_t CudaOps::measure_scratch(const Batch& batch, const std::function<void()>& issue) {
  bind(batch);
  measuring_ = true;
  measured_ = 0;
  issue();
  measuring_ = false;
  status_ = Status();  // what is unsupported says so in the forward itself
  return measured_;
}

void CudaOps::clear_part(float* part, int64_t count) {
  if (!measuring_) check(device_->fill(stream_, part, 0, static_cast<size_t>(count) * sizeof(float)));
}

bool CudaOps::begin_scratch(size_t bytes) {
  if (!status_.ok()) return false;
  if (measuring_) {
    measured_ = std::max(measured_, bytes);
    scratch_at_ = scratch_;
    return true;
  }
  if (bytes > scratch_bytes_) {
    check(stream_.synchronize());  // nothing may still use what is replaced
    auto grown = device_->allocate(bytes + bytes / 4, "scratch");
    if (!grown.ok()) {
      check(grown.error());
      return false;
    }
    replace(own_scratch_, std::move(grown).value());
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

}  // namespace firesteel::cuda

namespace firesteel {

int cuda_device_count() {
  const auto count = gpu::Device::count();
  return count.ok() ? *count : 0;
}

Result<CudaOpsParts> make_cuda_ops_parts(int ordinal, KvFormat kv, ExchangeChoice exchange) {
  ASSIGN_OR_RETURN(auto ops, cuda::CudaOps::make(ordinal, kv, exchange));
  CudaOpsParts parts;
  parts.device = &ops->device();
  parts.stream = &ops->stream();
  parts.ops = std::move(ops);
  return parts;
}

Result<std::unique_ptr<Ops>> make_cuda_ops(int ordinal, KvFormat kv, ExchangeChoice exchange) {
  ASSIGN_OR_RETURN(CudaOpsParts parts, make_cuda_ops_parts(ordinal, kv, exchange));
  return std::move(parts.ops);
}

bool set_experts_in_order(Ops& ops, bool on) {
  return static_cast<cuda::CudaOps&>(ops).set_experts_in_order(on);
}

}  // namespace firesteel
