// Hyper-connections of the CUDA backend.
#include <algorithm>

#include "ops/cuda/cuda_ops_impl.h"

namespace firesteel::cuda {

namespace {

constexpr int32_t kMixColumns = 64;    // of a stream, in a block of hyper_mix
constexpr unsigned kFewTiles = 32;     // up to here a block takes one tile of eight rows
constexpr unsigned kTilesOfBlock = 8;  // of a prompt: the site's matrix is read once for them
constexpr int32_t kManyRows = 256;     // from here one launch, at the hidden size that it knows
constexpr int32_t kMostUnitSums = 64;  // of the path for any shape

bool mixes(const HyperSite& w) {
  const int32_t hidden = w.fn.spec.k / kStreams;
  return w.fn.spec.format == MatrixFormat::kBf16 && hidden % kMixColumns == 0 && hidden <= 8192;
}

}  // namespace

void CudaOps::hyper_pre(Stage, const HyperSite& w, const Act* streams, Act* x, float* post, float* comb) {
  if (rows_ == 0) return;
  if (w.fn.spec.n != 24) return unsupported("hyper-connections of other than 4 streams");
  // Without a sublayer's output the streams are only read.
  if (mixes(w)) return hyper_mix(w, nullptr, const_cast<Act*>(streams), x, post, comb);
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
  HyperFinishParams f = hyper_finish_params(w, streams, x, post, comb);
  f.z = z;
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
  if (w.fn.spec.n != 24 || !mixes(w)) return Ops::hyper_next(stage, w, y, streams, x, post, comb);
  hyper_mix(w, y, streams, x, post, comb);
}

HyperFinishParams CudaOps::hyper_finish_params(const HyperSite& w, const Act* streams, Act* x, float* post,
                                               float* comb) const {
  HyperFinishParams f{};
  f.streams = bits(streams);
  f.base = w.base;
  f.scale = w.scale;
  f.norm = w.norm;
  f.x = bits(x);
  f.out = HyperOut{post, comb, w.sinkhorn_iters, w.hc_eps};
  f.rows = rows_;
  f.hidden = w.fn.spec.k / kStreams;
  f.rms_eps = w.rms_eps;
  return f;
}

void CudaOps::hyper_mix(const HyperSite& w, const float* y, Act* streams, Act* x, float* post, float* comb) {
  const int32_t hidden = w.fn.spec.k / kStreams;
  const auto rows = static_cast<size_t>(rows_);
  const unsigned units = blocks_of(hidden, kMixColumns), tiles = blocks_of(rows_, 8);
  const unsigned many = blocks_of(rows_, kHyperManyRows);
  const bool at_once = hidden == kHyperManyHidden && rows_ >= kManyRows && many <= kHyperManyTiles;
  const size_t shares = size_t{many} * kHyperManyRows * kHyperManyBlocks;
  const size_t sums = at_once ? shares * kHyperManySums : units * rows * kHyperSumPitch;
  if (!begin_scratch(padded(sums * sizeof(float)) + (at_once ? padded(shares * sizeof(float)) : 0))) return;
  HyperMixParams m{};
  m.y = y;
  m.post = post;
  m.comb = comb;
  m.streams = bits(streams);
  m.fn = static_cast<const uint8_t*>(w.fn.data);
  m.sums = take<float>(sums);
  m.rows = rows_;
  m.hidden = hidden;
  HyperFinishParams f = hyper_finish_params(w, streams, x, post, comb);
  f.z = m.sums;
  if (at_once) {
    return run(kernels_.hyper_many, {{many * kHyperManyBlocks}, 256},
               HyperManyParams{m, f, take<float>(shares)});
  }
  run(kernels_.hyper_mix, {{units, tiles <= kFewTiles ? tiles : blocks_of(tiles, kTilesOfBlock)}, 128}, m);
  run(hidden <= 4096 ? kernels_.hyper_finish_4k : kernels_.hyper_finish_8k,
      {{static_cast<unsigned>(rows_)}, 544}, f);
}

}  // namespace firesteel::cuda
