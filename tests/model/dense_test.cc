// The lossy dense formats of whole models: which matrices they narrow, what that takes, how far predictions
// move.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/ops_proxy.h"
#include "model/random_model.h"
#include "model/score.h"
#include "support/golden.h"
#include "support/random.h"
#include "tensor/dtype.h"

namespace firesteel::test {
namespace {

std::unique_ptr<Model> load(const std::string& dir, DenseFormat dense, Ops& ops, int32_t window) {
  const auto files = open_model_files(dir, {}, dense);
  EXPECT_TRUE(files.ok()) << (files.ok() ? "" : files.error().message);
  if (!files.ok()) return nullptr;
  auto model = load_model(*files, ops, score_limits(window), nullptr);
  EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message);
  return model.ok() ? std::move(model).value() : nullptr;
}

TEST(DenseFormats, NarrowWhatTheyShould) {
  auto config = model_a_config();
  const std::string dir = write_random_model(config);
  for (const DenseFormat dense : {DenseFormat::kStored, DenseFormat::kFp8, DenseFormat::kQ4}) {
    const auto files = open_model_files(dir, {}, dense);
    ASSERT_TRUE(files.ok()) << files.error().message;
    int q4 = 0, fp8 = 0;
    const auto expect = [&](const MatrixRef& m, bool never, bool head) {
      const MatrixKeep want = dense == DenseFormat::kStored || never                     ? MatrixKeep::kStored
                              : dense == DenseFormat::kQ4 && !head && m.full_k % 64 == 0 ? MatrixKeep::kQ4
                                                                                         : MatrixKeep::kFp8;
      EXPECT_EQ(m.spec.keep, want) << m.weight.info->name;
      q4 += m.spec.keep == MatrixKeep::kQ4;
      fp8 += m.spec.keep == MatrixKeep::kFp8;
    };
    walk_weights(
        files->weights,
        [&](WeightGroup, const MatrixRef& m) {
          const std::string& name = m.weight.info->name;
          const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
          expect(m, has(".experts.") || has("kv_b") || has("embed") || has("hc_") || has("mlp.gate.weight"),
                 has("lm_head"));
        },
        [](WeightGroup, const VectorRef&) {});
    if (dense == DenseFormat::kQ4) {
      EXPECT_GT(q4, 20);
    }
    if (dense != DenseFormat::kStored) {
      EXPECT_GT(fp8, 0);
    }
  }
}

TEST(DenseFormats, LeaveQuantizedCheckpointsAlone) {
  for (const char* name : {"tiny-exl3", "tiny-fp8"}) {
    const auto files = open_model_files(golden_model_dir(name), {}, DenseFormat::kQ4);
    ASSERT_TRUE(files.ok()) << files.error().message;
    walk_weights(
        files->weights,
        [&](WeightGroup, const MatrixRef& m) {
          if (m.spec.format == MatrixFormat::kBf16 || m.spec.format == MatrixFormat::kF32) return;
          EXPECT_TRUE(m.spec.keep == MatrixKeep::kStored || m.spec.keep == MatrixKeep::kDecoded)
              << m.weight.info->name;
        },
        [](WeightGroup, const VectorRef&) {});
  }
}

TEST(DenseFormats, AWeightThatIsNoneIsOneErrorWithItsTensor) {
  RandomModelOptions options;
  options.edit = [](std::vector<WrittenTensor>& tensors) {
    WrittenTensor& t = find_tensor(tensors, "layers.1.self_attn.o_proj.weight");
    const size_t element = dtype_size(t.dtype);
    std::fill_n(t.bytes.end() - static_cast<long>(3 * element), element, std::byte{0xFF});  // NaN
  };
  const std::string dir = write_random_model(model_a_config(), options);
  for (const DenseFormat dense : {DenseFormat::kFp8, DenseFormat::kQ4}) {
    const auto files = open_model_files(dir, {}, dense);
    ASSERT_TRUE(files.ok());
    const auto ops = make_cpu_ops(2);
    const auto model = load_model(*files, *ops, score_limits(256), nullptr);
    ASSERT_FALSE(model.ok());
    for (const char* word : {"layers.1.self_attn.o_proj.weight", "row ", "column ", "--dense bf16"}) {
      EXPECT_NE(model.error().message.find(word), std::string::npos) << model.error().message;
    }
    EXPECT_EQ(model.error().message.find('\n'), std::string::npos);
  }
}

TEST(Score, DivergenceIsThatOfTheDefinition) {
  Random random;
  for (int i = 0; i < 50; ++i) {
    const auto n = static_cast<int32_t>(random.between(2, 300));
    std::vector<float> p = random.normals(static_cast<size_t>(n), 3),
                       q = random.normals(static_cast<size_t>(n), 3);
    long double p_sum = 0, q_sum = 0, want = 0;
    for (int32_t j = 0; j < n; ++j) {
      p_sum += std::exp(static_cast<long double>(p[static_cast<size_t>(j)]));
      q_sum += std::exp(static_cast<long double>(q[static_cast<size_t>(j)]));
    }
    for (int32_t j = 0; j < n; ++j) {
      const long double a = std::exp(static_cast<long double>(p[static_cast<size_t>(j)])) / p_sum;
      const long double b = std::exp(static_cast<long double>(q[static_cast<size_t>(j)])) / q_sum;
      want += a * std::log(a / b);
    }
    EXPECT_NEAR(logit_divergence(p.data(), q.data(), n), static_cast<double>(want), 1e-9);
    EXPECT_EQ(logit_divergence(p.data(), p.data(), n), 0.0);
    for (float& x : q) x += 1000;  // the same distribution
    EXPECT_NEAR(logit_divergence(p.data(), q.data(), n), static_cast<double>(want), 1e-3);
    const double loss = logit_loss(p.data(), n, n - 1);
    EXPECT_NEAR(loss, static_cast<double>(std::log(p_sum)) - p.back(), 1e-9);
  }
}

/// The recorded conversations: held-out prompts and the model's own replies.
std::vector<std::vector<int32_t>> conversations(const std::string& goldens_path) {
  std::ifstream in(goldens_path);
  const nlohmann::json goldens = nlohmann::json::parse(in);
  std::vector<std::vector<int32_t>> out;
  for (const auto& prompt : goldens["prompts"]) {
    if (prompt.contains("pictures")) continue;
    auto ids = prompt["prompt_ids"].get<std::vector<int32_t>>();
    const auto reply = prompt["greedy_ids"].get<std::vector<int32_t>>();
    ids.insert(ids.end(), reply.begin(), reply.end());
    if (ids.size() <= 1024) out.push_back(std::move(ids));
  }
  return out;
}

/// The planted fault: rows that will be narrowed come as if 3 bits had been their format, without any search.
class CoarseSource : public MatrixSource {
 public:
  CoarseSource(MatrixSource& from, int32_t k) : from_(from), k_(k) {}
  Status read_rows(MatrixPart part, int64_t first, int64_t count, void* dst) override {
    RETURN_IF_ERROR(from_.read_rows(part, first, count, dst));
    auto* bits = static_cast<uint16_t*>(dst);
    for (int64_t at = 0; at < count * k_; at += 64) {
      float lo = bf16_to_f32(bits[at]), hi = lo;
      for (int64_t i = at; i < at + 64; ++i) {
        lo = std::min(lo, bf16_to_f32(bits[i]));
        hi = std::max(hi, bf16_to_f32(bits[i]));
      }
      const float step = (hi - lo) / 7;
      for (int64_t i = at; i < at + 64 && step > 0; ++i) {
        bits[i] = f32_to_bf16(lo + step * std::round((bf16_to_f32(bits[i]) - lo) / step));
      }
    }
    return {};
  }

 private:
  MatrixSource& from_;
  int64_t k_;
};
class CoarseOps : public OpsProxy {
 public:
  using OpsProxy::OpsProxy;
  Result<Matrix> load_matrix(const MatrixSpec& spec, MatrixSource& source, std::byte* dst) override {
    if (spec.keep != MatrixKeep::kQ4) return OpsProxy::load_matrix(spec, source, dst);
    EXPECT_EQ(spec.format, MatrixFormat::kBf16);
    CoarseSource coarse(source, spec.k);
    return OpsProxy::load_matrix(spec, coarse, dst);
  }
};

TextScore score(const std::string& dir, DenseFormat dense, const std::vector<std::vector<int32_t>>& texts,
                std::unique_ptr<Ops> mine_ops = make_cpu_ops(2)) {
  const auto exact_ops = make_cpu_ops(2);
  const auto mine = load(dir, dense, *mine_ops, 1024),
             exact = load(dir, DenseFormat::kStored, *exact_ops, 1024);
  TextScore all;
  if (mine == nullptr || exact == nullptr) return all;
  for (const auto& ids : texts) {
    const auto one = score_text(*mine, exact.get(), ids, nullptr);
    EXPECT_TRUE(one.ok()) << (one.ok() ? "" : one.error().message);
    if (one.ok()) all.add(*one);
  }
  return all;
}

void report(const char* what, const TextScore& s) {
  std::printf(
      "%s: %lld positions, perplexity %.4f, KL %.5f nats a position, worst %.3f, same choice %.2f %%\n", what,
      static_cast<long long>(s.positions), s.perplexity(), s.mean_divergence(), s.worst,
      100.0 * static_cast<double>(s.same_choice) / static_cast<double>(s.positions));
}

// Nats a position.
constexpr double kFp8Limit = 0.0003, kQ4Limit = 0.0004;

TEST(DenseFormats, DivergenceOfTheDemoModelIsSmall) {
  const std::string dir = source_dir() + "/../shared/demo-model";
  if (!std::filesystem::exists(dir + "/model.safetensors")) {
    GTEST_SKIP() << "the bf16 original of the bundled model is not at hand (" << dir << ")";
  }
  const auto all = conversations(source_dir() + "/tests/data/demo-bf16/goldens.json");
  ASSERT_GT(all.size(), 15u);
  std::vector<std::vector<int32_t>> texts;  // of every kind
  for (size_t i = 0; i < all.size(); i += 3) texts.push_back(all[i]);
  const TextScore fp8 = score(dir, DenseFormat::kFp8, texts), q4 = score(dir, DenseFormat::kQ4, texts),
                  coarse = score(dir, DenseFormat::kQ4, texts, std::make_unique<CoarseOps>(make_cpu_ops(2))),
                  same = score(dir, DenseFormat::kStored, {texts[0]});
  report("fp8", fp8);
  report("q4", q4);
  report("q4 of coarse weights", coarse);
  EXPECT_EQ(same.divergence, 0.0);
  EXPECT_EQ(same.same_choice, same.positions);
  EXPECT_GT(fp8.mean_divergence(), 0.0);
  EXPECT_LT(fp8.mean_divergence(), kFp8Limit);
  EXPECT_LT(q4.mean_divergence(), kQ4Limit);
  EXPECT_GT(coarse.mean_divergence(), kQ4Limit) << "the limit must tell four bits from three";
}

}  // namespace
}  // namespace firesteel::test
