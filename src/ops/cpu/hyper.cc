// Hyper-connections (spec/model.md 2.2).
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace firesteel::cpu {
namespace {

constexpr int S = kStreams;

float sum4(const float* x, int stride) { return (x[0] + x[stride]) + (x[2 * stride] + x[3 * stride]); }

/// Steps 5 to 7: softmax over columns, + ε, then column and row steps in turn.
void sinkhorn(float* c, float eps, int32_t iters) {
  for (int i = 0; i < S; ++i) {
    float* row = c + i * S;
    const float most = std::max(std::max(row[0], row[1]), std::max(row[2], row[3]));
    for (int j = 0; j < S; ++j) row[j] = exp1(row[j] - most);
    const float total = sum4(row, 1);
    for (int j = 0; j < S; ++j) row[j] = row[j] / total + eps;
  }
  const auto columns = [&] {
    for (int j = 0; j < S; ++j) {
      const float total = sum4(c + j, S) + eps;
      for (int i = 0; i < S; ++i) c[i * S + j] /= total;
    }
  };
  const auto rows = [&] {
    for (int i = 0; i < S; ++i) {
      const float total = sum4(c + i * S, 1) + eps;
      for (int j = 0; j < S; ++j) c[i * S + j] /= total;
    }
  };
  columns();
  for (int32_t step = 1; step < iters; ++step) {
    rows();
    columns();
  }
}

}  // namespace

void CpuOps::hyper_pre(Stage, const HyperSite& w, const Act* streams, Act* x, float* post, float* comb) {
  const int32_t wide = w.fn.spec.k, hidden = wide / S, mixes = w.fn.spec.n;
  CHECK(mixes == S * (S + 2) && wide % S == 0);
  for (int32_t first = 0; first < batch_.rows;) {
    Scratch s = scratch();
    Scratch probe = s;
    probe.take<float>(static_cast<size_t>(workers()) * product_floats());
    const int32_t rows = probe.rows_that_fit(batch_.rows - first, static_cast<size_t>(2 * wide + mixes + 32));
    float* normed = s.take<float>(static_cast<size_t>(rows) * static_cast<size_t>(wide));
    float* z = s.take<float>(static_cast<size_t>(rows) * static_cast<size_t>(mixes));
    const float* in = f32(streams) + int64_t{first} * wide;
    pool_.parallel_for(rows, [&](int64_t r, int) {
      const float* f = in + r * wide;
      const float mean = sum_squares(f, static_cast<size_t>(wide)) / static_cast<float>(wide);
      const V16 scale = set16(rsqrt1(mean + w.rms_eps));
      float* y = normed + r * wide;
      for16(static_cast<size_t>(wide),
            [&](size_t i, size_t c) { store16(mul(load16(f + i, c), scale), y + i, c); });
    });
    products({&w.fn, 1}, normed, wide, rows, z, mixes, s);
    pool_.parallel_for(rows, [&](int64_t r, int) {
      const float* zr = z + r * mixes;
      float pre[S];
      for (int j = 0; j < S; ++j) {
        pre[j] = sigmoid1(zr[j] * w.scale[0] + w.base[j]) + w.hc_eps;
        post[(first + r) * S + j] = 2.0f * sigmoid1(zr[S + j] * w.scale[1] + w.base[S + j]);
      }
      float* c = comb + (first + r) * S * S;
      for (int i = 0; i < S * S; ++i) c[i] = zr[2 * S + i] * w.scale[2] + w.base[2 * S + i];
      sinkhorn(c, w.hc_eps, w.sinkhorn_iters);
      const float* f = in + r * wide;
      float* y = f32(x) + (first + r) * hidden;
      for16(static_cast<size_t>(hidden), [&](size_t i, size_t n) {
        V16 acc = mul(set16(pre[0]), load16(f + i, n));
        for (int j = 1; j < S; ++j) acc = fma(set16(pre[j]), load16(f + int64_t{j} * hidden + i, n), acc);
        store16(acc, y + i, n);
      });
      rms_row(w.norm, w.rms_eps, hidden, y, y);
    });
    first += rows;
  }
}

void CpuOps::hyper_post(Stage, const float* y, const float* post, const float* comb, int32_t hidden,
                        Act* streams) {
  pool_.parallel_for(batch_.rows, [&](int64_t r, int) {
    float* x = f32(streams) + r * S * hidden;
    const float* yr = y + r * hidden;
    const float* p = post + r * S;
    const float* c = comb + r * S * S;
    for16(static_cast<size_t>(hidden), [&](size_t i, size_t n) {
      V16 in[S];
      for (int j = 0; j < S; ++j) in[j] = load16(x + int64_t{j} * hidden + i, n);
      const V16 yv = load16(yr + i, n);
      for (int k = 0; k < S; ++k) {
        V16 acc = mul(set16(p[k]), yv);
        for (int j = 0; j < S; ++j) acc = fma(set16(c[j * S + k]), in[j], acc);
        store16(acc, x + int64_t{k} * hidden + i, n);
      }
    });
  });
}

}  // namespace firesteel::cpu
