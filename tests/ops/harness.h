// What every operation test stands on: backends as parameters, guarded buffers in the backend's memory,
// random data from a printed seed, matrices in every weight format with their float64 meaning, and
// comparison.
//
// A backend joins by adding a line to backends() in harness.cc; its tolerances scale with the width of its
// activations.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "support/random.h"

namespace firesteel::test {

struct BackendCase {
  std::string name;
  std::function<std::unique_ptr<Ops>(int threads)> make;
  double unit;  // relative error of one stored activation; tolerances are multiples of it
};
std::vector<BackendCase> backends();

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

/// Memory of the backend with poisoned contents (NaN) between guards that check() verifies.
class Buffer {
 public:
  Buffer(Ops& ops, size_t bytes);
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void check() const;

 private:
  Ops* ops_;
  std::byte* data_;
  size_t bytes_;
};

/// A matrix of the backend and what it means: dense float64 [n, k].
struct TestMatrix {
  Matrix matrix;
  Doubles dense;
  Doubles suh;  // EXL3
  int32_t n = 0, k = 0;
  double at(int32_t row, int32_t col) const { return dense[size_t(row) * size_t(k) + size_t(col)]; }
};

struct MatrixOptions {
  MatrixFormat format = MatrixFormat::kBf16;
  Codebook codebook = Codebook::kMcg;
  uint8_t bits = 4;
  double std = 1;
  int32_t slices = 1;                          // local slices
  int32_t first_slice = 0;                     // of the four, with slices > 1 or a rank's single slice
  const std::vector<uint16_t>* suh = nullptr;  // EXL3: shared input scales
  MatrixKeep keep = MatrixKeep::kStored;       // kFp8, kQ4: narrowed while loading
};

/// The checkpoint bytes of one unsliced matrix; a rank's part is cut from it.
struct StoredMatrix {
  MatrixFormat format;
  Codebook codebook = Codebook::k3Inst;
  uint8_t bits = 0;
  int32_t n = 0, k = 0;
  std::vector<std::byte> weight;
  Floats scale;
  std::vector<uint16_t> suh, svh;
  Doubles dense;  // [n, k]; of a narrowed matrix, its narrowed weights
  MatrixKeep keep = MatrixKeep::kStored;
};
StoredMatrix make_stored(Random& random, const MatrixOptions& options, int32_t n, int32_t k);
/// Loads columns [k0, k1) of `stored` with the given local slice ends (empty: one slice).
TestMatrix load_part(Ops& ops, const StoredMatrix& stored, int32_t k0, int32_t k1,
                     const std::vector<int32_t>& ends, MatrixKeep keep = MatrixKeep::kStored);
inline TestMatrix load_all(Ops& ops, const StoredMatrix& stored) {
  return load_part(ops, stored, 0, stored.k, {});
}
/// Slices [first, first+count) of the four of a row-parallel matrix.
TestMatrix load_slices(Ops& ops, const StoredMatrix& stored, int32_t first, int32_t count);

/// One backend with scratch, and the usual transfers.
class OpsTest : public ::testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override { start(1, 64); }
  void TearDown() override;
  /// A fresh backend with so many threads and scratch for so many rows.
  void start(int threads, int32_t rows);

  Ops& ops() { return *ops_; }
  Random& random() { return random_; }
  Floats normals(size_t n, double mean = 0, double std = 1);
  int32_t below(int32_t n) { return static_cast<int32_t>(random_.below(static_cast<uint64_t>(n))); }
  double unit() const { return GetParam().unit; }

  Act* act(const Floats& host);       // uploaded activations
  Act* empty_act(size_t count);       // poisoned
  float* floats(const Floats& host);  // uploaded fp32
  float* empty_floats(size_t count);  // poisoned
  int32_t* empty_ints(size_t count);
  Floats get(const Act* p, size_t count);
  Floats get(const float* p, size_t count);
  std::vector<int32_t> get(const int32_t* p, size_t count);
  Buffer& buffer(size_t bytes);

  /// Binds `rows` rows of one sequence from position `start` on in slot 0, pages 0, 1, ….
  void bind(int32_t rows, int32_t start = 0);
  void bind(const std::vector<Segment>& segments, int32_t pages_each);

  /// |actual - expected| ≤ tol·unit·max|expected|, elementwise; both finite or both the same infinity or NaN.
  void expect_close(const Floats& actual, const Doubles& expected, double tol, const std::string& what);

  std::vector<int32_t> tokens_, pages_;
  std::vector<Segment> segments_;
  Batch batch_;

 private:
  std::unique_ptr<Ops> ops_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  Random random_;
};

#define FS_FOR_EACH_BACKEND(suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, ::testing::ValuesIn(::firesteel::test::backends()), \
                           [](const auto& info) { return info.param.name; })

/// y[t, i] = Σ_k w[i, k]·x[t, k] in float64.
Doubles product(const TestMatrix& w, const Doubles& x, int32_t rows);
inline Doubles wide(const Floats& x) { return {x.begin(), x.end()}; }
double sigmoid(double x);
double silu(double x);
/// x·w/√(mean(x²) + ε) of each row of n.
Doubles rms_norm(const Doubles& x, const Floats& w, double eps);

}  // namespace firesteel::test
