// The experts of few rows, all EXL3 (experts_few.cuh): three launches, the shared expert beside them.
#include <algorithm>
#include <cstdlib>

#include "ops/cuda/cuda_ops_impl.h"
#include "ops/cuda/launch.h"

namespace firesteel::cuda {

bool CudaOps::experts_few_apply(const ExpertTable& table, const ExpertWeights& w) const {
  if (rows_ > kFewRows || rows_ * w.top_k > kMaxFewPairs) return false;
  for (const auto& kinds : table.kinds) {
    if (kinds.size() != 1 || kinds[0].format != MatrixFormat::kExl3) return false;
    if (kernels_of(kinds[0]).gate_up.function == nullptr) return false;
  }
  return true;
}

size_t CudaOps::shared_expert_bytes(const ExpertWeights& w) {
  if (w.shared_gate.spec.n == 0) return 0;
  const Matrix both[2] = {w.shared_gate, w.shared_up};
  const auto rows = static_cast<size_t>(rows_), width = static_cast<size_t>(w.shared_gate.spec.n);
  return product_bytes(both, rows_) + product_bytes({&w.shared_down, 1}, rows_) + padded(rows * width * 4) +
         padded(rows * width * 2) +
         padded(static_cast<size_t>(w.shared_down.spec.slices) * rows * static_cast<size_t>(w.shared_gate.spec.k) * 4);
}

const float* CudaOps::shared_expert(const ExpertWeights& w, const Act* x) {
  if (w.shared_gate.spec.n == 0) return nullptr;
  const int32_t hidden = w.shared_gate.spec.k, width = w.shared_gate.spec.n;
  const auto rows = static_cast<size_t>(rows_);
  Product p;
  p.x = bits(x);
  p.ldx = hidden;
  p.rows = rows_;
  Bits16* both = take<Bits16>(2 * rows * static_cast<size_t>(width));
  Bits16* act = take<Bits16>(rows * static_cast<size_t>(width));
  float* out = take<float>(static_cast<size_t>(w.shared_down.spec.slices) * rows * static_cast<size_t>(hidden));
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

void CudaOps::experts_few(const ExpertTable& table, const ExpertWeights& w, const Act* x, const int32_t* idx,
                          const float* weight, float* part) {
  const MatrixSpec& gate = w.gate[0].spec;
  const MatrixSpec& down = w.down[0].spec;
  const int32_t hidden = gate.k, pairs = rows_ * w.top_k, units = (hidden + kUnit - 1) / kUnit;
  const int32_t gate_blocks = w.width / kBlockN, down_blocks = hidden / kBlockN;
  const int32_t rotated_rows = w.shared_suh ? rows_ : 2 * pairs;
  const auto count = [](int64_t a, int64_t b, int64_t c = 1) { return static_cast<size_t>(a * b * c); };
  const size_t items_size = static_cast<size_t>(pairs), counters_size = count(pairs, gate_blocks) + count(rows_, down_blocks),
               rotated_size = count(rotated_rows, hidden), sums_size = count(units, pairs, 2 * w.width),
               act_size = count(pairs, w.width), slices_size = count(down.slices, pairs, hidden);
  if (!begin_scratch(padded(items_size * sizeof(FewItem)) + padded(counters_size * 4) + padded(rotated_size * 2) +
                     padded(sums_size * 4) + padded(act_size * 2) + padded(slices_size * 4) +
                     shared_expert_bytes(w) + 4096)) {
    return;
  }

  // The shared expert's reads overlap the decoding of the others.
  const float* shared = nullptr;
  const bool beside = w.shared_gate.spec.n > 0;
  if (beside) {
    begin_side();
    shared = shared_expert(w, x);
    end_side();
  }

  FewBeginParams b{};
  b.idx = idx;
  b.table = table.refs;
  b.items = take<FewItem>(items_size);
  b.counters = take<int32_t>(counters_size);
  b.counter_count = static_cast<int32_t>(counters_size);
  b.rows = rows_;
  b.top_k = w.top_k;
  b.by_pair = !w.shared_suh;
  b.suh = ref_of(w.gate[0]).suh;
  b.x = bits(x);
  b.y = take<Bits16>(rotated_size);
  b.k = hidden;
  run(kernels_.few_begin, {{static_cast<unsigned>(rotated_rows) + 1}, 1024}, b);

  ExpertFewParams p{};
  p.items = b.items;
  p.x = b.y;
  p.sums = take<float>(sums_size);
  p.act = take<Bits16>(act_size);
  p.slices = take<float>(slices_size);
  p.unit_stride = int64_t{2} * pairs * w.width;
  p.slice_stride = static_cast<int64_t>(pairs) * hidden;
  p.shared_stride = static_cast<int64_t>(rows_) * hidden;
  p.counters = b.counters;
  p.row_counters = b.counters + count(pairs, gate_blocks);
  p.shared = shared;
  p.weight = weight;
  p.part = part;
  p.k = hidden;
  p.width = w.width;
  p.hidden = hidden;
  p.pairs = pairs;
  p.top_k = w.top_k;
  p.by_pair = b.by_pair;
  p.units = units;
  // Longer blocks where there are enough of them.
  p.units_a_block = rows_ <= 2 ? 1 : rows_ <= 8 ? 2 : 4;
  if (const char* e = std::getenv("DEC_UNITS")) p.units_a_block = std::atoi(e);
  for (int32_t i = 0; i < down.slices; ++i) {
    p.slice_begin[i] = i == 0 ? 0 : down.slice_end[i - 1];
    p.slice_end[i] = down.slices == 1 ? down.k : down.slice_end[i];
  }
  p.limit = w.limit;
  const auto items = static_cast<unsigned>(pairs);
  run(kernels_of(gate).gate_up,
      {{static_cast<unsigned>(2 * gate_blocks), items, blocks_of(units, p.units_a_block)}, 256}, p);
  if (beside) join_side();
  run(kernels_of(down).down,
      {{static_cast<unsigned>(down_blocks), items, static_cast<unsigned>(down.slices)}, 256}, p);
}

}  // namespace firesteel::cuda
