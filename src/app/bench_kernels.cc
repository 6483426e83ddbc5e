// bench kernels: the CUDA backend's operations at the shapes of GLM-5.3-Flash, one rank of two.
#include <algorithm>
#include <functional>
#include <random>

#include "app/bench_models.h"
#include "app/bench_report.h"
#include "app/kernel_bench.h"
#include "decode/group_sampler.h"
#include "ops/cuda/pack.h"

namespace firesteel {
namespace {

constexpr int32_t kHidden = 4096, kExpertWidth = 1024, kExperts = 288, kTop = 8, kHeads = 32;

double matrix_size(const Matrix& m) { return static_cast<double>(cuda::packed_layout(m.spec).bytes); }

void bench_linear(KernelBench& b, const char* name, MatrixFormat format, int32_t n, int32_t k,
                  int32_t bits = 4, Codebook codebook = Codebook::kMcg, bool prompt = true) {
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
  const size_t most = b.most_rows();
  Act* x = b.act(most * static_cast<size_t>(k));
  auto* y = reinterpret_cast<Act*>(b.take(most * static_cast<size_t>(n) * 2));
  for (const int32_t rows : b.rows()) {
    if (rows > 64 && !prompt) continue;
    b.bind(rows, 0);
    const double io = 2.0 * rows * (n + k);
    b.time(name, rows, copies, matrix_size(ws[0]) + io, 2.0 * rows * n * k, [&](int i) {
      b.ops().linear(Stage::kMain, {&ws[static_cast<size_t>(i)], 1}, x, y);
    });
  }
}

void bench_experts(KernelBench& b, int32_t bits, Codebook codebook, bool prompt) {
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
  const size_t most = b.most_rows();
  Act* x = b.act(most * kHidden);
  float* part = b.zeros<float>(most * kHidden);
  float* weight = b.floats(most * kTop, 0.125f);
  std::mt19937 random(7);
  // The shared expert and the router, one for each call of a case.
  constexpr int kRoutings = 16;
  std::vector<ExpertWeights> with_shared(kRoutings, w);
  std::vector<RouterWeights> routers(kRoutings);
  for (ExpertWeights& s : with_shared) {
    s.shared_gate = b.matrix(MatrixFormat::kQ4, kExpertWidth, kHidden);
    s.shared_up = b.matrix(MatrixFormat::kQ4, kExpertWidth, kHidden);
    s.shared_down = b.matrix(MatrixFormat::kQ4, kHidden, kExpertWidth, 2);
  }
  for (RouterWeights& r : routers) {
    r.weight = b.matrix(MatrixFormat::kBf16, kExperts, kHidden);
    r.bias = b.floats(kExperts, 0.5f);
    r.experts = kExperts;
    r.top_k = kTop;
  }
  const double shared_bytes = 3 * matrix_size(with_shared[0].shared_gate),
               router_bytes = matrix_size(routers[0].weight);
  auto* chosen = b.zeros<int32_t>(most * kTop);
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
        std::string(name) + " + shared 4 bits", rows, routings, distinct * expert_bytes + shared_bytes,
        flops * (kTop + 1) / kTop,
        [&](int i) {
          const auto at = static_cast<size_t>(i);
          b.ops().experts(Stage::kMain, with_shared[at], x, idx[at], weight, part);
        },
        note);
    if (rows > 64) {
      const bool in_order = set_experts_in_order(b.ops(), true);
      b.time(
          std::string(name) + ", in order", rows, routings, distinct * expert_bytes, flops,
          [&](int i) { b.ops().experts(Stage::kMain, w, x, idx[static_cast<size_t>(i)], weight, part); },
          note);
      set_experts_in_order(b.ops(), in_order);
    }
    // Its own rows choose, so how many experts meet is its own too: read off at one row.
    if (rows > 8) continue;
    b.time(
        std::string(name) + " + shared 4 bits + router", rows, routings,
        rows * kTop * expert_bytes + shared_bytes + router_bytes, flops * (kTop + 1) / kTop,
        [&](int i) {
          const auto at = static_cast<size_t>(i);
          b.ops().moe(Stage::kMain, routers[at], with_shared[at], x, chosen, weight, part);
        },
        "every pair counted");
  }
}

void bench_hyper(KernelBench& b) {
  constexpr int kSites = 8;
  std::vector<HyperSite> sites(kSites);
  for (HyperSite& s : sites) {
    s.fn = b.matrix(MatrixFormat::kBf16, 24, 4 * kHidden);
    s.base = b.floats(24, 0.1f);
    s.scale = b.floats(3, 1.0f);
    s.norm = b.floats(kHidden, 1.0f);
  }
  const size_t most = b.most_rows();
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
void bench_joined(KernelBench& b) {
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
  const size_t most = b.most_rows();
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

void bench_kda(KernelBench& b) {
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
  const size_t most = b.most_rows();
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

void bench_attention(KernelBench& b) {
  IndexerWeights ix;
  ix.heads = 32;
  ix.dim = 128;
  AttentionWeights at;
  at.heads = kHeads;
  at.qk_dim = at.v_dim = 256;
  at.latent = 512;
  at.kv_b = b.matrix(MatrixFormat::kBf16, kHeads * 512, 512);
  const size_t most = b.most_rows();
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

void bench_router(KernelBench& b) {
  constexpr int kLayers = 24;
  std::vector<RouterWeights> w(kLayers);
  for (RouterWeights& r : w) {
    r.weight = b.matrix(MatrixFormat::kBf16, kExperts, kHidden);
    r.bias = b.floats(kExperts, 0.0f);
    r.experts = kExperts;
    r.top_k = kTop;
  }
  const size_t most = b.most_rows();
  Act* x = b.act(most * kHidden);
  int32_t* idx = b.zeros<int32_t>(most * kTop);
  float* weight = b.zeros<float>(most * kTop);
  for (const int32_t rows : b.rows()) {
    b.bind(rows, 0);
    b.time("router", rows, kLayers, matrix_size(w[0].weight) + 2.0 * rows * kHidden, 0,
           [&](int i) { b.ops().router(Stage::kMain, w[static_cast<size_t>(i)], x, idx, weight); });
  }
}

/// Drawing the tokens of a round, whole: what is asked goes up, the answer comes down. By the device, and as
/// the host does it from downloaded rows.
void bench_sample(KernelBench& b) {
  constexpr int32_t kVocab = 154'880, kMostRows = 32;
  struct Case {
    const char* name;
    SamplingParams params;
    float width;  // of the normals that logits are
  };
  const Case cases[] = {{"greedy", {}, 4.0f},
                        {"top-p 0.95, nucleus of 2", {1.0, 0, 0.95, 0.0, {}}, 6.0f},
                        {"top-p 0.95, nucleus of 700", {1.0, 0, 0.95, 0.0, {}}, 4.0f},
                        {"top-p 0.95, nucleus of 115,000", {1.0, 0, 0.95, 0.0, {}}, 1.0f},
                        {"T 0.7, top-p 0.95", {0.7, 0, 0.95, 0.0, {}}, 4.0f},
                        {"top-k 40", {1.0, 40, 0.95, 0.0, {}}, 4.0f},
                        {"everything", {1.0, 0, 1.0, 0.0, {}}, 4.0f}};
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> host(static_cast<size_t>(kMostRows) * kVocab), shaped(host.size());
  for (float& v : host) v = normal(random);
  auto* const logits = reinterpret_cast<float*>(b.take(host.size() * sizeof(float)));
  GroupSampler sampler(kVocab, 1, 0, kVocab, kMostRows, b.ops().drawer());
  constexpr int32_t kPart = kVocab / 2;
  DeviceRows part(b.ops().drawer(), false, 0, kPart, kMostRows);
  for (const Case& c : cases) {
    for (size_t i = 0; i < host.size(); ++i) shaped[i] = host[i] * c.width;
    b.ops().upload(logits, shaped.data(), shaped.size() * sizeof(float));
    for (const int32_t rows : b.rows()) {
      if (rows > kMostRows) continue;
      const double bytes = 4.0 * rows * kVocab;
      std::vector<SampleRow> there, parts, here;
      for (int32_t i = 0; i < rows; ++i) {
        const size_t at = static_cast<size_t>(i) * kVocab;
        const SampleKey key{c.params, 1234, i};
        there.push_back({std::span<const float>(logits + at, kVocab), key, true});
        parts.push_back({std::span<const float>(logits + at, kPart), key, true});
        here.push_back({std::span<const float>(shaped).subspan(at, kVocab), key});
      }
      std::vector<int32_t> ids(static_cast<size_t>(rows));
      Status status;
      b.time_waiting(std::string("sample ") + c.name, rows, bytes,
                     [&] { status = sampler.draw(nullptr, {}, there, ids); });
      std::vector<float> maxima(static_cast<size_t>(rows));
      const auto use = [](size_t, const ShardCandidates&) {};
      b.time_waiting(
          std::string("sample half: ") + c.name, rows, bytes / 2,
          [&] {
            if (status.ok()) status = part.find_best(parts);
            for (size_t i = 0; i < maxima.size(); ++i) maxima[i] = part.best(i).value;
            if (status.ok()) status = part.candidates(parts, 0, parts.size(), maxima, 0, std::ref(use));
          },
          "one rank of two, its candidates");
      b.time_waiting(
          std::string("sample on the host: ") + c.name, rows, bytes,
          [&] {
            b.ops().download(shaped.data(), logits, static_cast<size_t>(bytes));
            if (status.ok()) status = sampler.draw(nullptr, {}, here, ids);
          },
          "with the download");
      if (!status.ok()) std::fprintf(stderr, "firesteel: %s\n", status.error().message.c_str());
    }
  }
}

}  // namespace

int run_bench_kernels(const BenchKernelsOptions& options) {
  KernelBench b(options);
  const auto wanted = [&](const char* group) {
    return options.filter.empty() || options.filter.find(group) != std::string::npos;
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
  if (wanted("sample")) bench_sample(b);
  if (wanted("attention") || wanted("pool_select")) bench_attention(b);
  const Status written = write_bench_json(options.json_file, "Operations of the CUDA backend, alone",
                                          options.command, b.figures());
  if (written.ok()) return 0;
  std::fprintf(stderr, "firesteel: %s\n", written.error().message.c_str());
  return 1;
}

}  // namespace firesteel
