// How the CPU backend keeps a loaded matrix, and its dot-product tile.
//
// Layout of Matrix::data (every part 64-byte aligned): the weights [n, k] in their own type (fp32, bf16,
// e4m3; EXL3: the decoded inner matrix as fp16, transposed to [n, k]), then fp32 block scales (FP8) or suh
// [k] and svh [n] as fp32 (EXL3). The memory belongs to whoever planned it. Loading is the loader's thread;
// the rest may run on any thread.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/thread_pool.h"
#include "ops/ops.h"

namespace firesteel::cpu {

/// Widest K that may be loaded; bounds the scratch of one row.
inline constexpr int32_t kMaxK = 1 << 18;
inline constexpr int32_t kHadamard = 128;
inline constexpr int32_t kScaleBlock = 128;  // FP8

/// The parts of a loaded matrix.
struct MatrixView {
  MatrixFormat format = MatrixFormat::kF32;
  int32_t n = 0, k = 0;
  const std::byte* weight = nullptr;
  const float* scale = nullptr;  // FP8: [⌈n/128⌉, ⌈k/128⌉]
  const float* suh = nullptr;    // EXL3: [k]
  const float* svh = nullptr;    // EXL3: [n]

  /// Weights (row, k0 … k0+count) as fp32; an EXL3 matrix gives its inner matrix.
  void row_f32(int32_t row, int32_t k0, int32_t count, float* dst) const;
};

MatrixView view(const Matrix& m);
size_t matrix_bytes(const MatrixSpec& spec);
/// What the spec becomes once loaded: a decoded EXL3 matrix is fp32, a narrowed one bf16.
MatrixSpec loaded_spec(const MatrixSpec& spec);
/// kUnsupported for shapes outside the format.
Status check_spec(const MatrixSpec& spec);
Result<Matrix> load_matrix(const MatrixSpec& spec, MatrixSource& source, std::byte* dst, ThreadPool& pool);

/// Rows of fp32 activations: row i is x + (index ? index[i] : i)·ld.
struct Rows {
  const float* x = nullptr;
  int64_t ld = 0;
  const int32_t* index = nullptr;
  int32_t count = 0;
  const float* row(int32_t i) const { return x + static_cast<int64_t>(index ? index[i] : i) * ld; }
};

/// Rows whose partial sums a tile keeps at once, outputs converted at once, and the K-chunk that stays in
/// cache. None of them changes a bit of any result.
inline constexpr int32_t kRowBlock = 96;
inline constexpr int32_t kTileOutputs = 16;
inline constexpr int32_t kChunkK = 256;
/// Floats of scratch that dot_tile needs.
inline constexpr size_t kDotScratch = size_t{kRowBlock} * kTileOutputs * 16 + size_t{kTileOutputs} * kChunkK;

/// out[r·ldo + i] = Σ_{k0 ≤ k < k1} w[n0+i, k]·x_r[k] for i < n and every row: 16 lanes over k starting at
/// k0, +0 where the range is empty. A result depends on its row and its output alone.
void dot_tile(const MatrixView& w, int32_t n0, int32_t n, int32_t k0, int32_t k1, const Rows& x, float* out,
              int64_t ldo, float* scratch);

/// dst[j] = Hadamard over each 128-block of suh∘x, k elements.
void rotate_input(const float* suh, const float* x, int32_t k, float* dst);
/// x[0..128) ← svh ∘ Hadamard(x).
void rotate_output(const float* svh, float* x);

}  // namespace firesteel::cpu
