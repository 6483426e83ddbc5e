// Router and routed experts (spec/model.md 2.7, 2.8).
#include <algorithm>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/order.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/tiles.h"

namespace firesteel::cpu {
namespace {

/// Moves the largest of keys [0, n) out (sets it to 0) and returns its place; keys are distinct and above 0.
int32_t take_largest(uint64_t* keys, int32_t n) {
  const int32_t i = static_cast<int32_t>(std::max_element(keys, keys + n) - keys);
  keys[i] = 0;
  return i;
}

/// Choice among one row's experts; p are the probabilities.
void choose(const RouterWeights& w, const float* p, uint64_t* keys, uint64_t* groups, int32_t* idx,
            float* weight) {
  const int32_t n = w.experts;
  for (int32_t e = 0; e < n; ++e) keys[e] = descending_key(p[e] + w.bias[e], static_cast<uint32_t>(e));
  if (w.groups > 1 && w.top_groups < w.groups) {
    const int32_t size = n / w.groups;
    for (int32_t g = 0; g < w.groups; ++g) {
      uint64_t best = 0, second = 0;
      for (int32_t e = g * size; e < (g + 1) * size; ++e) {
        if (keys[e] > best) {
          second = best;
          best = keys[e];
        } else {
          second = std::max(second, keys[e]);
        }
      }
      const auto score = [&](uint64_t key) { return p[key_index(key)] + w.bias[key_index(key)]; };
      groups[g] =
          descending_key(second == 0 ? score(best) : score(best) + score(second), static_cast<uint32_t>(g));
    }
    // What is left after the best groups are taken is masked: behind every other expert, lower id first.
    for (int32_t i = 0; i < w.top_groups; ++i) take_largest(groups, w.groups);
    for (int32_t e = 0; e < size * w.groups; ++e) {
      if (groups[e / size] != 0) keys[e] = static_cast<uint32_t>(keys[e]);
    }
  }
  for (int32_t i = 0; i < w.top_k; ++i) idx[i] = take_largest(keys, n);
  std::sort(idx, idx + w.top_k);
  float total = 0.0f;
  for (int32_t i = 0; i < w.top_k; ++i) total += p[idx[i]];
  for (int32_t i = 0; i < w.top_k; ++i) {
    const float share = w.norm_topk ? p[idx[i]] / (total + 1e-20f) : p[idx[i]];
    weight[i] = share * w.factor;
  }
}

/// One expert with its rows; the shared expert is the last of a pass, with all rows and weight 1.
struct Job {
  MatrixView gate, up, down;
  const Matrix* down_matrix;
  const int32_t* rows;  // [count] of the pass; null: 0, 1, …
  const float* weight;  // [count]; null: 1
  int32_t count;
  int32_t width;
  int64_t pair;    // its first pair within the group of jobs
  bool one_input;  // gate and up read the same (rotated) rows
};

}  // namespace

void CpuOps::router(Stage, const RouterWeights& w, const Act* x, int32_t* idx, float* weight) {
  CHECK(w.top_k <= w.experts && w.experts == w.weight.spec.n);
  const size_t n = static_cast<size_t>(w.experts);
  const size_t row_floats = n + 2 * (n + static_cast<size_t>(w.groups)) + 64;
  for (int32_t first = 0; first < batch_.rows;) {
    Scratch s = scratch();
    Scratch probe = s;
    probe.take<float>(static_cast<size_t>(workers()) * product_floats());
    // Half for the logits and keys, the rest for rotated inputs if there are any.
    const int32_t rows =
        probe.rows_that_fit(batch_.rows - first, 2 * row_floats + static_cast<size_t>(w.weight.spec.k));
    float* p = s.take<float>(static_cast<size_t>(rows) * n);
    uint64_t* keys = s.take<uint64_t>(static_cast<size_t>(rows) * (n + static_cast<size_t>(w.groups)));
    products({&w.weight, 1}, f32(x) + int64_t{first} * w.weight.spec.k, w.weight.spec.k, rows, p, w.experts,
             s);
    pool_.parallel_for(rows, [&](int64_t r, int) {
      float* pr = p + r * w.experts;
      for16(n, [&](size_t i, size_t c) { store16(sigmoid16(load16(pr + i, c)), pr + i, c); });
      uint64_t* k = keys + r * (w.experts + w.groups);
      choose(w, pr, k, k + w.experts, idx + (first + r) * w.top_k, weight + (first + r) * w.top_k);
    });
    first += rows;
  }
}

/// The rows [first, first+rows) of one experts() call.
struct CpuOps::ExpertPass {
  CpuOps& ops;
  const ExpertWeights& w;
  const float* x;  // [rows, H] of this pass
  int32_t rows, hidden, slices;
  float* worker_scratch;
  float* acc;                // [slices, rows, H]
  float* rotated = nullptr;  // [rows, H]: the input of all routed gate and up matrices when they share suh

  /// Gate, up and the unit of a group of jobs; h[pair, width] is left ready for down.
  void inner(const Job* jobs, int32_t count, int64_t pairs, int32_t width, float* gate_up, float* inputs,
             float* h) {
    auto& pool = ops.pool_;
    const auto job_of = [&](int64_t pair) {
      int32_t j = count - 1;
      while (jobs[j].pair > pair) --j;
      return &jobs[j];
    };
    const auto row_of = [&](const Job& j, int64_t pair) {
      const int64_t i = pair - j.pair;
      return x + int64_t{j.rows ? j.rows[i] : static_cast<int32_t>(i)} * hidden;
    };
    if (inputs != nullptr) {
      pool.parallel_for(2 * pairs, [&](int64_t t, int) {
        const Job& j = *job_of(t / 2);
        const MatrixView& m = t % 2 == 0 ? j.gate : j.up;
        if (m.format != MatrixFormat::kExl3 || (rotated != nullptr && j.rows != nullptr)) return;
        if (t % 2 == 1 && j.one_input) return;
        rotate_input(m.suh, row_of(j, t / 2), hidden, inputs + t * hidden);
      });
    }
    // Tasks: for each job its gate tiles, then its up tiles.
    const auto tiles_of = [&](const Job& j) {
      return tile_count(j.gate, tile_outputs(j.gate, ops.workers())) +
             tile_count(j.up, tile_outputs(j.up, ops.workers()));
    };
    int64_t tasks = 0;
    for (int32_t i = 0; i < count; ++i) tasks += tiles_of(jobs[i]);
    const size_t per_worker = product_floats();
    pool.parallel_for(tasks, [&](int64_t t, int worker) {
      const Job* j = jobs;
      while (t >= tiles_of(*j)) t -= tiles_of(*j++);
      const int32_t gate_tiles = tile_count(j->gate, tile_outputs(j->gate, ops.workers()));
      const bool is_up = t >= gate_tiles;
      const MatrixView& m = is_up ? j->up : j->gate;
      const int32_t tile = tile_outputs(m, ops.workers());
      const int32_t n0 = static_cast<int32_t>(is_up ? t - gate_tiles : t) * tile,
                    n = std::min(tile, m.n - n0);
      Rows in{x, hidden, j->rows, j->count};
      if (m.format == MatrixFormat::kExl3) {
        if (rotated != nullptr && j->rows != nullptr) {
          in.x = rotated;
        } else {
          const int64_t which = 2 * j->pair + (is_up && !j->one_input ? 1 : 0);
          in = Rows{inputs + which * hidden, int64_t{2} * hidden, nullptr, j->count};
        }
      }
      float* dot_scratch = worker_scratch + static_cast<size_t>(worker) * per_worker;
      float* out = dot_scratch + kDotScratch;
      for (int32_t r = 0; r < j->count; r += kRowBlock) {
        const int32_t block = std::min(kRowBlock, j->count - r);
        product_tile(m, n0, n, 0, m.k, sub_rows(in, r, block), out, dot_scratch);
        for (int32_t i = 0; i < block; ++i) {
          std::memcpy(gate_up + (j->pair + r + i) * 2 * width + (is_up ? width : 0) + n0,
                      out + int64_t{i} * kTile, sizeof(float) * static_cast<size_t>(n));
        }
      }
    });
    pool.parallel_for(pairs, [&](int64_t pair, int) {
      const Job& j = *job_of(pair);
      float* g = gate_up + pair * 2 * width;
      float* out = h + pair * width;
      if (j.down.format != MatrixFormat::kExl3) return glu_row(g, g + width, j.width, w.limit, out);
      glu_row(g, g + width, j.width, w.limit, g);
      rotate_input(j.down.suh, g, j.width, out);
    });
  }

  /// acc[slice, row] = fma(weight, down part, acc), jobs in ascending id; each task owns a tile of outputs.
  void outer(const Job* jobs, int32_t count, int32_t width, const float* h) {
    // One tile size for all jobs: they write the same accumulators.
    int32_t tile = 8;
    for (int32_t i = 0; i < count; ++i) tile = std::max(tile, tile_outputs(jobs[i].down, ops.workers()));
    const size_t per_worker = product_floats();
    ops.pool_.parallel_for((hidden + tile - 1) / tile, [&](int64_t t, int worker) {
      float* dot_scratch = worker_scratch + static_cast<size_t>(worker) * per_worker;
      float* out = dot_scratch + kDotScratch;
      const int32_t n0 = static_cast<int32_t>(t) * tile, n = std::min(tile, hidden - n0);
      for (int32_t i = 0; i < count; ++i) {
        const Job& j = jobs[i];
        for (int32_t r = 0; r < j.count; r += kRowBlock) {
          const int32_t block = std::min(kRowBlock, j.count - r);
          const Rows in{h + (j.pair + r) * width, width, nullptr, block};
          for (int32_t s = 0; s < slices; ++s) {
            const MatrixSpec& spec = j.down_matrix->spec;
            product_tile(j.down, n0, n, slice_first(spec, s), slice_last(spec, s), in, out, dot_scratch);
            for (int32_t b = 0; b < block; ++b) {
              const int32_t row = j.rows ? j.rows[r + b] : r + b;
              const V16 scale = set16(j.weight ? j.weight[r + b] : 1.0f);
              float* a = acc + (int64_t{s} * rows + row) * hidden + n0;
              for16(static_cast<size_t>(n), [&](size_t c, size_t some) {
                store16(fma(scale, load16(out + int64_t{b} * kTile + c, some), load16(a + c, some)), a + c,
                        some);
              });
            }
          }
        }
      }
    });
  }
};

void CpuOps::experts(Stage, const ExpertWeights& w, const Act* x_act, const int32_t* idx, const float* weight,
                     float* part) {
  const bool has_shared = w.shared_gate.spec.n > 0;
  const int32_t experts = w.width > 0 ? w.experts : 0;  // an empty slice of them adds nothing
  const Matrix& any_down = w.experts > 0 ? w.down[0] : w.shared_down;
  const int32_t hidden = any_down.spec.n, slices = any_down.spec.slices;
  CHECK(!has_shared || (w.shared_down.spec.slices == slices && w.shared_down.spec.n == hidden));
  const int32_t width = std::max(experts > 0 ? w.width : 0, has_shared ? w.shared_gate.spec.n : 0);
  const auto is_exl3 = [](const Matrix& m) { return m.spec.format == MatrixFormat::kExl3; };
  bool any_exl3 = has_shared && (is_exl3(w.shared_gate) || is_exl3(w.shared_up));
  for (int32_t e = 0; e < experts; ++e) any_exl3 |= is_exl3(w.gate[e]) || is_exl3(w.up[e]);
  const bool share_input = w.shared_suh && experts > 0 && is_exl3(w.gate[0]);

  const size_t h_floats = static_cast<size_t>(hidden), w_floats = static_cast<size_t>(width);
  const size_t pair_floats = (any_exl3 ? 2 * h_floats : 0) + 3 * w_floats;
  const size_t row_floats = static_cast<size_t>(slices) * h_floats + (share_input ? h_floats : 0) +
                            pair_floats + 2 * static_cast<size_t>(w.top_k) + 64;
  const size_t job_count = static_cast<size_t>(w.experts) + 1;

  for (int32_t first = 0; first < batch_.rows;) {
    Scratch s = scratch();
    float* worker_scratch = s.take<float>(static_cast<size_t>(workers()) * product_floats());
    Job* jobs = s.take<Job>(job_count);
    int32_t* fill = s.take<int32_t>(job_count);
    const int32_t rows = s.rows_that_fit(batch_.rows - first, row_floats);
    const size_t all_pairs = static_cast<size_t>(rows) * static_cast<size_t>(w.top_k);
    int32_t* pair_row = s.take<int32_t>(all_pairs);
    float* pair_weight = s.take<float>(all_pairs);
    ExpertPass pass{*this,          w,      f32(x_act) + int64_t{first} * hidden, rows, hidden, slices,
                    worker_scratch, nullptr};
    pass.acc = s.take<float>(static_cast<size_t>(slices) * static_cast<size_t>(rows) * h_floats);
    if (share_input) pass.rotated = s.take<float>(static_cast<size_t>(rows) * h_floats);

    // Rows by expert, ascending in both.
    const int32_t* row_idx = idx + int64_t{first} * w.top_k;
    const float* row_weight = weight + int64_t{first} * w.top_k;
    std::fill_n(fill, w.experts, 0);
    for (size_t i = 0; i < all_pairs; ++i) ++fill[row_idx[i]];
    int32_t job_total = 0, at = 0;
    for (int32_t e = 0; e < w.experts; ++e) {
      const int32_t count = fill[e];
      fill[e] = at;
      if (count > 0 && experts > 0) {
        Job j{view(w.gate[e]),  view(w.up[e]), view(w.down[e]), &w.down[e], pair_row + at,
              pair_weight + at, count,         w.width,         0,          true};
        if (j.gate.format == MatrixFormat::kExl3) j.one_input = same_suh(j.gate, j.up);
        jobs[job_total++] = j;
      }
      at += count;
    }
    for (size_t i = 0; i < all_pairs; ++i) {
      const int32_t p = fill[row_idx[i]]++;
      pair_row[p] = static_cast<int32_t>(i / static_cast<size_t>(w.top_k));
      pair_weight[p] = row_weight[i];
    }
    if (has_shared) {
      Job j{view(w.shared_gate),
            view(w.shared_up),
            view(w.shared_down),
            &w.shared_down,
            nullptr,
            nullptr,
            rows,
            w.shared_gate.spec.n,
            0,
            true};
      if (j.gate.format == MatrixFormat::kExl3) j.one_input = same_suh(j.gate, j.up);
      jobs[job_total++] = j;
    }

    if (share_input) {
      const float* suh = view(w.gate[0]).suh;
      pool_.parallel_for(rows, [&](int64_t r, int) {
        rotate_input(suh, pass.x + r * hidden, hidden, pass.rotated + r * hidden);
      });
    }
    std::memset(pass.acc, 0,
                sizeof(float) * static_cast<size_t>(slices) * static_cast<size_t>(rows) * h_floats);
    // Groups of experts as large as the scratch allows; one expert's rows always fit.
    const int64_t most = s.rows_that_fit(static_cast<int32_t>(all_pairs) + rows, pair_floats + 16);
    float* inputs = any_exl3 ? s.take<float>(static_cast<size_t>(most) * 2 * h_floats) : nullptr;
    float* gate_up = s.take<float>(static_cast<size_t>(most) * 2 * w_floats);
    float* h = s.take<float>(static_cast<size_t>(most) * w_floats);
    for (int32_t j = 0; j < job_total;) {
      int32_t last = j;
      int64_t pairs = 0;
      while (last < job_total && (last == j || pairs + jobs[last].count <= most)) {
        jobs[last].pair = pairs;
        pairs += jobs[last++].count;
      }
      pass.inner(jobs + j, last - j, pairs, width, gate_up, inputs, h);
      pass.outer(jobs + j, last - j, width, h);
      j = last;
    }
    pool_.parallel_for(rows, [&](int64_t r, int) {
      join_slices(pass.acc + r * hidden, int64_t{rows} * hidden, slices, hidden, part + (first + r) * hidden);
    });
    first += rows;
  }
}

}  // namespace firesteel::cpu
