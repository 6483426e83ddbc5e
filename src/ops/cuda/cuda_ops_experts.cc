// Routed and shared experts of the CUDA backend.
#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops_impl.h"
#include "ops/cuda/launch.h"

namespace firesteel::cuda {

const CudaOps::ExpertTable* CudaOps::expert_table(const ExpertWeights& w) {
  const auto same = [](const Matrix& a, const Matrix& b) {
    return a.data == b.data && a.spec.format == b.spec.format && kind_of(a.spec) == kind_of(b.spec) &&
           a.spec.n == b.spec.n && a.spec.k == b.spec.k;
  };
  const auto last = static_cast<size_t>(w.experts - 1);
  const Matrix* const lists[3] = {w.gate, w.up, w.down};
  const auto found = expert_tables_.find(w.gate);
  MatrixRef* place = nullptr;
  if (found != expert_tables_.end()) {
    bool valid = found->second.experts == w.experts;
    for (int i = 0; i < 3 && valid; ++i) {
      valid = same(found->second.first[i], lists[i][0]) && same(found->second.last[i], lists[i][last]);
    }
    if (valid) return &found->second;
    if (found->second.experts >= w.experts) place = found->second.refs;
    expert_tables_.erase(found);
  }
  const size_t count = static_cast<size_t>(w.experts) * 3, bytes = padded(count * sizeof(MatrixRef));
  if (place == nullptr) {
    if (tables_used_ + bytes > tables_.size()) {
      unsupported("too many expert layers");
      return nullptr;
    }
    place = reinterpret_cast<MatrixRef*>(tables_.data() + tables_used_);
    tables_used_ += bytes;
  }
  ExpertTable table;
  table.refs = place;
  table.experts = w.experts;
  for (int i = 0; i < 3; ++i) {
    table.first[i] = lists[i][0];
    table.last[i] = lists[i][last];
  }
  std::vector<MatrixRef> refs;
  refs.reserve(count);
  const auto note = [](std::vector<MatrixSpec>& kinds, const MatrixSpec& s) {
    for (const MatrixSpec& k : kinds) {
      if (k.format == s.format && kind_of(k) == kind_of(s)) return;
    }
    kinds.push_back(s);
  };
  for (int32_t e = 0; e < w.experts; ++e) {
    refs.push_back(ref_of(w.gate[e]));
    refs.push_back(ref_of(w.up[e]));
    refs.push_back(ref_of(w.down[e]));
    note(table.kinds[0], w.gate[e].spec);
    note(table.kinds[0], w.up[e].spec);
    note(table.kinds[1], w.down[e].spec);
    table.paired = table.paired && kind_of(w.gate[e].spec) == kind_of(w.up[e].spec);
  }
  for (const auto& kinds : table.kinds) {
    for (const MatrixSpec& s : kinds) {
      if (s.format != kinds[0].format) unsupported("experts of one layer in several formats");
    }
  }
  upload(table.refs, refs.data(), count * sizeof(MatrixRef));
  return &expert_tables_.emplace(w.gate, std::move(table)).first->second;
}

bool CudaOps::all_tuned(const ExpertTable& table, int which) const {
  for (const MatrixSpec& s : table.kinds[which]) {
    if (kernels_of(s).few1.function == nullptr) return false;
  }
  return true;
}

void CudaOps::expert_gate_up(const ExpertTable& table, const ExpertWeights& w, const Pairs& pairs,
                             const Bits16* input, Bits16* out, int32_t act_ld) {
  for (const MatrixSpec& spec : table.kinds[0]) {
    const MatmulKernels& k = kernels_of(spec);
    MatmulParams q{};
    q.x = input;
    q.ldx = spec.k;
    q.y = out;
    q.ldy = act_ld;
    q.kind = kind_of(spec);
    q.joined = 1;
    q.pair = 1;
    q.limit = w.limit;
    q.items = pairs.items;
    q.item_count = pairs.item_count;
    q.table = table.refs;
    q.table_stride = 3;
    q.pair_row = pairs.source;
    q.pair_div = w.top_k;
    run(k.large, {{blocks_of(w.width, kBlockN), static_cast<unsigned>(pairs.max_items)}, 256, k.large_shared},
        q);
  }
}

size_t CudaOps::ordered_bytes(const ExpertWeights& w) const {
  const auto count = static_cast<size_t>(w.down[0].spec.slices) * static_cast<size_t>(rows_) *
                     static_cast<size_t>(w.gate[0].spec.k);
  return padded(count * sizeof(float)) + padded(count / kBlockN * sizeof(int32_t));
}

void CudaOps::expert_down(const ExpertWeights& w, const ExpertTable& table, const Pairs& pairs,
                          const Bits16* act, int64_t act_ld, const float* shared, const float* weight,
                          float* part) {
  const MatrixSpec& spec = w.down[0].spec;
  const MatmulKernels& k = kernels_of(spec);
  Product sliced;
  set_slices(sliced, spec, 0);
  const size_t count =
      static_cast<size_t>(spec.slices) * static_cast<size_t>(rows_) * static_cast<size_t>(spec.n);
  MatmulParams q{};
  q.x = act;
  q.ldx = act_ld;
  q.kind = kind_of(spec);
  q.joined = 1;
  copy_slices(q, sliced);
  q.items = pairs.items;
  q.item_count = pairs.item_count;
  q.table = table.refs + 2;
  q.table_stride = 3;
  q.ordered.source = pairs.source;
  q.ordered.weight = weight;
  q.ordered.acc = take<float>(count);
  q.ordered.done = take<int32_t>(count / kBlockN);
  q.ordered.shared = shared;
  q.ordered.part = part;
  q.ordered.rows = rows_;
  q.ordered.top_k = w.top_k;
  if (!measuring_) check(device_->fill(stream_, q.ordered.done, 0, count / kBlockN * sizeof(int32_t)));
  // All experts for some columns at a time, so that the sums of those stay in L2; but few experts in flight,
  // for their rows wait for each other.
  constexpr unsigned kInFlight = 24;
  const unsigned columns = blocks_of(spec.n, k.large_channels),
                 least = blocks_of(2 * device_->info().multiprocessors, kInFlight),
                 wanted = blocks_of(static_cast<int64_t>(count * sizeof(float)),
                                    static_cast<int64_t>(device_->info().l2_bytes / 10 * 7)),
                 passes = std::max(1u, std::min(wanted, columns / least)), group = blocks_of(columns, passes);
  run(k.large,
      {{group, static_cast<unsigned>(pairs.max_items), blocks_of(columns, group)}, 256, k.large_shared}, q);
}

CudaOps::Pairs CudaOps::group_pairs(const int32_t* idx, int32_t top_k, int32_t experts, int32_t rows_per_item,
                                    bool apart) {
  Pairs g;
  g.count = rows_ * top_k;
  g.max_items = std::min(g.count, experts + g.count / rows_per_item);
  const auto pairs = static_cast<size_t>(g.count);
  g.source = take<int32_t>(pairs);
  g.pair_of = take<int32_t>(pairs);
  if (apart) {
    g.row = take<int32_t>(pairs);
    g.expert = take<int32_t>(pairs);
  }
  g.items = take<ExpertItem>(static_cast<size_t>(g.max_items));
  g.item_count = take<int32_t>(1);
  GroupParams p{};
  p.idx = idx;
  p.pair_of = g.pair_of;
  p.pair_row = g.row;
  p.pair_expert = g.expert;
  p.pair_source = g.source;
  p.items = g.items;
  p.item_count = g.item_count;
  p.rows = rows_;
  p.top_k = top_k;
  p.experts = experts;
  p.rows_per_item = rows_per_item;
  run(kernels_.group_pairs, {{1}, 1024}, p);
  return g;
}

void CudaOps::expert_products(const ExpertTable& table, int which, int32_t first_part, int32_t joined,
                              const Pairs& pairs, const Bits16* x, int64_t ldx, int64_t part_stride,
                              bool by_row, const Product& out, int32_t columns_first, int32_t columns_count,
                              int32_t n, int32_t unit_span) {
  const auto slices = static_cast<unsigned>(std::max(1, out.slices));
  for (const MatrixSpec& spec : table.kinds[which]) {
    if (spec.format == MatrixFormat::kF32) {
      for (int32_t part = 0; part < joined; ++part) {
        MatvecF32Params q{};
        q.x = x;
        q.y = out.y;
        q.ldx = ldx;
        q.ldy = out.ldy;
        q.n = n;
        q.k = spec.k;
        q.out_f32 = out.f32;
        q.column = part * n;
        copy_slices(q, out);
        q.items = pairs.items;
        q.item_count = pairs.item_count;
        q.table = table.refs;
        q.table_stride = 3;
        q.part = first_part + part;
        q.pair_row = by_row ? pairs.row : nullptr;
        run(kernels_.matvec_f32, {{blocks_of(n, 8), static_cast<unsigned>(pairs.max_items), slices}, 256}, q);
      }
      continue;
    }
    const MatmulKernels& k = kernels_of(spec);
    const bool few = rows_ <= kFewRows && k.few1.function != nullptr;
    const bool large = !few && spec.format == MatrixFormat::kExl3 && k.large.function != nullptr;
    const int32_t channels = large ? k.large_channels : kBlockN;
    const ColumnBlocks blocks = column_blocks(columns_first, columns_count, channels);
    MatmulParams q{};
    q.x = x;
    q.ldx = ldx;
    q.y = out.y;
    q.ldy = out.ldy;
    q.out_f32 = out.f32;
    q.kind = kind_of(spec);
    q.joined = joined;
    q.split = 8;
    q.unit_span = unit_span > 1 ? unit_span : 0;
    q.raw = unit_span > 1;
    copy_slices(q, out);
    q.items = pairs.items;
    q.item_count = pairs.item_count;
    q.table = table.refs + first_part;
    q.table_stride = 3;
    q.pair_row = by_row ? pairs.row : nullptr;
    q.pair_div = 1;
    q.x_part_stride = static_cast<int32_t>(part_stride);
    q.block_offset = blocks.offset;
    q.column_shift = columns_first;
    for (int32_t part = 0; part < joined; ++part) {
      q.parts[part].column = part * n;
      q.parts[part].block_begin = part * ((n + channels - 1) / channels);
    }
    const auto across = static_cast<unsigned>(blocks.count * joined),
               down = static_cast<unsigned>(pairs.max_items);
    if (few) {
      run(k.few1, {{across, down, slices * static_cast<unsigned>(unit_span)}, 256, k.few1_shared}, q);
    } else if (large) {
      run(k.large, {{across, down}, 256, k.large_shared}, q);  // a block takes all slices
    } else {
      run(k.many, {{across, down, slices}, 256, k.many_shared}, q);
    }
  }
}

void CudaOps::shared_alone(const ExpertWeights& w, const Act* x, float* part) {
  const int32_t hidden = w.gate[0].spec.k;
  const int64_t count = static_cast<int64_t>(rows_) * hidden;
  if (!begin_scratch(shared_expert_bytes(w))) return;
  const float* const slices = shared_expert(w, x);
  if (slices == nullptr) {
    clear_part(part, count);
  } else {
    combine_slices(slices, count, w.shared_down.spec.slices, rows_, hidden, part);
  }
}

void CudaOps::experts(Stage, const ExpertWeights& w, const Act* x, const int32_t* idx, const float* weight,
                      float* part) {
  if (rows_ == 0 || !status_.ok()) return;
  if (w.experts > 1024 || w.top_k > 64) return unsupported("more than 1024 experts or 64 a token");
  if (w.width == 0) return shared_alone(w, x, part);
  const ExpertTable* table = expert_table(w);
  if (table == nullptr || !status_.ok()) return;
  if (experts_few_apply(*table, w)) {
    // Without a router the choice is only read.
    return experts_few(*table, w, x, const_cast<int32_t*>(idx), const_cast<float*>(weight), part, nullptr);
  }
  const MatrixSpec& gate = w.gate[0].spec;
  const MatrixSpec& down = w.down[0].spec;
  const int32_t hidden = gate.k, pairs_count = rows_ * w.top_k, slices = down.slices;
  const bool exl3 = gate.format == MatrixFormat::kExl3, down_exl3 = down.format == MatrixFormat::kExl3;
  const auto pairs = static_cast<size_t>(pairs_count), rows = static_cast<size_t>(rows_);
  const auto h = static_cast<size_t>(hidden), width = static_cast<size_t>(w.width),
             n_slices = static_cast<size_t>(slices);
  const int32_t act_ld = padded_k(w.width);

  // The down slices of all pairs may be large: they come in passes over columns, each combined before the
  // next.
  int32_t passes = 1;
  const size_t down_bytes = n_slices * pairs * h * sizeof(float);
  while (down_bytes / static_cast<size_t>(passes) > down_pass_bytes() && hidden / passes % (2 * kBlockN) == 0)
    passes *= 2;
  const int32_t pass_columns = (hidden + passes - 1) / passes;
  // More rows never ask for less: scratch is planned by the longest batch.
  const size_t down_need =
      passes == 1
          ? down_bytes
          : std::max(down_pass_bytes(), n_slices * pairs * static_cast<size_t>(pass_columns) * sizeof(float));

  // Few rows of EXL3: the first product leaves sums by unit, which expert_act adds and finishes.
  const bool by_unit = exl3 && rows_ <= kFewRows && hidden > kUnit && all_tuned(*table, 0);
  const int32_t span = by_unit ? (hidden + kUnit - 1) / kUnit : 1;
  const size_t rotated_rows = !exl3 ? 0 : w.shared_suh ? rows : 2 * pairs;
  const bool tuned = exl3 && down_exl3 && all_tuned(*table, 0) && all_tuned(*table, 1);
  // One launch takes gate and up to the inputs of the down products.
  const bool at_once = rows_ > kFewRows && tuned && table->paired && w.shared_suh;
  const size_t gate_up_bytes =
      at_once ? 0 : static_cast<size_t>(span) * 2 * pairs * width * (by_unit ? 4 : 2);
  // One more the down products and their sum over experts.
  const bool ordered = experts_in_order_ && at_once && table->kinds[1].size() == 1 && hidden % kBlockN == 0;
  size_t need = padded(rotated_rows * h * 2) + padded(gate_up_bytes) +
                padded(pairs * static_cast<size_t>(act_ld) * 2) +
                padded(exl3 ? 0 : rows * static_cast<size_t>(padded_k(hidden)) * 2) +
                (ordered ? ordered_bytes(w) : padded(down_need)) + 4 * padded(pairs * 4) +
                padded((pairs + static_cast<size_t>(w.experts)) * sizeof(ExpertItem)) + 4096;
  need += shared_expert_bytes(w);
  if (!begin_scratch(need)) return;

  // Few rows: at most 8 a pass. An expert that more rows picked is read again, which is rare.
  const int32_t per_item = rows_ <= kFewRows ? 8 : tuned ? kExl3ItemRows : kRowsPerTile;
  // Inputs: rotated once a row when all gate and up matrices share their signs and scales, else per pair.
  const Bits16* input = bits(x);
  int64_t input_ld = hidden;
  bool by_row = true;
  int64_t part_stride = 0;
  Pairs g;
  if (exl3) {
    Bits16* rotated = take<Bits16>(rotated_rows * h);
    RotateParams r{};
    r.x = bits(x);
    r.y = rotated;
    r.ldx = r.ldy = hidden;
    r.k = hidden;
    r.rows = rows_;
    if (w.shared_suh) {
      r.suh = ref_of(w.gate[0]).suh;
      g = group_pairs(idx, w.top_k, w.experts, per_item, !at_once);
      run(kernels_.rotate, {{blocks_of(hidden, 1024), static_cast<unsigned>(rows_)}, 256}, r);
    } else {
      g = group_pairs(idx, w.top_k, w.experts, per_item, true);
      r.rows = pairs_count;
      r.pair_row = g.row;
      r.pair_expert = g.expert;
      r.table = table->refs;
      r.table_stride = 3;
      for (int32_t i = 0; i < 2; ++i) {
        r.part = i;
        r.y = rotated + static_cast<size_t>(i) * pairs * h;
        run(kernels_.rotate, {{blocks_of(hidden, 1024), static_cast<unsigned>(pairs_count)}, 256}, r);
      }
      by_row = false;
      part_stride = pairs_count;
    }
    input = rotated;
  } else {
    g = group_pairs(idx, w.top_k, w.experts, per_item, true);
    if (gate.format != MatrixFormat::kF32 && needs_padding(hidden, hidden)) {
      input = pad(input, hidden, hidden, rows_);
      input_ld = padded_k(hidden);
    }
  }

  Bits16* const act = take<Bits16>(pairs * static_cast<size_t>(act_ld));
  if (at_once) {
    expert_gate_up(*table, w, g, input, act, act_ld);
  } else {
    Product gate_up;
    gate_up.ldy = 2 * w.width;
    gate_up.f32 = by_unit;
    gate_up.slice_stride = static_cast<int64_t>(pairs_count) * 2 * w.width;
    if (by_unit) {
      gate_up.y = take<float>(static_cast<size_t>(span) * 2 * pairs * width);
    } else {
      gate_up.y = take<Bits16>(2 * pairs * width);
    }
    expert_products(*table, 0, 0, 2, g, input, input_ld, part_stride, by_row, gate_up, 0, w.width, w.width,
                    span);
    ExpertActParams a{};
    a.gate_up = by_unit ? nullptr : static_cast<const Bits16*>(gate_up.y);
    a.sums = by_unit ? static_cast<const float*>(gate_up.y) : nullptr;
    a.unit_stride = gate_up.slice_stride;
    a.units = span;
    a.ld = act_ld;
    a.out = act;
    a.pairs = pairs_count;
    a.width = w.width;
    a.limit = w.limit;
    a.pair_expert = g.expert;
    a.table = table->refs;
    a.table_stride = 3;
    a.down_exl3 = down_exl3;
    run(kernels_.expert_act, {{blocks_of(act_ld, 1024), static_cast<unsigned>(pairs_count)}, 256}, a);
  }

  const float* shared_slices = shared_expert(w, x);
  if (ordered) return expert_down(w, *table, g, act, act_ld, shared_slices, weight, part);
  const int64_t shared_stride = static_cast<int64_t>(rows_) * hidden;

  Product d;
  d.f32 = true;
  d.ldy = pass_columns;
  set_slices(d, down, static_cast<int64_t>(pairs_count) * pass_columns);
  float* out = take<float>(n_slices * pairs * static_cast<size_t>(pass_columns));
  d.y = out;
  for (int32_t pass = 0; pass < passes; ++pass) {
    const int32_t first = pass * pass_columns, count = std::min(pass_columns, hidden - first);
    expert_products(*table, 1, 2, 1, g, act, act_ld, 0, false, d, first, count, hidden, 1);
    CombineParams c{};
    c.slices = out;
    c.shared = shared_slices;
    c.part = part;
    c.slice_stride = d.slice_stride;
    c.shared_stride = shared_stride;
    c.rows = rows_;
    c.n = pass_columns;
    c.column0 = first;
    c.full_n = hidden;
    c.local_slices = slices;
    c.top_k = w.top_k;
    c.pair_of = g.pair_of;
    c.weight = weight;
    run_combine(c);
  }
}

}  // namespace firesteel::cuda
