// Operations that treat every row alone: embedding, norms, the gated unit, head and MTP inputs, copies.
#include "ops/cpu/rows.h"

#include <cstring>

#include "ops/cpu/cpu_ops.h"

namespace firesteel::cpu {

void CpuOps::embed(Stage, const Matrix& table, Act* streams) {
  const MatrixView e = view(table);
  CHECK(e.format != MatrixFormat::kExl3);
  float* out = f32(streams);
  pool_.parallel_for(batch_.rows, [&](int64_t r, int) {
    float* x = out + r * kStreams * e.k;
    e.row_f32(batch_.tokens[static_cast<size_t>(r)], 0, e.k, x);
    for (int32_t s = 1; s < kStreams; ++s)
      std::memcpy(x + int64_t{s} * e.k, x, sizeof(float) * static_cast<size_t>(e.k));
  });
}

void CpuOps::rms_norm(Stage, const float* w, float eps, int32_t n, const Act* x, int32_t ldx, Act* y) {
  pool_.parallel_for(batch_.rows,
                     [&](int64_t r, int) { rms_row(w, eps, n, f32(x) + r * ldx, f32(y) + r * n); });
}

void CpuOps::glu(Stage, const Act* gate_up, int32_t width, float limit, Act* out) {
  pool_.parallel_for(batch_.rows, [&](int64_t r, int) {
    const float* g = f32(gate_up) + r * 2 * width;
    glu_row(g, g + width, width, limit, f32(out) + r * width);
  });
}

void CpuOps::head_input(Stage, const Act* streams, std::span<const int32_t> rows, int32_t hidden,
                        const float* norm, float eps, Act* h) {
  const V16 quarter = set16(0.25f);
  pool_.parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t i, int) {
    const float* x = f32(streams) + int64_t{rows[static_cast<size_t>(i)]} * kStreams * hidden;
    float* y = f32(h) + i * hidden;
    for16(static_cast<size_t>(hidden), [&](size_t j, size_t c) {
      const auto stream = [&](int s) { return load16(x + int64_t{s} * hidden + j, c); };
      store16(mul(cpu::add(cpu::add(stream(0), stream(1)), cpu::add(stream(2), stream(3))), quarter), y + j,
              c);
    });
    rms_row(norm, eps, hidden, y, y);
  });
}

void CpuOps::gather(Stage, const Act* x, std::span<const int32_t> rows, int32_t n, Act* out) {
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(f32(out) + static_cast<int64_t>(i) * n, f32(x) + int64_t{rows[i]} * n,
                sizeof(float) * static_cast<size_t>(n));
  }
}

void CpuOps::mtp_input(Stage, const Matrix& table, const float* enorm, const float* hnorm, float eps,
                       const Act* h, Act* out) {
  const MatrixView e = view(table);
  CHECK(e.format != MatrixFormat::kExl3);
  pool_.parallel_for(batch_.rows, [&](int64_t r, int) {
    float* y = f32(out) + r * 2 * e.k;
    if (position(static_cast<int32_t>(r)) == 0) {
      std::memset(y, 0, sizeof(float) * static_cast<size_t>(e.k));
    } else {
      e.row_f32(batch_.tokens[static_cast<size_t>(r)], 0, e.k, y);
      rms_row(enorm, eps, e.k, y, y);
    }
    rms_row(hnorm, eps, e.k, f32(h) + r * e.k, y + e.k);
  });
}

void CpuOps::add(Stage, Act* x, const float* y, size_t count) {
  constexpr size_t kPiece = 4096;
  pool_.parallel_for(static_cast<int64_t>((count + kPiece - 1) / kPiece), [&](int64_t p, int) {
    const size_t first = static_cast<size_t>(p) * kPiece;
    float* xs = f32(x) + first;
    for16(std::min(kPiece, count - first), [&](size_t i, size_t c) {
      store16(cpu::add(load16(xs + i, c), load16(y + first + i, c)), xs + i, c);
    });
  });
}

}  // namespace firesteel::cpu
