// Hyper-connections of the CUDA backend.
#include <algorithm>

#include "ops/cuda/cuda_ops_impl.h"

namespace firesteel::cuda {

namespace {
constexpr int32_t kMostUnitSums = 64;  // of the product that hyper_finish_any takes
}  // namespace

bool CudaOps::one_launch(const HyperSite& w) const {
  const int32_t hidden = w.fn.spec.k / kStreams;
  // Eight blocks of at most eight warps with 64 columns each.
  return w.fn.spec.format == MatrixFormat::kBf16 && w.fn.spec.n == 24 && hidden % (64 * kHyperCluster) == 0 &&
         hidden <= 64 * 8 * kHyperCluster && device_->info().arch >= 90;
}

void CudaOps::hyper_pre(Stage, const HyperSite& w, const Act* streams, Act* x, float* post, float* comb) {
  if (rows_ == 0) return;
  if (w.fn.spec.n != 24) return unsupported("hyper-connections of other than 4 streams");
  // Without a sublayer's output the streams are only read.
  if (one_launch(w)) return hyper_site(w, nullptr, const_cast<Act*>(streams), x, post, comb);
  const int32_t k = w.fn.spec.k, hidden = k / kStreams;
  if (k > kMostUnitSums / 2 * kUnit) return unsupported("such a hidden size");
  // K = 4H goes to several thread blocks: cut like slices, at most four.
  const int32_t cut = std::max(4096, (k / 4 + kUnit - 1) / kUnit * kUnit);
  Product p;
  p.slices = (k + cut - 1) / cut;
  for (int32_t i = 0; i < p.slices; ++i) p.slice_end[i] = std::min(k, (i + 1) * cut);
  const int64_t stride = static_cast<int64_t>(rows_) * w.fn.spec.n;
  const size_t sums =
      static_cast<size_t>(stride) * static_cast<size_t>(p.slices * unit_span_of(w.fn.spec, p));
  if (!begin_scratch(padded(sums * sizeof(float)) + product_bytes({&w.fn, 1}, rows_))) return;
  p.x = bits(streams);
  p.ldx = k;
  p.rows = rows_;
  p.ldy = w.fn.spec.n;
  p.f32 = true;
  p.unit_sums = true;
  p.slice_stride = stride;
  float* z = take<float>(sums);
  p.y = z;
  products({&w.fn, 1}, p);
  HyperFinishParams f{};
  f.z = z;
  f.streams = bits(streams);
  f.base = w.base;
  f.scale = w.scale;
  f.norm = w.norm;
  f.x = bits(x);
  f.out = HyperOut{post, comb, w.sinkhorn_iters, w.hc_eps};
  f.rows = rows_;
  f.hidden = hidden;
  f.rms_eps = w.rms_eps;
  f.unit_stride = stride;
  f.slices = p.slices;
  f.unit_span = p.unit_span;
  run(kernels_.hyper_finish_any, {{static_cast<unsigned>(rows_)}, 256, static_cast<unsigned>(hidden) * 4}, f);
}

void CudaOps::hyper_post(Stage, const float* y, const float* post, const float* comb, int32_t hidden,
                         Act* streams) {
  if (rows_ == 0) return;
  HyperPostParams p{y, post, comb, bits(streams), rows_, hidden};
  run(kernels_.hyper_post, {{blocks_of(hidden, 512), static_cast<unsigned>(rows_)}, 256}, p);
}

void CudaOps::hyper_next(Stage stage, const HyperSite& w, const float* y, Act* streams, Act* x, float* post,
                         float* comb) {
  if (rows_ == 0) return;
  if (!one_launch(w)) return Ops::hyper_next(stage, w, y, streams, x, post, comb);
  hyper_site(w, y, streams, x, post, comb);
}

void CudaOps::hyper_site(const HyperSite& w, const float* y, Act* streams, Act* x, float* post, float* comb) {
  HyperSiteParams p{};
  p.y = y;
  p.streams = bits(streams);
  p.fn = static_cast<const uint8_t*>(w.fn.data);
  p.base = w.base;
  p.scale = w.scale;
  p.norm = w.norm;
  p.x = bits(x);
  p.out = HyperOut{post, comb, w.sinkhorn_iters, w.hc_eps};
  p.rows = rows_;
  p.hidden = w.fn.spec.k / kStreams;
  p.rms_eps = w.rms_eps;
  // A block keeps its part of the matrix for all the rows it takes.
  const unsigned clusters =
      std::max(1u, static_cast<unsigned>(device_->info().multiprocessors) / kHyperCluster);
  run(kernels_.hyper_site, {{kHyperCluster, std::min(clusters, blocks_of(rows_, 8))}, kHyperThreads}, p);
}

}  // namespace firesteel::cuda
