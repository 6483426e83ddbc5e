// The CUDA backend's ops other than products, hyper-connections and attention: norms, KDA, head inputs.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/cuda/cuda_ops_impl.h"

namespace firesteel::cuda {

namespace {

EmbedParams embed_params(const BatchView& view, const Matrix& table) {
  EmbedParams p{};
  p.batch = view;
  p.table = static_cast<const uint8_t*>(table.data);
  p.hidden = table.spec.k;
  p.format = table.spec.format == MatrixFormat::kF32        ? 1
             : table.spec.format == MatrixFormat::kFp8Block ? 2
                                                            : 0;
  if (p.format == 2) p.scale = reinterpret_cast<const float*>(p.table + packed_layout(table.spec).scale);
  p.vocab = table.spec.n;
  return p;
}

constexpr int32_t kKdaPiece = 2048;  // rows of a prompt that KDA takes at a time, at most

bool plain_table(const Matrix& table) { return table.spec.format != MatrixFormat::kExl3; }

}  // namespace

void CudaOps::embed(Stage, const Matrix& table, Act* streams) {
  if (rows_ == 0) return;
  if (!plain_table(table)) return unsupported("an EXL3 embedding");
  EmbedParams p = embed_params(view_, table);
  p.out = bits(streams);
  run(kernels_.embed, {{static_cast<unsigned>(rows_)}, 256}, p);
}

void CudaOps::mtp_input(Stage, const Matrix& table, const float* enorm, const float* hnorm, float eps,
                        const Act* h, Act* out) {
  if (rows_ == 0) return;
  if (!plain_table(table)) return unsupported("an EXL3 embedding");
  EmbedParams p = embed_params(view_, table);
  p.out = bits(out);
  p.h = bits(h);
  p.enorm = enorm;
  p.hnorm = hnorm;
  p.eps = eps;
  run(kernels_.mtp_input, {{static_cast<unsigned>(rows_)}, 256}, p);
}

void CudaOps::rms_norm(Stage, const float* w, float eps, int32_t n, const Act* x, int32_t ldx, Act* y) {
  if (rows_ == 0) return;
  RmsParams p{w, bits(x), bits(y), ldx, n, rows_, eps};
  run(kernels_.rms_norm, {{static_cast<unsigned>(rows_)}, 256}, p);
}

void CudaOps::glu(Stage, const Act* gate_up, int32_t width, float limit, Act* out) {
  if (rows_ == 0) return;
  GluParams p{bits(gate_up), bits(out), rows_, width, limit};
  run(kernels_.glu, {{blocks_of(width, 256), static_cast<unsigned>(rows_)}, 256}, p);
}

RouterParams CudaOps::router_params(const RouterWeights& w, int32_t* idx, float* weight) const {
  RouterParams r{};
  r.bias = w.bias;
  r.idx = idx;
  r.weight = weight;
  r.rows = rows_;
  r.experts = w.experts;
  r.top_k = w.top_k;
  r.groups = w.groups;
  r.top_groups = w.top_groups;
  r.norm_topk = w.norm_topk;
  r.factor = w.factor;
  return r;
}

void CudaOps::router(Stage, const RouterWeights& w, const Act* x, int32_t* idx, float* weight) {
  if (rows_ == 0) return;
  if (w.experts > 1024 || w.top_k > 64 || w.groups > 64) {
    return unsupported("more than 1024 experts, 64 a token or 64 groups");
  }
  if (routes_few(w)) {
    const auto logits = static_cast<size_t>(rows_) * static_cast<size_t>(w.experts);
    if (!begin_scratch(padded(logits * sizeof(float)))) return;
    return router_few(w, x, idx, weight, take<float>(logits), nullptr);
  }
  RouterParams r = router_params(w, idx, weight);
  Product p;
  const size_t sums = static_cast<size_t>(rows_) * static_cast<size_t>(w.experts) *
                      static_cast<size_t>(unit_span_of(w.weight.spec, p));
  if (!begin_scratch(padded(sums * sizeof(float)) + product_bytes({&w.weight, 1}, rows_))) return;
  float* logits = take<float>(sums);
  p.x = bits(x);
  p.ldx = w.weight.spec.k;
  p.rows = rows_;
  p.y = logits;
  p.ldy = w.experts;
  p.f32 = true;
  p.unit_sums = true;
  p.slice_stride = static_cast<int64_t>(rows_) * w.experts;
  products({&w.weight, 1}, p);
  r.logits = logits;
  r.units = p.unit_span;
  r.unit_stride = p.slice_stride;
  run(w.experts <= 320 ? kernels_.router_pick_320 : kernels_.router_pick_1024, {{blocks_of(rows_, 4)}, 128},
      r);
}

int32_t CudaOps::kda_piece(int32_t heads) const {
  int64_t piece = kKdaPiece;
  // Where memory is slow, what is prepared should still be in L2 when it is read; elsewhere starting each
  // piece costs more.
  if (device_->info().integrated) {
    const int64_t row_bytes = int64_t{heads} * (kKdaRecord + kKdaWidth) * int64_t{sizeof(float)};
    piece = std::clamp<int64_t>(static_cast<int64_t>(device_->info().l2_bytes) / 2 / row_bytes / 64 * 64, 64,
                                piece);
  }
  return std::min(rows_, static_cast<int32_t>(piece));
}

void CudaOps::kda(Stage, const KdaWeights& w, const Act* qkv, const Act* f, const Act* b, const Act* g,
                  SlotPlane state, Act* out) {
  if (rows_ == 0) return;
  if (w.dim > kKdaWidth || w.dim < 1) return unsupported("KDA heads wider than 128");
  // One launch while a block a sequence and head is enough.
  const bool few = w.dim == kKdaWidth && w.taps == 4 && max_segment_rows_ <= kKdaFewRows;
  const int32_t piece = few ? 0 : kda_piece(w.heads);
  const size_t pairs = static_cast<size_t>(piece) * static_cast<size_t>(w.heads);
  const size_t records = few ? 0 : (pairs + kKdaAhead) * kKdaRecord;
  if (!begin_scratch(padded(records * sizeof(float)) + padded(pairs * kKdaWidth * sizeof(float)))) return;
  KdaParams p{};
  p.batch = view_;
  p.qkv = bits(qkv);
  p.f = bits(f);
  p.b = bits(b);
  p.g = bits(g);
  p.out = bits(out);
  p.conv = w.conv;
  p.a_log = w.a_log;
  p.dt_bias = w.dt_bias;
  p.o_norm = w.o_norm;
  p.state = reinterpret_cast<uint8_t*>(state.base);
  p.slot_stride = static_cast<int64_t>(state.slot_stride);
  p.heads = w.heads;
  p.dim = w.dim;
  p.taps = w.taps;
  p.lower_bound = w.lower_bound;
  p.rms_eps = w.rms_eps;
  const auto heads = static_cast<unsigned>(w.heads), segments = static_cast<unsigned>(segments_);
  if (few) return run(kernels_.kda_few, {{heads, segments}, 512}, p);
  p.records = take<float>(records);
  p.o = take<float>(pairs * kKdaWidth);
  p.run = rows_ < 256 ? 8 : 16;  // few rows: more warps
  for (p.first = 0; p.first < rows_; p.first += piece) {
    p.rows = std::min(piece, rows_ - p.first);
    run(kernels_.kda_prepare, {{blocks_of(p.rows, 2 * p.run), heads}, 128}, p);
    run(kernels_.kda_recur, {{heads * blocks_of(w.dim, 32), segments}, 128}, p);
    run(kernels_.kda_out, {{blocks_of(int64_t{p.rows} * w.heads, 8)}, 256}, p);
  }
}

void CudaOps::head_input(Stage, const Act* streams, std::span<const int32_t> rows, int32_t hidden,
                         const float* norm, float eps, Act* h) {
  for (size_t first = 0; first < rows.size(); first += kMaxRowList) {
    HeadInputParams p{};
    p.streams = bits(streams);
    p.norm = norm;
    p.h = bits(h) + first * static_cast<size_t>(hidden);
    p.hidden = hidden;
    p.count = static_cast<int32_t>(std::min<size_t>(kMaxRowList, rows.size() - first));
    p.eps = eps;
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(first), p.count, p.rows);
    run(kernels_.head_input, {{static_cast<unsigned>(p.count)}, 256}, p);
  }
}

void CudaOps::gather(Stage, const Act* x, std::span<const int32_t> rows, int32_t n, Act* out) {
  for (size_t first = 0; first < rows.size(); first += kMaxRowList) {
    GatherParams p{};
    p.x = bits(x);
    p.out = bits(out) + first * static_cast<size_t>(n);
    p.n = n;
    p.count = static_cast<int32_t>(std::min<size_t>(kMaxRowList, rows.size() - first));
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(first), p.count, p.rows);
    run(kernels_.gather, {{static_cast<unsigned>(p.count)}, 256}, p);
  }
}

void CudaOps::add(Stage, Act* x, const float* y, size_t count) {
  if (count == 0) return;
  AddParams p{bits(x), y, static_cast<int64_t>(count)};
  run(kernels_.add, {{blocks_of(p.count, 256)}, 256}, p);
}

}  // namespace firesteel::cuda
