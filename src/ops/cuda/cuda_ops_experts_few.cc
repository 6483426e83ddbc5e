// The experts of few rows, all EXL3 (experts_begin.cu, experts_few.cuh), in three launches, and their router.
#include <algorithm>

#include "ops/cuda/cuda_ops_impl.h"
#include "ops/cuda/launch.h"

namespace firesteel::cuda {

namespace {
constexpr int32_t kBeginUnits = 8;  // of K, that router_few and experts_begin take: a warp each
}

bool CudaOps::experts_few_apply(const ExpertTable& table, const ExpertWeights& w) const {
  if (rows_ > kFewRows || rows_ * w.top_k > kMaxFewPairs) return false;
  for (const auto& kinds : table.kinds) {
    if (kinds.size() != 1 || kinds[0].format != MatrixFormat::kExl3) return false;
    if (kernels_of(kinds[0]).gate_up.function == nullptr) return false;
  }
  return true;
}

bool CudaOps::shared_within(const ExpertWeights& w) {
  const MatrixSpec& gate = w.shared_gate.spec;
  const MatrixSpec& down = w.shared_down.spec;
  const MatrixSpec& routed = w.down[0].spec;
  return (gate.format == MatrixFormat::kBf16 || gate.format == MatrixFormat::kQ4) &&
         w.shared_up.spec.format == gate.format && down.format == gate.format && gate.n == w.width &&
         gate.k <= kBeginUnits * kUnit && down.k == w.width && down.slices == routed.slices &&
         std::equal(down.slice_end, down.slice_end + 4, routed.slice_end);
}

bool CudaOps::routes_few(const RouterWeights& w) const {
  const MatrixSpec& spec = w.weight.spec;
  return rows_ <= 8 && spec.format == MatrixFormat::kBf16 && spec.k % kGroupK == 0 &&
         spec.k <= kBeginUnits * kUnit && w.experts <= 320 && w.groups == 1 && w.top_k <= 64;
}

void CudaOps::router_few(const RouterWeights& w, const Act* x, int32_t* idx, float* weight, float* logits,
                         const ExpertTable* next) {
  RouterFewParams p{};
  p.x = bits(x);
  p.weight = static_cast<const uint8_t*>(w.weight.data);
  p.logits = logits;
  p.k = w.weight.spec.k;
  p.router = router_params(w, idx, weight);
  if (next != nullptr) {
    p.router.picks = reinterpret_cast<int32_t*>(picks_.data());
    p.table = reinterpret_cast<const uint8_t*>(next->refs);
    p.table_bytes = next->experts * 3 * static_cast<int32_t>(sizeof(MatrixRef));
  }
  p.router.units = (p.k + kUnit - 1) / kUnit;
  run(kernels_.router_few, {{blocks_of(w.experts, kTileN)}, 256}, p);
}

void CudaOps::moe(Stage stage, const RouterWeights& r, const ExpertWeights& w, const Act* x, int32_t* idx,
                  float* weight, float* part) {
  if (rows_ > 0 && status_.ok() && routes_few(r) && w.width > 0 && w.shared_suh) {
    const ExpertTable* table = expert_table(w);
    if (table != nullptr && status_.ok() && experts_few_apply(*table, w))
      return experts_few(*table, w, x, idx, weight, part, &r);
  }
  router(stage, r, x, idx, weight);
  experts(stage, w, x, idx, weight, part);
}

size_t CudaOps::shared_expert_bytes(const ExpertWeights& w) {
  if (w.shared_gate.spec.n == 0) return 0;
  const Matrix both[2] = {w.shared_gate, w.shared_up};
  const auto rows = static_cast<size_t>(rows_), width = static_cast<size_t>(w.shared_gate.spec.n);
  return product_bytes(both, rows_) + product_bytes({&w.shared_down, 1}, rows_) + padded(rows * width * 4) +
         padded(rows * width * 2) +
         padded(static_cast<size_t>(w.shared_down.spec.slices) * rows *
                static_cast<size_t>(w.shared_gate.spec.k) * 4);
}

float* CudaOps::shared_expert(const ExpertWeights& w, const Act* x) {
  if (w.shared_gate.spec.n == 0) return nullptr;
  const int32_t hidden = w.shared_gate.spec.k, width = w.shared_gate.spec.n;
  const auto rows = static_cast<size_t>(rows_);
  Product p;
  p.x = bits(x);
  p.ldx = hidden;
  p.rows = rows_;
  Bits16* both = take<Bits16>(2 * rows * static_cast<size_t>(width));
  Bits16* act = take<Bits16>(rows * static_cast<size_t>(width));
  float* out =
      take<float>(static_cast<size_t>(w.shared_down.spec.slices) * rows * static_cast<size_t>(hidden));
  p.y = both;
  p.ldy = int64_t{2} * width;
  const Matrix ws[2] = {w.shared_gate, w.shared_up};
  products(ws, p);
  run(kernels_.glu, {{blocks_of(width, 256), static_cast<unsigned>(rows_)}, 256},
      GluParams{both, act, rows_, width, w.limit});
  Product d;
  d.x = act;
  d.ldx = w.shared_down.spec.k;
  d.rows = rows_;
  d.y = out;
  d.ldy = hidden;
  d.f32 = true;
  set_slices(d, w.shared_down.spec, static_cast<int64_t>(rows_) * hidden);
  products({&w.shared_down, 1}, d);
  return out;
}

void CudaOps::experts_few(const ExpertTable& table, const ExpertWeights& w, const Act* x, int32_t* idx,
                          float* weight, float* part, const RouterWeights* router) {
  const MatrixSpec& gate = w.gate[0].spec;
  const MatrixSpec& down = w.down[0].spec;
  const int32_t hidden = gate.k, pairs = rows_ * w.top_k, units = (hidden + kUnit - 1) / kUnit;
  const int32_t gate_blocks = w.width / kBlockN, down_blocks = hidden / kBlockN;
  const int32_t rotated_rows = w.shared_suh ? rows_ : 2 * pairs;
  const bool within = shared_within(w);  // the shared expert is part of these kernels
  const int32_t shared_items = within ? (rows_ + 7) / 8 : 0;
  const auto count = [](int64_t a, int64_t b, int64_t c = 1) { return static_cast<size_t>(a * b * c); };
  const size_t item_counters = count(pairs, gate_blocks), row_counters = count(rows_, down_blocks),
               counters_size = item_counters + row_counters + count(pairs, kReadyPitch),
               rotated_size = count(rotated_rows, hidden), sums_size = count(units, pairs, 2 * w.width),
               act_size = count(pairs, w.width), slices_size = count(down.slices, pairs, hidden),
               logits_size = router != nullptr ? count(rows_, router->experts) : 0,
               shared_act_size = within ? count(rows_, w.width) : 0,
               shared_size = within ? count(down.slices, rows_, hidden) : 0;
  if (!begin_scratch(padded(count(pairs, sizeof(FewItem))) + padded(counters_size * 4) +
                     padded(rotated_size * 2) + padded(sums_size * 4) + padded(act_size * 2) +
                     padded(slices_size * 4) + padded(logits_size * 4) + padded(shared_act_size * 2) +
                     padded(shared_size * 4) + (within ? 0 : shared_expert_bytes(w)) + 4096)) {
    return;
  }
  ExpertFewParams p{};
  if (!within) p.shared = shared_expert(w, x);
  if (router != nullptr) router_few(*router, x, idx, weight, take<float>(logits_size), &table);
  const auto* const picks = reinterpret_cast<const int32_t*>(picks_.data());

  ExpertsBeginParams b{};
  b.x = bits(x);
  b.rows = rows_;
  b.k = hidden;
  b.units = units;
  b.after_router = router != nullptr;
  b.idx = idx;
  b.table = table.refs;
  b.picks = picks;
  if (rows_ > 1) b.items = take<FewItem>(static_cast<size_t>(pairs));
  b.counters = take<int32_t>(counters_size);
  b.counter_count = static_cast<int32_t>(counters_size);
  b.top_k = w.top_k;
  b.by_pair = !w.shared_suh;
  b.suh = ref_of(w.gate[0]).suh;
  b.rotated = take<Bits16>(rotated_size);
  if (within) {
    b.shared_blocks = shared_items * (w.width / kTileN);
    b.shared_q4 = w.shared_gate.spec.format == MatrixFormat::kQ4;
    b.width = w.width;
    b.limit = w.limit;
    b.shared_gate = static_cast<const uint8_t*>(w.shared_gate.data);
    b.shared_up = static_cast<const uint8_t*>(w.shared_up.data);
    b.shared_act = take<Bits16>(shared_act_size);
    p.shared_down = static_cast<const uint8_t*>(w.shared_down.data);
    p.shared_act = b.shared_act;
    p.shared = take<float>(shared_size);
    p.shared_items = shared_items;
    p.shared_q4 = b.shared_q4;
  }
  run(kernels_.experts_begin,
      {{static_cast<unsigned>(1 + b.shared_blocks) +
        static_cast<unsigned>(rotated_rows) * blocks_of(hidden, 1024)},
       256},
      b);

  p.items = b.items;
  p.idx = idx;
  if (router != nullptr) p.picks = picks;
  p.table = table.refs;
  p.x = b.rotated;
  p.sums = take<float>(sums_size);
  p.act = take<Bits16>(act_size);
  p.slices = take<float>(slices_size);
  p.unit_stride = int64_t{2} * pairs * w.width;
  p.slice_stride = static_cast<int64_t>(pairs) * hidden;
  p.counters = b.counters;
  p.row_counters = p.counters + item_counters;
  p.ready = p.row_counters + row_counters;
  p.weight = weight;
  p.part = part;
  p.shared_stride = static_cast<int64_t>(rows_) * hidden;
  p.rows = rows_;
  p.k = hidden;
  p.width = w.width;
  p.hidden = hidden;
  p.pairs = pairs;
  p.top_k = w.top_k;
  p.by_pair = b.by_pair;
  p.units = units;
  // Longer blocks where there are enough of them. At one row short ones: the first experts' activations are
  // there before the last gate and up blocks begin.
  p.units_a_block = rows_ == 1 ? 1 : rows_ <= 8 ? 2 : 4;
  for (int32_t i = 0; i < down.slices; ++i) {
    p.slice_begin[i] = i == 0 ? 0 : down.slice_end[i - 1];
    p.slice_end[i] = down.slices == 1 ? down.k : down.slice_end[i];
  }
  p.limit = w.limit;
  run(kernels_of(gate).gate_up,
      {{static_cast<unsigned>(2 * gate_blocks), blocks_of(units, p.units_a_block),
        static_cast<unsigned>(pairs)},
       256},
      p);
  run(kernels_of(down).down,
      {{static_cast<unsigned>(down_blocks), static_cast<unsigned>(down.slices),
        static_cast<unsigned>(pairs + shared_items)},
       256},
      p);
}

}  // namespace firesteel::cuda
