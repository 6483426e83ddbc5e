// Runs one op on the CPU backend (the definition) and on the CUDA backend, on the same bf16-representable
// inputs.
//
// A Side is one backend with a bump arena; `Both` owns the two for the whole test program (CUDA start-up is
// not free) and skips tests where no GPU is. Outputs are poisoned with NaN before every op.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ops/ops.h"
#include "support/random.h"
#include "tensor/dtype.h"

namespace firesteel::test {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float round_bf16(float v);
std::vector<float> bf16_normals(Random& random, size_t count, double std);

/// A random matrix in checkpoint form.
class RawMatrix : public MatrixSource {
 public:
  static RawMatrix make(Random& random, MatrixFormat format, int32_t n, int32_t k, int32_t bits = 0,
                        Codebook codebook = Codebook::kMcg, const RawMatrix* same_suh = nullptr,
                        MatrixKeep keep = MatrixKeep::kStored);
  /// One rank's or one slicing's view: spec.slices local slices of the unsliced K.
  void slice(int32_t slices);
  Status read_rows(MatrixPart part, int64_t first, int64_t count, void* dst) override;

  MatrixSpec spec;

 private:
  std::vector<std::byte> weight_, scale_, suh_, svh_;
};

class Side {
 public:
  Side(std::unique_ptr<Ops> ops, size_t arena_bytes);
  Ops& ops() { return *ops_; }
  void reset() { used_ = 0; }
  std::byte* take(size_t bytes);
  template <typename T>
  T* up(std::span<const T> host) {
    auto* p = reinterpret_cast<T*>(take(host.size_bytes()));
    ops_->upload(p, host.data(), host.size_bytes());
    return p;
  }
  float* f32(const std::vector<float>& host) { return up(std::span<const float>(host)); }
  float* poisoned(size_t count) { return f32(std::vector<float>(count, kNan)); }
  Act* act(const std::vector<float>& host);
  Act* poisoned_act(size_t count) { return act(std::vector<float>(count, kNan)); }
  Matrix load(RawMatrix& raw);
  std::vector<float> read(const float* p, size_t count);
  std::vector<int32_t> read(const int32_t* p, size_t count);
  std::vector<float> read_act(const Act* p, size_t count);
  void finish();

 private:
  std::unique_ptr<Ops> ops_;
  std::byte* arena_ = nullptr;
  size_t size_ = 0, used_ = 0;
};

/// The CUDA backend, made once; nullptr where there is none (the reason is printed once).
Side* cuda_side(KvFormat kv = KvFormat::kWide);
Side* cpu_side(KvFormat kv = KvFormat::kWide);

/// Skips the test without a GPU; starts both arenas anew.
#define REQUIRE_CUDA()                                         \
  if (cuda_side() == nullptr) GTEST_SKIP() << "no usable GPU"; \
  cuda_side()->reset();                                        \
  cpu_side()->reset()

/// A batch of segments, each with its own pages: segment i has slot i.
struct TestBatch {
  std::vector<int32_t> tokens, pages;
  std::vector<Segment> segments;
  int32_t rows = 0, page_count = 0;
  void add(int32_t segment_rows, int32_t start, int32_t slot);
  Batch view() const { return Batch{rows, tokens, segments, pages}; }
};

/// ‖a − b‖ / ‖b‖; NaN or a size difference never passes a limit.
double relative_error(const std::vector<float>& a, const std::vector<float>& b);
void expect_close(const std::vector<float>& got, const std::vector<float>& want, double limit,
                  const char* what);
/// Every bit; the number of differing values is reported.
void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what);
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace firesteel::test
