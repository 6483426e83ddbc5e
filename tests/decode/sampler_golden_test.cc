// The golden sampler cases: 200 rows of logits at 8 positions each, noise vectors and prompt seeds.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "reference_sampler.h"
#include "sharded.h"

namespace firesteel {
namespace {

using nlohmann::json;
using sampler_internal::Noise52;
using sampler_internal::Noise53;

const json& golden() {
  static const json data =
      json::parse(std::ifstream(std::string(FIRESTEEL_SOURCE_DIR) + "/tests/data/golden/sampler.json"));
  return data;
}

uint64_t u64(const json& text) { return std::stoull(text.get<std::string>()); }

TEST(SamplerGolden, NoiseVectors) {
  ASSERT_EQ(golden()["noise"].size(), 64u);
  for (const json& v : golden()["noise"]) {
    const uint64_t seed = u64(v["seed"]);
    const int64_t position = v["position"];
    const int32_t id = v["id"];
    const uint64_t hash = sampler_internal::token_hash(sampler_internal::row_key(seed, position), id);
    EXPECT_EQ(hash, std::stoull(v["hash"].get<std::string>(), nullptr, 16));
    EXPECT_EQ(keyed_noise(seed, position, id), Noise52::gumbel(hash));
    EXPECT_EQ(reference_noise(seed, position, id, 52), Noise52::gumbel(hash));
    const auto near = [](double got, double want) {
      EXPECT_NEAR(got, want, 4e-16 * std::max(1.0, std::fabs(want)));
    };
    near(Noise52::gumbel(hash), v["g_52"]);
    if (v["g"].is_null())
      EXPECT_EQ(Noise53::gumbel(hash), INFINITY);
    else
      near(Noise53::gumbel(hash), v["g"]);
  }
}

TEST(SamplerGolden, PromptSeeds) {
  ASSERT_FALSE(golden()["prompt_seeds"].empty());
  for (const json& v : golden()["prompt_seeds"])
    EXPECT_EQ(prompt_seed(v["ids"].get<std::vector<int32_t>>(), v["salt"].get<int64_t>()), u64(v["seed"]));
}

template <typename Noise>
void check_case(const json& c, const std::string& tokens, int bits, int* checked) {
  std::vector<float> logits;
  for (const json& v : c["logits"]) logits.push_back(v.is_null() ? -INFINITY : v.get<float>());
  SampleKey key;
  key.seed = u64(c["seed"]);
  key.params = {c["temperature"], c["top_k"], c["top_p"], c["min_p"], key.seed};
  const int32_t vocab = static_cast<int32_t>(logits.size());
  const int32_t masked = static_cast<int32_t>(std::count(logits.begin(), logits.end(), -INFINITY));
  SamplerScratch scratch(vocab);
  for (size_t i = 0; i < c["positions"].size(); ++i) {
    key.position = c["positions"][i];
    const int32_t want = c[tokens][i];
    const int32_t kept = c["kept"], last_kept = c["last_kept"];
    const Choice reference = reference_sample(logits, key, bits);
    ASSERT_EQ(reference.id, want);
    const Choice whole = sampler_internal::sample_one_shard<Noise>(logits, key, scratch);
    ASSERT_EQ(whole.id, want);
    // The golden prefix counts masked tokens where it covers the whole vocabulary.
    if (kept <= vocab - masked) {
      ASSERT_EQ(reference.kept, kept);
      ASSERT_EQ(reference.last_kept, last_kept);
      if (whole.kept != 0) {
        ASSERT_EQ(whole.kept, kept);
        ASSERT_EQ(whole.last_kept, last_kept);
      }
    }
    if (bits == 52) {
      ASSERT_EQ(sample_token(logits, key.params, key.seed, key.position, scratch), want);
    }
    for (const int32_t shards : {1, 2, 3, 4})
      ASSERT_EQ(sample_sharded<Noise>(logits, key, even_shards(vocab, shards)).id, want)
          << shards << " shards";
    ++*checked;
  }
}

TEST(SamplerGolden, TwoHundredCases) {
  ASSERT_EQ(golden()["cases"].size(), 200u);
  int wide = 0, old = 0;
  for (size_t i = 0; i < golden()["cases"].size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    check_case<Noise52>(golden()["cases"][i], "tokens_52", 52, &wide);
    check_case<Noise53>(golden()["cases"][i], "tokens", 53, &old);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(wide, 1600);
  EXPECT_EQ(old, 1600);
}

}  // namespace
}  // namespace firesteel
