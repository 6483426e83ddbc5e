#include "app/kernel_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "app/bench_stats.h"
#include "ops/cuda/modules.h"
#include "ops/cuda/pack.h"
#include "ops/cuda/params.h"
#include "quant/kv_row.h"
#include "tensor/dtype.h"

namespace firesteel {
namespace {

[[noreturn]] void fail(const Error& error) {
  std::fprintf(stderr, "firesteel: %s\n", error.message.c_str());
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

/// Microseconds of `work`, `repeats` times after `warm_up` more.
std::vector<double> times_of(CudaOpsParts& parts, int warm_up, int repeats,
                             const std::function<void()>& work) {
  const gpu::Event begin = must(parts.device->event(true)), end = must(parts.device->event(true));
  std::vector<double> times;
  for (int i = 0; i < warm_up + repeats; ++i) {
    must(begin.record(*parts.stream));
    work();
    must(end.record(*parts.stream));
    must(end.synchronize());
    if (i >= warm_up) times.push_back(must(begin.elapsed_ms(end)) * 1e3);
  }
  return times;
}

}  // namespace

KernelBench::KernelBench(const BenchKernelsOptions& options)
    : options_(options),
      parts_(must(make_cuda_ops_parts(0, options.kv == "fp8" ? KvFormat::kFp8 : KvFormat::kWide))) {
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

size_t KernelBench::most_rows() const {
  return static_cast<size_t>(*std::max_element(options_.rows.begin(), options_.rows.end()));
}

const char* KernelBench::kv_name() const { return options_.kv == "fp8" ? "fp8 " : ""; }

std::byte* KernelBench::take(size_t bytes) { return must(ops().allocate(bytes, "bench memory")); }

std::byte* KernelBench::filled(size_t bytes, bool normals) {
  std::byte* p = take(bytes);
  const size_t piece = noise_.size() * 2;
  for (size_t at = 0; at < bytes; at += piece)
    ops().copy(p + at, normals ? noise_on_device_ : bits_on_device_, std::min(piece, bytes - at));
  return p;
}

float* KernelBench::floats(size_t count, float value) {
  const std::vector<float> v(count, value);
  std::byte* p = take(count * 4);
  ops().upload(p, v.data(), count * 4);
  return reinterpret_cast<float*>(p);
}

std::byte* KernelBench::kv_rows(size_t bytes, int32_t n) {
  if (options_.kv != "fp8") return filled(bytes, true);
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

Matrix KernelBench::matrix(MatrixFormat format, int32_t n, int32_t k, int32_t slices, int32_t bits,
                           Codebook codebook) {
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

void KernelBench::bind(int32_t rows, int32_t start, int32_t segments) {
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

void KernelBench::time(const std::string& name, int32_t rows, int calls, double bytes, double flops,
                       const std::function<void(int)>& issue, const std::string& note) {
  if (name.find(options_.filter) == std::string::npos) return;
  if (options_.once) {
    issue(0);
    return must(ops().finish());
  }
  for (int i = 0; i < calls; ++i) issue(i);  // settles scratch and tables
  must(ops().finish());
  must(parts_.device->capture_begin(*parts_.stream));
  for (int i = 0; i < calls; ++i) issue(i);
  gpu::Graph graph = must(parts_.device->capture_end(*parts_.stream));
  must(ops().finish());
  std::vector<double> times = times_of(parts_, 2, 10, [&] { must(graph.replay(*parts_.stream)); });
  for (double& t : times) t /= calls;
  add(name, rows, std::move(times), bytes, flops, note);
}

void KernelBench::time_waiting(const std::string& name, int32_t rows, double bytes,
                               const std::function<void()>& work, const std::string& note) {
  if (name.find(options_.filter) == std::string::npos) return;
  constexpr int kWarmUp = 2, kRepeats = 10;
  std::vector<double> times;
  for (int i = 0; i < (options_.once ? 1 : kWarmUp + kRepeats); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (i >= kWarmUp) times.push_back(took.count());
  }
  if (!options_.once) add(name, rows, std::move(times), bytes, 0, note);
}

void KernelBench::copy_rate() {
  const size_t bytes = size_t{4} << 30;
  std::byte* from = filled(bytes, false);
  std::byte* to = take(bytes);
  add("copy (read + write)", 0,
      times_of(parts_, 2, 6, [&] { must(parts_.device->on_device(*parts_.stream, to, from, bytes)); }),
      2.0 * static_cast<double>(bytes), 0, "");
  copy_gb_s_ = cases_.back()["gb_s"];
}

void KernelBench::mma_rate() {
  const auto blocks = static_cast<unsigned>(2 * parts_.device->info().multiprocessors);
  constexpr int32_t kRounds = 40000;
  const cuda::ProbeParams params{zeros<float>(size_t{blocks} * 256), kRounds};
  must(ops().finish());
  for (const gpu::EmbeddedModule& m : embedded_modules()) {
    if (m.name != "probe") continue;
    const gpu::Module module = must(parts_.device->load(m));
    for (const char* name : {"probe_f16", "probe_bf16"}) {
      const auto kernel = must(parts_.device->kernel<cuda::ProbeParams>(module, name));
      const auto work = [&] { must(parts_.device->launch(*parts_.stream, kernel, {{blocks}, 256}, params)); };
      const double products = 8.0 * 8 * blocks * kRounds;  // of 16 × 8 × 16
      add(std::string("mma.sync alone, ") + (name + 6), 0, times_of(parts_, 1, 5, work), 0, products * 4096,
          "");
    }
  }
}

void KernelBench::add(const std::string& name, int32_t rows, std::vector<double> times_us, double bytes,
                      double flops, const std::string& note) {
  const double us = percentile(std::move(times_us), 0.5), gb_s = bytes / us * 1e-3,
               tflop_s = flops / us * 1e-6, share = copy_gb_s_ > 0 ? gb_s / copy_gb_s_ : 0;
  std::printf("%-44s %5d rows %10.1f us %8.0f GB/s %5.1f %% of copy %7.1f TFLOP/s  %s\n", name.c_str(), rows,
              us, gb_s, share * 100, tflop_s, note.c_str());
  std::fflush(stdout);
  cases_.push_back({{"name", name},
                    {"rows", rows},
                    {"us", us},
                    {"bytes", bytes},
                    {"gb_s", gb_s},
                    {"share_of_copy", share},
                    {"tflop_s", tflop_s},
                    {"note", note}});
}

nlohmann::ordered_json KernelBench::figures() const {
  const gpu::DeviceInfo& d = parts_.device->info();
  return {{"gpu", d.name},
          {"multiprocessors", d.multiprocessors},
          {"clock_mhz", d.clock_khz / 1000},
          {"driver", d.driver_version},
          {"shape", "GLM-5.3-Flash, one rank of two, synthetic weights"},
          {"copy_gb_s", copy_gb_s_},
          {"cases", cases_}};
}

}  // namespace firesteel
