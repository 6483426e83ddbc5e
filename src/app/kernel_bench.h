// What the kernel bench needs of a GPU: memory of random weights, and the time of an operation as a graph.
//
// Every case is recorded as a graph of several calls over distinct weights or routings (so that L2 does not
// flatter it) and replayed; the median over replays is kept, with the bytes that must move once. Weights are
// random in the stored form: speed does not depend on their values. One thread; a failing call of the driver
// ends the program with its line.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/bench_models.h"
#include "gpu/device.h"
#include "ops/cuda/cuda_ops.h"
#include "quant/codebook.h"

namespace firesteel {

class KernelBench {
 public:
  /// A GPU must be there.
  explicit KernelBench(const BenchKernelsOptions& options);

  Ops& ops() { return *parts_.ops; }
  const std::vector<int>& rows() const { return options_.rows; }
  size_t most_rows() const;
  /// "fp8 " or nothing, for names of cases.
  const char* kv_name() const;

  // Device memory, kept until the end.
  std::byte* take(size_t bytes);
  template <typename T>
  T* zeros(size_t count) {
    std::byte* p = take(count * sizeof(T));
    ops().zero(p, count * sizeof(T));
    return reinterpret_cast<T*>(p);
  }
  Act* act(size_t count) { return reinterpret_cast<Act*>(filled(count * ops().act_size(), true)); }
  float* floats(size_t count, float value);
  /// KV rows of n normals each, in the format asked for.
  std::byte* kv_rows(size_t bytes, int32_t n);
  Matrix matrix(MatrixFormat format, int32_t n, int32_t k, int32_t slices = 1, int32_t bits = 4,
                Codebook codebook = Codebook::kMcg);

  /// The next cases' batch: `rows` of so many sequences, each of which has `start` tokens.
  void bind(int32_t rows, int32_t start, int32_t segments = 1);
  /// Times `issue(i)`, i = 0 … calls - 1, as one graph; `bytes` and `flops` are of one call.
  void time(const std::string& name, int32_t rows, int calls, double bytes, double flops,
            const std::function<void(int)>& issue, const std::string& note = "");
  /// The same for work that waits for its answer: times by the clock, one call after the other.
  void time_waiting(const std::string& name, int32_t rows, double bytes, const std::function<void()>& work,
                    const std::string& note = "");
  /// The machine's own rates: of copies, and of tensor-core products alone (ops/cuda/probe.cu).
  void copy_rate();
  void mma_rate();

  nlohmann::ordered_json figures() const;

 private:
  /// Repeated noise (bf16 normals) or random bits.
  std::byte* filled(size_t bytes, bool normals);
  void add(const std::string& name, int32_t rows, std::vector<double> times_us, double bytes, double flops,
           const std::string& note);

  const BenchKernelsOptions options_;
  CudaOpsParts parts_;
  std::vector<uint16_t> noise_, bits_;
  std::byte *noise_on_device_ = nullptr, *bits_on_device_ = nullptr;
  std::vector<int32_t> tokens_, pages_;
  std::vector<Segment> segments_;
  nlohmann::ordered_json cases_ = nlohmann::ordered_json::array();
  double copy_gb_s_ = 0;
};

}  // namespace firesteel
