// Speed of the CPU operations: bytes a second where a decoded row reads weights once, operations a second
// where a prompt chunk shares them. Shapes are those of GLM-5.3-Flash (one layer's matrices, real heads) or a
// quarter where memory is dear.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "ops/ops.h"

namespace firesteel {
namespace {

/// Small numbers of any size, cheap to make.
class Noise : public MatrixSource {
 public:
  explicit Noise(const MatrixSpec& spec) : spec_(spec) {}
  Status read_rows(MatrixPart part, int64_t, int64_t count, void* dst) override {
    size_t bytes = static_cast<size_t>(count);
    if (part == MatrixPart::kWeight) {
      bytes *= spec_.format == MatrixFormat::kExl3   ? static_cast<size_t>(spec_.n) * 2 * spec_.bits
               : spec_.format == MatrixFormat::kBf16 ? static_cast<size_t>(spec_.k) * 2
                                                     : static_cast<size_t>(spec_.k);
    } else if (part == MatrixPart::kScale) {
      std::fill_n(static_cast<float*>(dst), count * ((spec_.k + 127) / 128), 0.01f);
      return Status::success();
    } else {
      std::fill_n(static_cast<uint16_t*>(dst), count, uint16_t{0x3C00});
      return Status::success();
    }
    auto* out = static_cast<unsigned char*>(dst);
    for (size_t i = 0; i < bytes; ++i) {
      // bf16 in (-2, 2), or any bits of a trellis or of e4m3 below its NaNs.
      const auto r = static_cast<unsigned char>(state_ = state_ * 1664525u + 1013904223u, state_ >> 24);
      out[i] = spec_.format == MatrixFormat::kBf16 && i % 2 == 1
                   ? static_cast<unsigned char>((r & 0x80) | 0x3E | (r & 1))
               : spec_.format == MatrixFormat::kFp8Block ? static_cast<unsigned char>(r & 0xBF)
                                                         : r;
    }
    return Status::success();
  }

 private:
  MatrixSpec spec_;
  uint32_t state_ = 1;
};

/// A backend with scratch and one bound sequence.
class Bench {
 public:
  Bench(int threads, int32_t rows, int32_t start = 0) : ops_(make_cpu_ops(threads)) {
    const size_t bytes = ops_->scratch_bytes(rows);
    ops_->set_scratch(ops_->allocate(bytes, "scratch").value(), bytes);
    segments_ = {{0, rows, start, 0, 0}};
    pages_.resize(static_cast<size_t>((start + rows + kPageTokens - 1) / kPageTokens));
    for (size_t i = 0; i < pages_.size(); ++i) pages_[i] = static_cast<int32_t>(i);
    tokens_.resize(static_cast<size_t>(rows));
    ops_->bind({rows, tokens_, segments_, pages_});
  }
  Ops& ops() { return *ops_; }
  size_t pages() const { return pages_.size(); }
  Matrix matrix(MatrixFormat format, int32_t n, int32_t k) {
    MatrixSpec spec;
    spec.format = format;
    spec.codebook = Codebook::kMcg;
    spec.bits = format == MatrixFormat::kExl3 ? 4 : 0;
    spec.n = n;
    spec.k = k;
    Noise source(spec);
    return ops_->load_matrix(spec, source, ops_->allocate(ops_->matrix_bytes(spec), "matrix").value())
        .value();
  }
  float* floats(size_t count, float size = 1) {
    auto* p = reinterpret_cast<float*>(ops_->allocate(count * 4, "floats").value());
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-size, size);
    for (size_t i = 0; i < count; ++i) p[i] = uniform(random);
    return p;
  }
  Act* act(size_t count, float size = 1) { return reinterpret_cast<Act*>(floats(count, size)); }
  std::byte* zeros(size_t bytes) {
    std::byte* p = ops_->allocate(bytes, "plane").value();
    std::memset(p, 0, bytes);
    return p;
  }

 private:
  std::unique_ptr<Ops> ops_;
  std::vector<int32_t> tokens_, pages_;
  std::vector<Segment> segments_;
};

/// Arguments: format, rows, threads.
void linear(benchmark::State& state) {
  const auto format = static_cast<MatrixFormat>(state.range(0));
  const auto rows = static_cast<int32_t>(state.range(1));
  constexpr int32_t kN = 8192, kK = 4096;
  Bench b(static_cast<int>(state.range(2)), rows);
  const Matrix w = b.matrix(format, kN, kK);
  Act *x = b.act(static_cast<size_t>(rows) * kK), *y = b.act(static_cast<size_t>(rows) * kN);
  for (auto _ : state) {
    b.ops().linear(Stage::kMain, {&w, 1}, x, y);
    benchmark::ClobberMemory();
  }
  using Counter = benchmark::Counter;
  const double rate = static_cast<double>(state.iterations());
  const double bytes = static_cast<double>(b.ops().matrix_bytes(w.spec));
  state.counters["GB/s"] = Counter(rate * bytes * 1e-9, Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(rate * 2e-9 * rows * kN * kK, Counter::kIsRate);
}
BENCHMARK(linear)
    ->ArgNames({"format", "rows", "threads"})
    ->ArgsProduct({{static_cast<int>(MatrixFormat::kBf16), static_cast<int>(MatrixFormat::kFp8Block),
                    static_cast<int>(MatrixFormat::kExl3)},
                   {1, 4, 128},
                   {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// One KDA layer of 64 heads of 128. Bytes: the state, read and written once a row.
void kda(benchmark::State& state) {
  const auto rows = static_cast<int32_t>(state.range(0));
  Bench b(static_cast<int>(state.range(1)), rows);
  KdaWeights w;
  w.heads = 64;
  w.dim = 128;
  const size_t all = 64 * 128, r = static_cast<size_t>(rows);
  w.conv = b.floats(3 * all * 4);
  w.a_log = b.floats(64);
  w.dt_bias = b.floats(all);
  w.o_norm = b.floats(128);
  const size_t slot = b.ops().kda_slot_bytes(w);
  const SlotPlane plane{b.zeros(slot), slot};
  Act *qkv = b.act(r * 3 * all), *f = b.act(r * all), *beta = b.act(r * 64), *g = b.act(r * all),
      *out = b.act(r * all);
  for (auto _ : state) {
    b.ops().kda(Stage::kMain, w, qkv, f, beta, g, plane, out);
    benchmark::ClobberMemory();
  }
  state.counters["us/row"] = benchmark::Counter(static_cast<double>(state.iterations()) * rows * 1e-6,
                                                benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(kda)
    ->ArgNames({"rows", "threads"})
    ->ArgsProduct({{1, 128}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// What a decoded row reads, far beyond any cache: 12 bf16 matrices, 768 MiB. Argument: threads.
void decode_stream(benchmark::State& state) {
  constexpr int32_t kN = 8192, kK = 4096;
  Bench b(static_cast<int>(state.range(0)), 1);
  std::vector<Matrix> ws;
  for (int i = 0; i < 12; ++i) ws.push_back(b.matrix(MatrixFormat::kBf16, kN, kK));
  Act *x = b.act(kK), *y = b.act(kN);
  for (auto _ : state)
    for (const Matrix& w : ws) b.ops().linear(Stage::kMain, {&w, 1}, x, y);
  const double bytes = 12.0 * kN * kK * 2;
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * bytes * 1e-9, benchmark::Counter::kIsRate);
}
BENCHMARK(decode_stream)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Arg(4)
    ->Arg(8)
    ->Arg(16)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// The bound of the above: the same bytes added up and nothing else.
void read_stream(benchmark::State& state) {
  constexpr int64_t kWords = int64_t{768} << 17, kChunk = 1 << 16;  // of 8 bytes
  ThreadPool pool(static_cast<int>(state.range(0)));
  std::vector<uint64_t> words(kWords, 1);
  std::vector<uint64_t> sums(static_cast<size_t>(pool.size()) * 8);
  for (auto _ : state)
    pool.parallel_for(kWords / kChunk, [&](int64_t c, int worker) {
      uint64_t sum = 0;
      for (const uint64_t* p = words.data() + c * kChunk; p < words.data() + (c + 1) * kChunk; ++p) sum += *p;
      sums[static_cast<size_t>(worker) * 8] += sum;
    });
  benchmark::DoNotOptimize(sums.data());
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(state.iterations()) * kWords * 8e-9,
                                              benchmark::Counter::kIsRate);
}
BENCHMARK(read_stream)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Arg(4)
    ->Arg(8)
    ->Arg(16)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// Sparse attention of 16 heads (a quarter of the model's) over 512 pools of 4 tokens.
void attention(benchmark::State& state) {
  const auto rows = static_cast<int32_t>(state.range(0));
  constexpr int32_t kStart = 4096, kHeads = 16, kTop = 512;
  Bench b(static_cast<int>(state.range(1)), rows, kStart);
  AttentionWeights w{kHeads, 256, 256, 512, b.matrix(MatrixFormat::kBf16, kHeads * 512, 512)};
  const size_t page = b.ops().latent_row_bytes(512) * kPageTokens, r = static_cast<size_t>(rows);
  const Plane plane{reinterpret_cast<std::byte*>(b.floats(page * b.pages() / 4)), page};
  std::vector<int32_t> pools, count(r, kTop);
  for (size_t i = 0; i < r; ++i) {
    for (int32_t p = 0; p < kTop; ++p) pools.push_back(2 * p);
  }
  const Selection sel{pools.data(), count.data(), kTop};
  Act *q = b.act(r * kHeads * 256), *out = b.act(r * kHeads * 256);
  for (auto _ : state) {
    b.ops().sparse_attention(Stage::kMain, w, q, plane, sel, 4, out);
    benchmark::ClobberMemory();
  }
  const double flops = 2.0 * rows * kHeads * (2.0 * 4 * kTop * 512 + 2.0 * 256 * 512);
  state.counters["GFLOP/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * flops * 1e-9, benchmark::Counter::kIsRate);
}
BENCHMARK(attention)
    ->ArgNames({"rows", "threads"})
    ->ArgsProduct({{1, 64}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// Pool scores and selection at a long context: 32768 pools of 4 tokens, 32 heads of 128.
void select(benchmark::State& state) {
  const auto rows = static_cast<int32_t>(state.range(0));
  constexpr int32_t kStart = 4 * 32768;
  Bench b(static_cast<int>(state.range(1)), rows, kStart);
  IndexerWeights w;
  w.heads = 32;
  w.dim = 128;
  const size_t page = b.ops().pool_row_bytes(128) * (kPageTokens / 4), r = static_cast<size_t>(rows);
  const Plane plane{reinterpret_cast<std::byte*>(b.floats(page * b.pages() / 4)), page};
  std::vector<int32_t> pools(r * 512), count(r);
  Act *q = b.act(r * 32 * 128), *hw = b.act(r * 32);
  for (auto _ : state) {
    b.ops().pool_select(Stage::kMain, w, q, hw, plane, {pools.data(), count.data(), 512});
    benchmark::ClobberMemory();
  }
  state.counters["GFLOP/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * 2e-9 * rows * 32 * 128 * 32768, benchmark::Counter::kIsRate);
}
BENCHMARK(select)
    ->ArgNames({"rows", "threads"})
    ->ArgsProduct({{1, 8}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace firesteel

BENCHMARK_MAIN();
