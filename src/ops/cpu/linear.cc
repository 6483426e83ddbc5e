// Matrix products with rows of activations.
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/tiles.h"

namespace firesteel::cpu {
namespace {

// Matrices of one pass; longer lists are cut.
constexpr size_t kMostMatrices = 16;
// Columns of one task of input rotation.
constexpr int32_t kRotateColumns = 1024;

struct Piece {
  MatrixView w;
  int64_t column = 0;  // of its first output in y
  int32_t input = -1;  // which rotated input; -1: x itself
  int32_t tile = 0;
  int64_t first_task = 0;
};

}  // namespace

size_t CpuOps::product_floats() { return kDotScratch + 4 * kTileFloats + 64; }

void CpuOps::products(std::span<const Matrix> ws, const float* x, int64_t ldx, int32_t rows, float* y,
                      int64_t ldy, Scratch s) {
  const size_t per_worker = product_floats();
  float* worker_scratch = s.take<float>(static_cast<size_t>(workers()) * per_worker);
  int64_t column = 0;
  for (;;) {
    while (!ws.empty() && ws[0].spec.n == 0) ws = ws.subspan(1);  // an empty slice
    if (ws.empty()) return;
    // Take matrices while their distinct rotated inputs fit for one row at least.
    Piece pieces[kMostMatrices];
    const MatrixView* inputs[kMostMatrices];
    size_t count = 0, distinct = 0, row_floats = 0;
    int64_t tasks = 0;
    for (; count < ws.size() && count < kMostMatrices && ws[count].spec.n > 0; ++count) {
      Piece& p = pieces[count];
      p.w = view(ws[count]);
      if (p.w.format == MatrixFormat::kExl3) {
        for (size_t i = 0; i < distinct && p.input < 0; ++i) {
          if (same_suh(*inputs[i], p.w)) p.input = static_cast<int32_t>(i);
        }
        if (p.input < 0) {
          const size_t more = row_floats + static_cast<size_t>(p.w.k);
          if (count > 0 && !s.fits(more)) break;
          row_floats = more;
          p.input = static_cast<int32_t>(distinct);
          inputs[distinct++] = &p.w;
        }
      }
      p.column = column;
      p.tile = tile_outputs(p.w, workers());
      p.first_task = tasks;
      tasks += tile_count(p.w, p.tile);
      column += p.w.n;
    }
    ws = ws.subspan(count);

    const int32_t pass = distinct == 0 ? rows : s.rows_that_fit(rows, row_floats);
    Scratch rest = s;
    float* rotated = distinct == 0 ? nullptr : rest.take<float>(static_cast<size_t>(pass) * row_floats);
    for (int32_t first = 0; first < rows; first += pass) {
      const int32_t some = std::min(pass, rows - first);
      const float* in = x + first * ldx;
      if (distinct > 0) {
        // Every distinct input has the same k: they share x.
        const int32_t k = inputs[0]->k, cuts = (k + kRotateColumns - 1) / kRotateColumns;
        pool_.parallel_for(static_cast<int64_t>(distinct) * some * cuts, [&](int64_t t, int) {
          const int64_t i = t / (int64_t{some} * cuts), r = t / cuts % some;
          const int32_t at = static_cast<int32_t>(t % cuts) * kRotateColumns;
          rotate_input(inputs[i]->suh + at, in + r * ldx + at, std::min(kRotateColumns, k - at),
                       rotated + (i * some + r) * k + at);
        });
      }
      pool_.parallel_for(tasks, [&](int64_t t, int worker) {
        size_t i = count - 1;
        while (pieces[i].first_task > t) --i;
        const Piece& p = pieces[i];
        const int32_t n0 = static_cast<int32_t>(t - p.first_task) * p.tile, n = std::min(p.tile, p.w.n - n0);
        const Rows all = p.input < 0 ? Rows{in, ldx, nullptr, some}
                                     : Rows{rotated + int64_t{p.input} * some * p.w.k, p.w.k, nullptr, some};
        float* dot_scratch = worker_scratch + static_cast<size_t>(worker) * per_worker;
        float* out = dot_scratch + kDotScratch;
        for (int32_t r = 0; r < some; r += kRowBlock) {
          const int32_t block = std::min(kRowBlock, some - r);
          product_tile(p.w, n0, n, 0, p.w.k, sub_rows(all, r, block), out, dot_scratch);
          for (int32_t j = 0; j < block; ++j) {
            std::memcpy(y + (first + r + j) * ldy + p.column + n0, out + int64_t{j} * kTile,
                        sizeof(float) * static_cast<size_t>(n));
          }
        }
      });
    }
  }
}

void CpuOps::linear(Stage, std::span<const Matrix> ws, const Act* x, Act* y) {
  int64_t width = 0;
  for (const Matrix& w : ws) width += w.spec.n;
  if (!ws.empty()) products(ws, f32(x), ws[0].spec.k, batch_.rows, f32(y), width, scratch());
}

void CpuOps::linear_f32(Stage, const Matrix& w, const Act* x, int32_t rows, float* y) {
  products({&w, 1}, f32(x), w.spec.k, rows, y, w.spec.n, scratch());
}

void CpuOps::linear_sliced(Stage, const Matrix& m, const Act* x, float* part) {
  const MatrixView w = view(m);
  if (w.k == 0) {  // an empty slice
    std::fill_n(part, int64_t{batch_.rows} * w.n, 0.0f);
    return;
  }
  const size_t per_worker = product_floats();
  Scratch s = scratch();
  float* worker_scratch = s.take<float>(static_cast<size_t>(workers()) * per_worker);
  const bool exl3 = w.format == MatrixFormat::kExl3;
  const int32_t pass = exl3 ? s.rows_that_fit(batch_.rows, static_cast<size_t>(w.k)) : batch_.rows;
  float* rotated = exl3 ? s.take<float>(static_cast<size_t>(pass) * static_cast<size_t>(w.k)) : nullptr;
  for (int32_t first = 0; first < batch_.rows; first += pass) {
    const int32_t some = std::min(pass, batch_.rows - first);
    const float* in = f32(x) + int64_t{first} * w.k;
    if (exl3) {
      const int32_t cuts = (w.k + kRotateColumns - 1) / kRotateColumns;
      pool_.parallel_for(int64_t{some} * cuts, [&](int64_t t, int) {
        const int64_t r = t / cuts;
        const int32_t at = static_cast<int32_t>(t % cuts) * kRotateColumns;
        rotate_input(w.suh + at, in + r * w.k + at, std::min(kRotateColumns, w.k - at),
                     rotated + r * w.k + at);
      });
      in = rotated;
    }
    const int32_t tile = tile_outputs(w, workers());
    pool_.parallel_for(tile_count(w, tile), [&](int64_t t, int worker) {
      float* dot_scratch = worker_scratch + static_cast<size_t>(worker) * per_worker;
      float* out = dot_scratch + kDotScratch;
      const int32_t n0 = static_cast<int32_t>(t) * tile, n = std::min(tile, w.n - n0);
      for (int32_t r = 0; r < some; r += kRowBlock) {
        const int32_t block = std::min(kRowBlock, some - r);
        const Rows rows{in + int64_t{r} * w.k, w.k, nullptr, block};
        for (int32_t i = 0; i < m.spec.slices; ++i) {
          product_tile(w, n0, n, slice_first(m.spec, i), slice_last(m.spec, i), rows, out + i * kTileFloats,
                       dot_scratch);
        }
        for (int32_t j = 0; j < block; ++j) {
          join_slices(out + int64_t{j} * kTile, kTileFloats, m.spec.slices, n,
                      part + int64_t{first + r + j} * w.n + n0);
        }
      }
    });
  }
}

}  // namespace firesteel::cpu
