// Weights that launches with idle room ask for in L2 (prefetch.cuh).
#include <algorithm>

#include "ops/cuda/cuda_ops_impl.h"
#include "ops/cuda/launch.h"

namespace firesteel::cuda {

namespace {
constexpr unsigned kPrefetchBlocks = 64;
}

void CudaOps::prefetch(std::span<const Matrix* const> ws) {
  // Prompts are bound by computing. No more than stays in L2 until it is read.
  if (rows_ > kFewRows) return;
  const auto most = static_cast<int64_t>(device_->info().l2_bytes / 3);
  for (const Matrix* w : ws) {
    if (ahead_count_ == kMaxPrefetch || ahead_bytes_ >= most) return;
    if (w->data == nullptr) continue;
    const auto all = static_cast<int64_t>(packed_layout(w->spec).bytes);
    const int64_t bytes = std::min(most - ahead_bytes_, all) / 16 * 16;
    ahead_.data[ahead_count_] = static_cast<const uint8_t*>(w->data);
    ahead_.bytes[ahead_count_++] = bytes;
    ahead_bytes_ += bytes;
  }
}

unsigned CudaOps::take_ahead(PrefetchParams& to) {
  if (ahead_count_ == 0) return 0;
  to = ahead_;
  forget_ahead();
  return kPrefetchBlocks;
}

void CudaOps::forget_ahead() {
  ahead_ = {};
  ahead_count_ = 0;
  ahead_bytes_ = 0;
}

}  // namespace firesteel::cuda
