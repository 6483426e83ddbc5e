// The linear ops of the CUDA backend.
#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops_impl.h"
#include "ops/cuda/launch.h"

namespace firesteel::cuda {

void CudaOps::linear(Stage, std::span<const Matrix> ws, const Act* x, Act* y) {
  if (ws.empty() || !begin_scratch(product_bytes(ws, rows_))) return;
  Product p;
  p.x = bits(x);
  p.ldx = ws[0].spec.k;
  p.rows = rows_;
  p.y = y;
  for (const Matrix& w : ws) p.ldy += w.spec.n;
  products(ws, p);
}

void CudaOps::linears(Stage stage, std::span<const LinearJob> jobs) {
  CHECK(jobs.size() <= 32);
  // Dense matrices of one format and K go in one launch, each with its own input and output.
  const auto joins = [](const LinearJob& job) {
    if (job.ws.empty() || job.ws.size() > kMaxJoined) return false;
    const MatrixSpec& first = job.ws[0].spec;
    return first.format != MatrixFormat::kF32 && first.format != MatrixFormat::kExl3 &&
           !needs_padding(first.k, first.k) &&
           std::all_of(job.ws.begin(), job.ws.end(), [&](const Matrix& m) {
             return m.spec.format == first.format && m.spec.k == first.k && m.spec.n > 0;
           });
  };
  uint32_t done = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (done >> i & 1) continue;
    if (!joins(jobs[i])) {
      linear(stage, jobs[i].ws, jobs[i].x, jobs[i].y);
      continue;
    }
    const MatrixSpec& kind = jobs[i].ws[0].spec;
    Matrix ws[kMaxJoined];
    PartIo io[kMaxJoined];
    size_t count = 0;
    for (size_t j = i; j < jobs.size(); ++j) {
      const LinearJob& job = jobs[j];
      if ((done >> j & 1) || !joins(job) || job.ws[0].spec.format != kind.format ||
          job.ws[0].spec.k != kind.k || count + job.ws.size() > kMaxJoined) {
        continue;
      }
      done |= 1u << j;
      int64_t width = 0, column = 0;
      for (const Matrix& w : job.ws) width += w.spec.n;
      for (const Matrix& w : job.ws) {
        ws[count] = w;
        io[count++] = PartIo{bits(job.x), bits(job.y) + column, kind.k, width};
        column += w.spec.n;
      }
    }
    if (!begin_scratch(0)) return;
    Product p;
    p.x = bits(jobs[i].x);
    p.ldx = kind.k;
    p.rows = rows_;
    p.io = io;
    products({ws, count}, p);
  }
}

void CudaOps::linear_f32(Stage, const Matrix& w, const Act* x, int32_t rows, float* y) {
  if (!begin_scratch(product_bytes({&w, 1}, rows))) return;
  Product p;
  p.x = bits(x);
  p.ldx = w.spec.k;
  p.rows = rows;
  p.y = y;
  p.ldy = w.spec.n;
  p.f32 = true;
  products({&w, 1}, p);
}

void CudaOps::combine_slices(const float* slices, int64_t stride, int32_t count, int32_t rows, int32_t n,
                             float* part) {
  CombineParams c{};
  c.slices = slices;
  c.part = part;
  c.slice_stride = stride;
  c.rows = rows;
  c.n = n;
  c.full_n = n;
  c.local_slices = count;
  run_combine(c);
}

void CudaOps::run_combine(const CombineParams& c) {
  // With few rows, more blocks; with many, wider reads.
  const bool wide = c.rows > kFewRows && c.n % 4 == 0 && c.full_n % 4 == 0 && c.column0 % 4 == 0 &&
                    reinterpret_cast<uintptr_t>(c.part) % 16 == 0;
  run(wide ? kernels_.combine_4 : kernels_.combine,
      {{blocks_of(c.n, wide ? 1024 : 256), static_cast<unsigned>(c.rows)}, 256}, c);
}

void CudaOps::linear_sliced(Stage, const Matrix& w, const Act* x, float* part) {
  const MatrixSpec& s = w.spec;
  const int64_t stride = static_cast<int64_t>(rows_) * s.n;
  // Prompts of dense matrices: a block adds two slices.
  const bool neighbours = adds_neighbours(s);
  const int32_t slices = neighbours ? (s.slices + 1) / 2 : s.slices;
  const size_t stash = neighbours ? size_t{blocks_of(rows_, kWideRows)} * blocks_of(s.n, kBlockN) *
                                        static_cast<size_t>(slices) * kWideRows * kBlockN
                                  : 0;
  const size_t slices_bytes = slices > 1 ? padded(static_cast<size_t>(stride * slices) * sizeof(float)) : 0;
  if (rows_ == 0 ||
      !begin_scratch(product_bytes({&w, 1}, rows_) + slices_bytes + padded(stash * sizeof(float)))) {
    return;
  }
  if (s.k == 0) return clear_part(part, stride);
  Product p;
  p.x = bits(x);
  p.ldx = s.k;
  p.rows = rows_;
  p.ldy = s.n;
  p.f32 = true;
  set_slices(p, s, stride);
  if (folds(s)) {
    p.fold = true;
    p.y = part;
    return products({&w, 1}, p);
  }
  p.neighbours = neighbours;
  float* sums = slices > 1 ? take<float>(static_cast<size_t>(stride * slices)) : part;
  p.y = sums;
  products({&w, 1}, p);
  if (slices > 1) combine_slices(sums, stride, slices, rows_, s.n, part);
}

}  // namespace firesteel::cuda
