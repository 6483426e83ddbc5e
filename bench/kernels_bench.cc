// bench_kernels: the CUDA backend's ops at the shapes of GLM-5.3-Flash, one rank of two.
//
// Every case is captured into a graph of several calls over distinct weights or routings (so that L2 does not
// flatter it) and replayed; the median over replays is reported with the bytes that must move once and their
// share of the machine's own measured copy rate. Weights are random in the stored form: speed does not depend
// on their values.
//
//   bench_kernels [--json FILE] [--commit ID] [--filter TEXT] [--rows 1,8,…] [--kv bf16|fp8] [--profile
//   on|off]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/modules.h"
#include "ops/cuda/pack.h"
#include "ops/cuda/params.h"
#include "quant/kv_row.h"
#include "tensor/dtype.h"

namespace firesteel {
namespace {

constexpr int32_t kHidden = 4096, kExpertWidth = 1024, kExperts = 288, kTop = 8, kHeads = 32;

[[noreturn]] void fail(const Error& error) {
  std::fprintf(stderr, "bench_kernels: %s\n", error.message.c_str());
  std::exit(1);
}
template <typename T>
T must(Result<T> r) {
  if (!r.ok()) fail(r.error());
  return std::move(r).value();
}
void must(const Status& s) {
  if (!s.ok()) fail(s.error());
}

struct Options {
  std::string json, commit = "unknown", filter, command;
  bool profile = false;  // every case once, untimed: for a profiler
  KvFormat kv = KvFormat::kWide;
  std::vector<int32_t> rows = {1, 2, 4, 8, 16, 32, 512, 2048};
};

struct Row {
  std::string name;
  int32_t rows;
  double us, bytes, flops;
  std::string note;
};

class Bench {
 public:
  explicit Bench(Options options)
      : options_(std::move(options)), parts_(must(make_cuda_ops_parts(0, options_.kv))) {
    const size_t scratch = ops().scratch_bytes(2048);
    ops().set_scratch(take(scratch), scratch);
    // Bits of normal numbers in bf16: harmless as codes of any other format.
    std::mt19937_64 random(20260301);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    noise_.resize(size_t{8} << 20);
    for (uint16_t& v : noise_) v = f32_to_bf16(normal(random));
    bits_.resize(size_t{8} << 20);
    for (uint16_t& v : bits_) v = static_cast<uint16_t>(random());
    noise_on_device_ = take(noise_.size() * 2);
    ops().upload(noise_on_device_, noise_.data(), noise_.size() * 2);
    bits_on_device_ = take(bits_.size() * 2);
    ops().upload(bits_on_device_, bits_.data(), bits_.size() * 2);
  }

  Ops& ops() { return *parts_.ops; }
  gpu::Device& device() { return *parts_.device; }
  std::byte* take(size_t bytes) { return must(ops().allocate(bytes, "bench memory")); }
  template <typename T>
  T* zeros(size_t count) {
    std::byte* p = take(count * sizeof(T));
    ops().zero(p, count * sizeof(T));
    return reinterpret_cast<T*>(p);
  }
  /// Device memory of repeated noise (bf16 normals) or random bits.
  std::byte* filled(size_t bytes, bool normals) {
    std::byte* p = take(bytes);
    const size_t piece = noise_.size() * 2;
    for (size_t at = 0; at < bytes; at += piece) {
      ops().copy(p + at, normals ? noise_on_device_ : bits_on_device_, std::min(piece, bytes - at));
    }
    return p;
  }
  /// Device memory of KV rows of n normals each, in the format asked for.
  std::byte* kv_rows(size_t bytes, int32_t n) {
    if (options_.kv == KvFormat::kWide) return filled(bytes, true);
    const size_t row = kv_row_bytes(n), rows = noise_.size() / static_cast<size_t>(n);
    std::vector<std::byte> image(rows * row);
    std::vector<float> values(static_cast<size_t>(n));
    for (size_t r = 0; r < rows; ++r) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = bf16_to_f32(noise_[r * values.size() + i]);
      kv_row_quantize(values.data(), n, image.data() + r * row);
    }
    std::byte* p = take(bytes);
    for (size_t at = 0; at < bytes; at += image.size())
      ops().upload(p + at, image.data(), std::min(image.size(), bytes - at));
    return p;
  }
  const char* kv_name() const { return options_.kv == KvFormat::kFp8 ? "fp8 " : ""; }
  Act* act(size_t count) { return reinterpret_cast<Act*>(filled(count * ops().act_size(), true)); }
  float* floats(size_t count, float value) {
    std::vector<float> v(count, value);
    std::byte* p = take(count * 4);
    ops().upload(p, v.data(), count * 4);
    return reinterpret_cast<float*>(p);
  }

  Matrix matrix(MatrixFormat format, int32_t n, int32_t k, int32_t slices = 1, int32_t bits = 4,
                Codebook codebook = Codebook::kMcg) {
    MatrixSpec s;
    s.format = format;
    s.n = n;
    s.k = k;
    s.slices = slices;
    for (int32_t i = 0; i < slices; ++i) s.slice_end[i] = k / slices * (i + 1);
    if (format == MatrixFormat::kExl3) {
      s.bits = static_cast<uint8_t>(bits);
      s.codebook = codebook;
    }
    const cuda::PackedLayout at = cuda::packed_layout(s);
    const bool narrowed = format == MatrixFormat::kQ4 || format == MatrixFormat::kFp8Rows;
    std::byte* p = filled(at.bytes, format == MatrixFormat::kBf16 || narrowed);
    if (format == MatrixFormat::kExl3) {
      const std::vector<uint16_t> ones(static_cast<size_t>(std::max(n, k)), f32_to_f16(0.02f));
      ops().upload(p + at.suh, ones.data(), static_cast<size_t>(k) * 2);
      ops().upload(p + at.svh, ones.data(), static_cast<size_t>(n) * 2);
    }
    if (format == MatrixFormat::kFp8Block) {
      const std::vector<float> ones(static_cast<size_t>((n + 127) / 128 * ((k + 127) / 128)), 0.001f);
      ops().upload(p + at.scale, ones.data(), ones.size() * 4);
    }
    return Matrix{s, p};
  }

  void bind(int32_t rows, int32_t start, int32_t segments = 1) {
    tokens_.assign(static_cast<size_t>(rows), 1);
    segments_.clear();
    pages_.clear();
    for (int32_t i = 0; i < segments; ++i) {
      Segment s;
      s.first_row = rows / segments * i;
      s.rows = rows / segments;
      s.start = start;
      s.slot = i;
      s.page_begin = 0;
      segments_.push_back(s);
    }
    const int32_t pages = (start + rows) / kPageTokens + 1;
    for (int32_t i = 0; i < pages; ++i) pages_.push_back(pages - 1 - i);
    ops().bind(Batch{rows, tokens_, segments_, pages_});
  }

  /// Times `issue(i)`, i = 0 … calls-1, as one graph.
  void time(const std::string& name, int32_t rows, int calls, double bytes, double flops,
            const std::function<void(int)>& issue, const std::string& note = "") {
    if (!options_.filter.empty() && name.find(options_.filter) == std::string::npos) return;
    if (options_.profile) {
      issue(0);
      return must(ops().finish());
    }
    for (int i = 0; i < calls; ++i) issue(i);  // settles scratch and tables
    must(ops().finish());
    must(device().capture_begin(*parts_.stream));
    for (int i = 0; i < calls; ++i) issue(i);
    gpu::Graph graph = must(device().capture_end(*parts_.stream));
    must(ops().finish());
    const gpu::Event begin = must(device().event(true)), end = must(device().event(true));
    std::vector<double> times;
    for (int repeat = 0; repeat < 12; ++repeat) {
      must(begin.record(*parts_.stream));
      must(graph.replay(*parts_.stream));
      must(end.record(*parts_.stream));
      must(end.synchronize());
      if (repeat >= 2) times.push_back(must(begin.elapsed_ms(end)) * 1e3 / calls);
    }
    std::sort(times.begin(), times.end());
    add(Row{name, rows, times[times.size() / 2], bytes, flops, note});
  }

  void copy_rate() {
    const size_t bytes = size_t{4} << 30;
    std::byte* a = filled(bytes, false);
    std::byte* b = take(bytes);
    const gpu::Event begin = must(device().event(true)), end = must(device().event(true));
    std::vector<double> times;
    for (int repeat = 0; repeat < 8; ++repeat) {
      must(begin.record(*parts_.stream));
      must(device().on_device(*parts_.stream, b, a, bytes));
      must(end.record(*parts_.stream));
      must(end.synchronize());
      if (repeat >= 2) times.push_back(must(begin.elapsed_ms(end)) * 1e3);
    }
    std::sort(times.begin(), times.end());
    const double us = times[times.size() / 2], total = 2.0 * static_cast<double>(bytes);
    copy_gb_s_ = total / us * 1e-3;
    add(Row{"copy (read + write)", 0, us, total, 0, ""});
  }

  /// The rate of tensor-core products alone (ops/cuda/probe.cu): what prompt kernels are measured against.
  void mma_rate() {
    const auto blocks = static_cast<unsigned>(2 * device().info().multiprocessors);
    constexpr int32_t kRounds = 40000;
    const cuda::ProbeParams params{zeros<float>(size_t{blocks} * 256), kRounds};
    must(ops().finish());
    for (const gpu::EmbeddedModule& m : embedded_modules()) {
      if (m.name != "probe") continue;
      const gpu::Module module = must(device().load(m));
      for (const char* name : {"probe_f16", "probe_bf16"}) {
        const auto kernel = must(device().kernel<cuda::ProbeParams>(module, name));
        const gpu::Event begin = must(device().event(true)), end = must(device().event(true));
        std::vector<double> times;
        for (int repeat = 0; repeat < 6; ++repeat) {
          must(begin.record(*parts_.stream));
          must(device().launch(*parts_.stream, kernel, {{blocks}, 256}, params));
          must(end.record(*parts_.stream));
          must(end.synchronize());
          if (repeat >= 1) times.push_back(must(begin.elapsed_ms(end)) * 1e3);
        }
        std::sort(times.begin(), times.end());
        const double products = 8.0 * 8 * blocks * kRounds;  // of 16 × 8 × 16
        add(Row{std::string("mma.sync alone, ") + (name + 6), 0, times[times.size() / 2], 0, products * 4096,
                ""});
      }
    }
  }

  void write_json() const {
    if (options_.json.empty()) return;
    std::ofstream out(options_.json);
    const gpu::DeviceInfo& d = parts_.device->info();
    out << "{\n  \"machine\": \"" << d.name << ", " << d.multiprocessors << " multiprocessors, "
        << d.clock_khz / 1000 << " MHz maximum, driver " << d.driver_version << "\",\n  \"commit\": \""
        << options_.commit << "\",\n  \"command\": \"" << options_.command
        << "\",\n  \"copy_gb_s\": " << copy_gb_s_
        << ",\n  \"shape\": \"GLM-5.3-Flash, one rank of two, synthetic weights\",\n  \"cases\": [\n";
    for (size_t i = 0; i < table_.size(); ++i) {
      const Row& r = table_[i];
      out << "    {\"name\": \"" << r.name << "\", \"rows\": " << r.rows << ", \"us\": " << r.us
          << ", \"bytes\": " << r.bytes << ", \"gb_s\": " << r.bytes / r.us * 1e-3
          << ", \"share_of_copy\": " << r.bytes / r.us * 1e-3 / copy_gb_s_
          << ", \"tflop_s\": " << r.flops / r.us * 1e-6 << ", \"note\": \"" << r.note << "\"}"
          << (i + 1 < table_.size() ? "," : "") << "\n";
    }
    out << "  ]\n}\n";
    if (!out) fail(Error{ErrorCode::kIo, "cannot write " + options_.json});
  }

  const std::vector<int32_t>& rows() const { return options_.rows; }
  double copy_gb_s() const { return copy_gb_s_; }

 private:
  void add(Row r) {
    std::printf("%-44s %5d rows %10.1f us %8.0f GB/s %5.1f %% of copy %7.1f TFLOP/s  %s\n", r.name.c_str(),
                r.rows, r.us, r.bytes / r.us * 1e-3,
                copy_gb_s_ > 0 ? r.bytes / r.us * 1e-1 / copy_gb_s_ : 0.0, r.flops / r.us * 1e-6,
                r.note.c_str());
    std::fflush(stdout);
    table_.push_back(std::move(r));
  }

  Options options_;
  CudaOpsParts parts_;
  std::vector<uint16_t> noise_, bits_;
  std::byte *noise_on_device_ = nullptr, *bits_on_device_ = nullptr;
  std::vector<int32_t> tokens_, pages_;
  std::vector<Segment> segments_;
  std::vector<Row> table_;
  double copy_gb_s_ = 0;
};

double matrix_size(const Matrix& m) { return static_cast<double>(cuda::packed_layout(m.spec).bytes); }

void bench_linear(Bench& b, const char* name, MatrixFormat format, int32_t n, int32_t k, int32_t bits = 4,
                  Codebook codebook = Codebook::kMcg, bool prompt = true) {
  // Enough copies that a call's weights have left L2 when it comes round again.
  const double size = static_cast<double>(n) * k *
                      (format == MatrixFormat::kBf16       ? 2
                       : format == MatrixFormat::kFp8Block ? 1
                       : format == MatrixFormat::kFp8Rows  ? 1.03
                       : format == MatrixFormat::kQ4       ? 0.5625
                                                           : bits / 8.0);
  const int copies = static_cast<int>(std::clamp(4e8 / size, 2.0, 24.0));
  std::vector<Matrix> ws;
  for (int i = 0; i < copies; ++i) ws.push_back(b.matrix(format, n, k, 1, bits, codebook));
  const int32_t most = *std::max_element(b.rows().begin(), b.rows().end());
  Act* x = b.act(static_cast<size_t>(most) * static_cast<size_t>(k));
  auto* y = reinterpret_cast<Act*>(b.take(static_cast<size_t>(most) * static_cast<size_t>(n) * 2));
  for (const int32_t rows : b.rows()) {
    if (rows > 64 && !prompt) continue;
    b.bind(rows, 0);
    const double io = 2.0 * rows * (n + k);
    b.time(name, rows, copies, matrix_size(ws[0]) + io, 2.0 * rows * n * k, [&](int i) {
      b.ops().linear(Stage::kMain, {&ws[static_cast<size_t>(i)], 1}, x, y);
    });
  }
}

void bench_experts(Bench& b, int32_t bits, Codebook codebook, bool prompt) {
  std::vector<Matrix> gate, up, down;
  for (int32_t e = 0; e < kExperts; ++e) {
    gate.push_back(b.matrix(MatrixFormat::kExl3, kExpertWidth, kHidden, 1, bits, codebook));
    up.push_back(b.matrix(MatrixFormat::kExl3, kExpertWidth, kHidden, 1, bits, codebook));
    down.push_back(b.matrix(MatrixFormat::kExl3, kHidden, kExpertWidth, 2, bits, codebook));
  }
  ExpertWeights w;
  w.experts = kExperts;
  w.top_k = kTop;
  w.width = kExpertWidth;
  w.gate = gate.data();
  w.up = up.data();
  w.down = down.data();
  w.shared_suh = true;
  const double expert_bytes = 2 * matrix_size(gate[0]) + matrix_size(down[0]);
  const int32_t most = *std::max_element(b.rows().begin(), b.rows().end());
  Act* x = b.act(static_cast<size_t>(most) * kHidden);
  float* part = b.zeros<float>(static_cast<size_t>(most) * kHidden);
  float* weight = b.floats(static_cast<size_t>(most) * kTop, 0.125f);
  std::mt19937 random(7);
  // The shared expert, one for each call of a case.
  constexpr int kRoutings = 16;
  std::vector<ExpertWeights> with_shared(kRoutings, w);
  for (ExpertWeights& s : with_shared) {
    s.shared_gate = b.matrix(MatrixFormat::kBf16, kExpertWidth, kHidden);
    s.shared_up = b.matrix(MatrixFormat::kBf16, kExpertWidth, kHidden);
    s.shared_down = b.matrix(MatrixFormat::kBf16, kHidden, kExpertWidth, 2);
  }
  const double shared_bytes = 3 * matrix_size(with_shared[0].shared_gate);
  for (const int32_t rows : b.rows()) {
    if (rows > 64 && !prompt) continue;
    const int routings = rows > 64 ? 2 : kRoutings;
    std::vector<int32_t*> idx;
    double distinct = 0;
    for (int i = 0; i < routings; ++i) {
      std::vector<int32_t> ids(static_cast<size_t>(rows) * kTop), all(kExperts);
      std::vector<bool> seen(kExperts, false);
      for (int32_t e = 0; e < kExperts; ++e) all[static_cast<size_t>(e)] = e;
      for (int32_t r = 0; r < rows; ++r) {
        for (size_t j = 0; j < kTop; ++j) std::swap(all[j], all[j + random() % (kExperts - j)]);
        std::sort(all.begin(), all.begin() + kTop);
        std::copy_n(all.begin(), kTop, ids.begin() + static_cast<std::ptrdiff_t>(r) * kTop);
        for (size_t j = 0; j < kTop; ++j) seen[static_cast<size_t>(all[j])] = true;
      }
      distinct += static_cast<double>(std::count(seen.begin(), seen.end(), true)) / routings;
      idx.push_back(reinterpret_cast<int32_t*>(b.take(ids.size() * 4)));
      b.ops().upload(idx.back(), ids.data(), ids.size() * 4);
    }
    b.bind(rows, 0);
    char name[64], note[64];
    std::snprintf(name, sizeof name, "experts EXL3 %s %d bits", codebook == Codebook::kMcg ? "mcg" : "mul1",
                  bits);
    std::snprintf(note, sizeof note, "%.0f distinct experts", distinct);
    const double flops = 2.0 * rows * kTop * 3.0 * kHidden * kExpertWidth;
    b.time(
        name, rows, routings, distinct * expert_bytes, flops,
        [&](int i) { b.ops().experts(Stage::kMain, w, x, idx[static_cast<size_t>(i)], weight, part); }, note);
    b.time(
        std::string(name) + " + shared bf16", rows, routings, distinct * expert_bytes + shared_bytes,
        flops * (kTop + 1) / kTop,
        [&](int i) {
          const auto at = static_cast<size_t>(i);
          b.ops().experts(Stage::kMain, with_shared[at], x, idx[at], weight, part);
        },
        note);
  }
}

void bench_hyper(Bench& b) {
  constexpr int kSites = 8;
  std::vector<HyperSite> sites(kSites);
  for (HyperSite& s : sites) {
    s.fn = b.matrix(MatrixFormat::kBf16, 24, 4 * kHidden);
    s.base = b.floats(24, 0.1f);
    s.scale = b.floats(3, 1.0f);
    s.norm = b.floats(kHidden, 1.0f);
  }
  const auto most = static_cast<size_t>(*std::max_element(b.rows().begin(), b.rows().end()));
  Act* streams = b.act(most * 4 * kHidden);
  Act* x = b.act(most * kHidden);
  float* post = b.zeros<float>(most * 4);
  float* comb = b.zeros<float>(most * 16);
  float* y = b.floats(most * kHidden, 0.01f);
  for (const int32_t rows : b.rows()) {
    b.bind(rows, 0);
    const double streams_bytes = 8.0 * rows * kHidden;
    b.time("hyper_pre", rows, kSites, matrix_size(sites[0].fn) + streams_bytes + 2.0 * rows * kHidden, 0,
           [&](int i) {
             b.ops().hyper_pre(Stage::kMain, sites[static_cast<size_t>(i)], streams, x, post, comb);
           });
    b.time("hyper_next", rows, kSites, matrix_size(sites[0].fn) + 3 * streams_bytes + 6.0 * rows * kHidden, 0,
           [&](int i) {
             b.ops().hyper_next(Stage::kMain, sites[static_cast<size_t>(i)], y, streams, x, post, comb);
           });
    b.time("hyper_post", rows, kSites, 2 * streams_bytes + 4.0 * rows * kHidden, 0,
           [&](int) { b.ops().hyper_post(Stage::kMain, y, post, comb, kHidden, streams); });
  }
}

/// The products around KDA and DSA that go together, in bf16.
void bench_joined(Bench& b) {
  constexpr int kLayers = 8;
  constexpr int32_t kInner = kHeads * 128;
  std::vector<Matrix> qkv, f_a, g_a, beta, f_b, g_b, qkv_a, k, gate, weights, q_b, q;
  for (int i = 0; i < kLayers; ++i) {
    const auto add = [&](std::vector<Matrix>& to, int32_t n, int32_t columns) {
      to.push_back(b.matrix(MatrixFormat::kBf16, n, columns));
    };
    for (int j = 0; j < 3; ++j) add(qkv, kInner, kHidden);
    for (auto* m : {&f_a, &g_a, &k, &gate}) add(*m, 128, kHidden);
    for (auto* m : {&beta, &weights}) add(*m, 32, kHidden);
    for (auto* m : {&f_b, &g_b}) add(*m, kInner, 128);
    add(qkv_a, 1536, kHidden);
    add(qkv_a, 512, kHidden);
    add(q_b, kHeads * 256, 1536);
    add(q, 32 * 128, 1536);
  }
  const auto most = static_cast<size_t>(*std::max_element(b.rows().begin(), b.rows().end()));
  Act* x = b.act(most * kHidden);
  Act* wide[4];
  for (Act*& y : wide) y = b.act(most * 3 * kInner);
  for (const int32_t rows : b.rows()) {
    b.bind(rows, 0);
    const auto time = [&](const char* name, const std::function<std::vector<LinearJob>(size_t)>& jobs) {
      double bytes = 0;
      for (const LinearJob& job : jobs(0))
        for (const Matrix& m : job.ws) bytes += matrix_size(m) + 2.0 * rows * m.spec.n;
      b.time(name, rows, kLayers, bytes, 0, [&](int i) {
        const std::vector<LinearJob> list = jobs(static_cast<size_t>(i));
        b.ops().linears(Stage::kMain, list);
      });
    };
    time("products of a KDA layer's x", [&](size_t i) {
      return std::vector<LinearJob>{{{&qkv[3 * i], 3}, x, wide[0]},
                                    {{&f_a[i], 1}, x, wide[1]},
                                    {{&g_a[i], 1}, x, wide[2]},
                                    {{&beta[i], 1}, x, wide[3]}};
    });
    time("small products of a KDA layer's x", [&](size_t i) {
      return std::vector<LinearJob>{
          {{&f_a[i], 1}, x, wide[1]}, {{&g_a[i], 1}, x, wide[2]}, {{&beta[i], 1}, x, wide[3]}};
    });
    time("products f_b, g_b", [&](size_t i) {
      return std::vector<LinearJob>{{{&f_b[i], 1}, x, wide[0]}, {{&g_b[i], 1}, x, wide[1]}};
    });
    time("products of a DSA layer's x", [&](size_t i) {
      return std::vector<LinearJob>{{{&qkv_a[2 * i], 2}, x, wide[0]},
                                    {{&k[i], 1}, x, wide[1]},
                                    {{&gate[i], 1}, x, wide[2]},
                                    {{&weights[i], 1}, x, wide[3]}};
    });
    time("products of a query latent", [&](size_t i) {
      return std::vector<LinearJob>{{{&q_b[i], 1}, x, wide[0]}, {{&q[i], 1}, x, wide[1]}};
    });
  }
}

void bench_kda(Bench& b) {
  KdaWeights w;
  w.heads = kHeads;
  w.dim = 128;
  constexpr size_t kWide = kHeads * 128;
  w.conv = b.floats(3 * kWide * 4, 0.25f);
  w.a_log = b.floats(kHeads, 0.1f);
  w.dt_bias = b.floats(kWide, -3.0f);
  w.o_norm = b.floats(128, 1.0f);
  constexpr int kLayers = 40;  // states of several layers: more than L2 holds
  const size_t slot = b.ops().kda_slot_bytes(w);
  const auto most = static_cast<size_t>(*std::max_element(b.rows().begin(), b.rows().end()));
  std::byte* state = b.zeros<std::byte>(slot * kLayers * 8);
  Act* qkv = b.act(most * 3 * kWide);
  Act* f = b.act(most * kWide);
  Act* g = b.act(most * kWide);
  Act* beta = b.act(most * kHeads);
  Act* out = b.act(most * kWide);
  for (const int32_t rows : b.rows()) {
    const int32_t segments = rows <= 8 ? rows : 1;
    b.bind(rows, 0, segments);
    b.time(
        "kda", rows, rows > 64 ? 4 : kLayers,
        2.0 * static_cast<double>(slot) * segments + rows * 2.0 * 6 * kWide, rows * 32.0 * 128 * 128 * 8,
        [&](int i) {
          b.ops().kda(Stage::kMain, w, qkv, f, beta, g,
                      SlotPlane{state + static_cast<size_t>(i) * slot * 8, slot}, out);
        },
        std::to_string(segments) + " sequences");
  }
}

void bench_attention(Bench& b) {
  IndexerWeights ix;
  ix.heads = 32;
  ix.dim = 128;
  AttentionWeights at;
  at.heads = kHeads;
  at.qk_dim = at.v_dim = 256;
  at.latent = 512;
  at.kv_b = b.matrix(MatrixFormat::kBf16, kHeads * 512, 512);
  const auto most = static_cast<size_t>(*std::max_element(b.rows().begin(), b.rows().end()));
  constexpr int32_t kLongest = 1 << 20;
  const size_t latent_stride = b.ops().latent_row_bytes(512) * kPageTokens;
  const size_t pool_stride = b.ops().pool_row_bytes(128) * (kPageTokens / 4);
  const size_t pages = kLongest / kPageTokens + 16;
  const Plane latents{b.kv_rows(latent_stride * pages, 512), latent_stride};
  const Plane pools{b.kv_rows(pool_stride * pages, 128), pool_stride};
  Act* qi = b.act(most * 32 * 128);
  Act* hw = b.act(most * 32);
  Act* q = b.act(most * kHeads * 256);
  Act* out = b.act(most * kHeads * 256);
  Selection sel;
  sel.max_pools = 512;
  sel.pools = b.zeros<int32_t>(most * 512);
  sel.count = b.zeros<int32_t>(most);
  for (const int32_t context : {1024, 8192, 131072, kLongest}) {
    for (const int32_t rows : b.rows()) {
      if (rows > context) continue;
      b.bind(rows, context - rows);
      const std::string at_context = " " + std::string(b.kv_name()) + "at " + std::to_string(context);
      const double visible = context / 4.0, tokens = std::min(2051.0, static_cast<double>(context));
      const auto latent_bytes = static_cast<double>(b.ops().latent_row_bytes(512)),
                 pool_bytes = static_cast<double>(b.ops().pool_row_bytes(128));
      const bool choose = visible > 512;
      const auto select = [&](int) { b.ops().pool_select(Stage::kMain, ix, qi, hw, pools, sel); };
      b.time("pool_select" + at_context, rows, rows > 64 ? 1 : 4, choose ? visible * pool_bytes : 0,
             choose ? 2.0 * rows * visible * 32 * 128 : 0, select);
      select(0);  // what is attended to, whichever cases are timed
      b.time("sparse_attention" + at_context, rows, rows > 64 ? 1 : 4,
             rows * tokens * latent_bytes + matrix_size(at.kv_b), rows * tokens * 2.0 * 2 * 512 * kHeads,
             [&](int) { b.ops().sparse_attention(Stage::kMain, at, q, latents, sel, 4, out); });
    }
  }
}

void bench_router(Bench& b) {
  constexpr int kLayers = 24;
  std::vector<RouterWeights> w(kLayers);
  for (RouterWeights& r : w) {
    r.weight = b.matrix(MatrixFormat::kBf16, kExperts, kHidden);
    r.bias = b.floats(kExperts, 0.0f);
    r.experts = kExperts;
    r.top_k = kTop;
  }
  const auto most = static_cast<size_t>(*std::max_element(b.rows().begin(), b.rows().end()));
  Act* x = b.act(most * kHidden);
  int32_t* idx = b.zeros<int32_t>(most * kTop);
  float* weight = b.zeros<float>(most * kTop);
  for (const int32_t rows : b.rows()) {
    b.bind(rows, 0);
    b.time("router", rows, kLayers, matrix_size(w[0].weight) + 2.0 * rows * kHidden, 0,
           [&](int i) { b.ops().router(Stage::kMain, w[static_cast<size_t>(i)], x, idx, weight); });
  }
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 0; i < argc; ++i)
    options.command += (i ? " " : "") + std::string(i ? argv[i] : "bench_kernels");
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--json") {
      options.json = value;
    } else if (key == "--commit") {
      options.commit = value;
    } else if (key == "--filter") {
      options.filter = value;
    } else if (key == "--kv") {
      options.kv = value == "fp8" ? KvFormat::kFp8 : KvFormat::kWide;
    } else if (key == "--profile") {
      options.profile = value == "on";
    } else if (key == "--rows") {
      options.rows.clear();
      for (size_t at = 0; at < value.size();
           at = value.find(',', at) == std::string::npos ? value.size() : value.find(',', at) + 1) {
        options.rows.push_back(std::clamp(std::atoi(value.c_str() + at), 1, 2048));
      }
    } else {
      std::fprintf(stderr, "bench_kernels: unknown option %s\n", key.c_str());
      return 2;
    }
  }
  if (options.rows.empty()) return 2;
  const std::string filter = options.filter;
  Bench b(std::move(options));
  const auto wanted = [&](const char* group) {
    return filter.empty() || filter.find(group) != std::string::npos;
  };
  b.copy_rate();
  b.mma_rate();
  if (wanted("experts")) {
    bench_experts(b, 4, Codebook::kMcg, true);
    bench_experts(b, 4, Codebook::kMul1, false);
    bench_experts(b, 3, Codebook::kMcg, false);
    bench_experts(b, 6, Codebook::kMul1, false);
  }
  if (wanted("linear")) {
    bench_linear(b, "linear bf16 12288x4096 (KDA q,k,v)", MatrixFormat::kBf16, 12288, 4096);
    bench_linear(b, "linear bf16 4096x4096 (KDA o)", MatrixFormat::kBf16, 4096, 4096);
    bench_linear(b, "linear bf16 2048x4096 (shared gate,up)", MatrixFormat::kBf16, 2048, 4096);
    bench_linear(b, "linear bf16 128x4096 (f_a, g_a)", MatrixFormat::kBf16, 128, 4096);
    bench_linear(b, "linear bf16 77440x4096 (head)", MatrixFormat::kBf16, 77440, 4096, 0, Codebook::kMcg,
                 false);
    bench_linear(b, "linear fp8 12288x4096", MatrixFormat::kFp8Block, 12288, 4096);
    bench_linear(b, "linear fp8 rows 12288x4096 (KDA q,k,v)", MatrixFormat::kFp8Rows, 12288, 4096);
    bench_linear(b, "linear fp8 rows 4096x4096 (KDA o)", MatrixFormat::kFp8Rows, 4096, 4096);
    bench_linear(b, "linear fp8 rows 77440x4096 (head)", MatrixFormat::kFp8Rows, 77440, 4096, 0,
                 Codebook::kMcg, false);
    bench_linear(b, "linear q4 12288x4096 (KDA q,k,v)", MatrixFormat::kQ4, 12288, 4096);
    bench_linear(b, "linear q4 4096x4096 (KDA o)", MatrixFormat::kQ4, 4096, 4096);
    bench_linear(b, "linear q4 2048x4096 (shared gate,up)", MatrixFormat::kQ4, 2048, 4096);
    bench_linear(b, "linear EXL3 mul1 5 bits 4096x4096", MatrixFormat::kExl3, 4096, 4096, 5, Codebook::kMul1);
    bench_linear(b, "linear EXL3 mul1 6 bits 12288x4096", MatrixFormat::kExl3, 12288, 4096, 6,
                 Codebook::kMul1);
  }
  if (wanted("products")) bench_joined(b);
  if (wanted("hyper")) bench_hyper(b);
  if (wanted("router")) bench_router(b);
  if (wanted("kda")) bench_kda(b);
  if (wanted("attention") || wanted("pool_select")) bench_attention(b);
  b.write_json();
  return 0;
}

}  // namespace
}  // namespace firesteel

int main(int argc, char** argv) { return firesteel::run(argc, argv); }
