// What FP8 KV rows cost: KL divergence of the bundled model's next-token distributions from those with wide
// rows, over held-out conversations (the recorded prompts and their replies), and that the measure sees
// coarser rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/harness.h"
#include "model/ops_proxy.h"
#include "support/golden.h"

namespace firesteel::test {
namespace {

constexpr int32_t kChunk = 256;
// Nats. What is promised is 0.005; the bundled model is far less sensitive than that (0 bits of mantissa cost
// it 3e-4), so the limit is set where a format of half the precision fails.
constexpr double kMeanLimit = 6e-6;

/// Latents with `bits` bits of mantissa behind the leading one; exponents are free. FP8 rows have three.
class CoarseLatents : public OpsProxy {
 public:
  CoarseLatents(std::unique_ptr<Ops> inner, int bits) : OpsProxy(std::move(inner)), bits_(bits) {}
  void bind(const Batch& batch) override {
    rows_ = static_cast<size_t>(batch.rows);
    OpsProxy::bind(batch);
  }
  void latent_append(Stage s, const Act* c, int32_t latent, Plane plane) override {
    const auto* from = reinterpret_cast<const float*>(c);  // the CPU's
    rounded_.assign(from, from + rows_ * static_cast<size_t>(latent));
    for (float& v : rounded_) {
      int exponent = 0;
      const float fraction = std::frexp(v, &exponent);
      v = std::ldexp(std::nearbyint(std::ldexp(fraction, bits_ + 1)), exponent - bits_ - 1);
    }
    OpsProxy::latent_append(s, reinterpret_cast<const Act*>(rounded_.data()), latent, plane);
  }

 private:
  int bits_;
  size_t rows_ = 0;
  std::vector<float> rounded_;
};

/// KL(p ‖ q) of two rows of logits, in float64.
double divergence(const float* p, const float* q, size_t n) {
  const auto log_total = [n](const float* x) {
    const double most = *std::max_element(x, x + n);
    double total = 0;
    for (size_t i = 0; i < n; ++i) total += std::exp(static_cast<double>(x[i]) - most);
    return most + std::log(total);
  };
  const double lp = log_total(p), lq = log_total(q);
  double kl = 0;
  for (size_t i = 0; i < n; ++i) {
    const double a = static_cast<double>(p[i]) - lp, b = static_cast<double>(q[i]) - lq;
    kl += std::exp(a) * (a - b);
  }
  return kl;
}

struct Effect {
  double mean = 0, most = 0, replies = 0;  // replies: mean over the positions that predict a reply's tokens
  size_t positions = 0, reply_positions = 0, same_choice = 0;
};

/// Of `other` against the wide rows.
Effect measure(std::unique_ptr<Ops> other) {
  constexpr size_t kLongest = 1000;  // tokens of a prompt: long enough to choose pools (from 260 on)
  std::ifstream in(source_dir() + "/tests/data/demo/goldens.json");
  const nlohmann::json goldens = nlohmann::json::parse(in);
  const ModelLimits limits{kChunk, kChunk, 16, 1};
  const std::string dir = source_dir() + "/models/demo";
  Harness wide(dir, limits), narrow(dir, limits, std::move(other));
  Effect e;
  if (wide.model() == nullptr || narrow.model() == nullptr) return e;
  const auto vocab = static_cast<size_t>(wide.vocab());
  for (const auto& prompt : goldens["prompts"]) {
    if (prompt.contains("pictures")) continue;
    auto ids = prompt["prompt_ids"].get<std::vector<int32_t>>();
    const size_t reply = ids.size() - 1;  // the first position that predicts the reply
    if (ids.size() > kLongest) continue;
    for (const auto& id : prompt["greedy_ids"]) ids.push_back(id.get<int32_t>());
    const auto total = static_cast<int32_t>(ids.size());
    Sequence a = wide.start(total), b = narrow.start(total);
    for (size_t at = 0; at < ids.size(); at += kChunk) {
      const std::vector<int32_t> some = slice(ids, at, std::min(ids.size(), at + kChunk));
      const std::vector<float> p = wide.forward({{&a, some}}), q = narrow.forward({{&b, some}});
      for (size_t r = 0; r < some.size(); ++r) {
        const float *pr = p.data() + r * vocab, *qr = q.data() + r * vocab;
        const double kl = divergence(pr, qr, vocab);
        e.mean += kl;
        e.most = std::max(e.most, kl);
        e.same_choice += argmax(pr, wide.vocab()) == argmax(qr, wide.vocab());
        ++e.positions;
        if (at + r >= reply) {
          e.replies += kl;
          ++e.reply_positions;
        }
      }
    }
    wide.release(a);
    narrow.release(b);
  }
  e.mean /= static_cast<double>(e.positions);
  e.replies /= static_cast<double>(e.reply_positions);
  return e;
}

void print(const char* what, const Effect& e) {
  std::printf("%s: mean KL %.2e, in replies %.2e, at most %.2e nats; same first choice %.2f %% of %zu\n",
              what, e.mean, e.replies, e.most,
              100.0 * static_cast<double>(e.same_choice) / static_cast<double>(e.positions), e.positions);
}

TEST(KvQuality, Fp8RowsHardlyChangeTheDistributions) {
  const Effect e = measure(make_cpu_ops(2, KvFormat::kFp8));
  print("FP8 rows", e);
  EXPECT_GT(e.positions, 5000u);
  EXPECT_GT(e.mean, 0.0);
  EXPECT_LE(e.mean, kMeanLimit);
  EXPECT_LE(e.replies, kMeanLimit);
}

TEST(KvQuality, CoarserRowsAreSeen) {
  const Effect e = measure(std::make_unique<CoarseLatents>(make_cpu_ops(2), 2));
  print("latents of 2 mantissa bits", e);
  EXPECT_GT(e.mean, kMeanLimit);
}

}  // namespace
}  // namespace firesteel::test
