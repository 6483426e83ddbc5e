#include "decode/sampler.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "reference_sampler.h"
#include "sharded.h"

namespace firesteel {
namespace {

using sampler_internal::Noise52;
using sampler_internal::Noise53;

// --------------------------------------------------------------------------------------- the tables of
// spec 1.8

TEST(SamplerTable, Noise) {
  struct Row {
    uint64_t seed;
    int64_t position;
    int32_t id;
    uint64_t hash;
    double g53;
  };
  const Row rows[] = {
      {0, 0, 0, 0x33fe8bd4f9c57863ull, -0.4662735186548661},
      {1234, 10, 0, 0x2cde728df730c008ull, -0.5547076195147856},
      {1234, 10, 154879, 0x54a318b4de79dcf5ull, -0.10147729674059948},
      {1234, 11, 0, 0x30539b561662aa88ull, -0.5111428965468321},
      {~0ull, 1048575, 151000, 0x06ac613423c78d23ull, -1.293919781869176},
  };
  for (const Row& r : rows) {
    const uint64_t hash = sampler_internal::token_hash(sampler_internal::row_key(r.seed, r.position), r.id);
    EXPECT_EQ(hash, r.hash);
    EXPECT_NEAR(Noise53::gumbel(hash), r.g53, 5e-16);
    EXPECT_NEAR(keyed_noise(r.seed, r.position, r.id), r.g53, 5e-15);  // one bit less
  }
  EXPECT_EQ(prompt_seed(std::vector<int32_t>{1, 2, 3}), 2418267834652783048ull);
  EXPECT_EQ(prompt_seed(std::vector<int32_t>{154822, 154824, 9}), 163827793596682496ull);
}

TEST(SamplerTable, ToyVocabulary) {
  const std::vector<float> logits = {0, 1.75, 3.5, 3.5,  3, 0.75, 2.5, 0.25,
                                     2, 3.5,  1.5, 3.25, 1, 2.75, 0.5, 2.25};
  struct Row {
    double temperature;
    int32_t top_k;
    double top_p, min_p;
    std::vector<int32_t> tokens;
  };
  const Row rows[] = {
      {0, 0, 1, 0, {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}},
      {1, 20, 0.95, 0, {8, 9, 9, 9, 1, 2, 15, 1, 6, 11, 11, 11}},
      {0.7, 4, 1, 0, {11, 9, 9, 9, 3, 2, 11, 2, 3, 11, 11, 11}},
      {1, 5, 0.6, 0, {2, 9, 9, 9, 3, 2, 2, 2, 3, 2, 2, 2}},
      {1, 16, 1, 0.25, {11, 9, 9, 9, 3, 2, 15, 2, 6, 11, 11, 11}},
      {1, 0, 0.95, 0, {8, 9, 9, 9, 1, 2, 15, 1, 6, 11, 11, 11}},
      {1, 0, 0.5, 0, {11, 9, 9, 9, 3, 2, 11, 2, 3, 11, 11, 11}},
      {1.3, 0, 1, 0.1, {8, 9, 9, 9, 1, 2, 15, 1, 6, 11, 11, 11}},
  };
  SamplerScratch scratch(16);
  for (const Row& r : rows) {
    for (int64_t i = 0; i < 12; ++i) {
      const SampleKey key{{r.temperature, r.top_k, r.top_p, r.min_p, {}}, 1234, 10 + i};
      const int32_t want = r.tokens[static_cast<size_t>(i)];
      EXPECT_EQ(sample_token(logits, key.params, key.seed, key.position, scratch), want);
      EXPECT_EQ(sampler_internal::sample_one_shard<Noise53>(logits, key, scratch).id, want);
      const std::vector<int32_t> halves = {8, 16};
      EXPECT_EQ(sample_sharded<Noise52>(logits, key, halves).id, want);
    }
  }
}

// ------------------------------------------------------------------------------------ against the sort

enum class Shape { kSmooth, kPeaked, kTies, kBf16, kMasked, kExtreme, kEqual, kCount };

std::vector<float> make_logits(std::mt19937_64& rng, Shape shape, int32_t vocab) {
  std::normal_distribution<float> normal(0.0f, 2.5f);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& v : logits) {
    v = normal(rng);
    switch (shape) {
      case Shape::kPeaked:
        v = rng() % 50 == 0 ? v + 15 : v;
        break;
      case Shape::kTies:
        v = std::round(v);
        break;
      case Shape::kBf16: {
        uint32_t bits;
        std::memcpy(&bits, &v, 4);
        bits &= 0xFFFF0000u;
        std::memcpy(&v, &bits, 4);
        break;
      }
      case Shape::kMasked:
        v = rng() % 3 == 0 ? v : -INFINITY;
        break;
      case Shape::kExtreme: {
        const float values[] = {0.0f, -0.0f,   FLT_MAX, -FLT_MAX, INFINITY, -INFINITY,
                                NAN,  FLT_MIN, 1e-45f,  -1e-45f,  v};
        v = values[rng() % 11];
        break;
      }
      case Shape::kEqual:
        v = 1.5f;
        break;
      case Shape::kSmooth:
      case Shape::kCount:
        break;
    }
  }
  return logits;
}

template <typename T>
T pick(std::mt19937_64& rng, std::initializer_list<T> from) {
  return *(from.begin() + static_cast<ptrdiff_t>(rng() % from.size()));
}

SampleKey make_key(std::mt19937_64& rng, int32_t vocab) {
  SampleKey key;
  key.params.temperature = pick(rng, {0.0, 1e-9, 0.3, 0.7, 1.0, 1.0, 1.3, 5.0});
  key.params.top_k = pick(rng, {0, 0, 0, 1, 4, 40, vocab / 2 + 1, vocab, vocab + 10});
  key.params.top_p = pick(rng, {1.0, 0.95, 0.95, 0.5, 0.999999, 1e-3, 5e-324, 0.0});
  key.params.min_p = pick(rng, {0.0, 0.0, 0.05, 0.5, 1.0, 1.5});
  key.seed = rng();
  key.position = static_cast<int64_t>(rng() % 1048576);
  return key;
}

std::string describe(const SampleKey& k) {
  return "T " + std::to_string(k.params.temperature) + " k " + std::to_string(k.params.top_k) + " p " +
         std::to_string(k.params.top_p) + " min " + std::to_string(k.params.min_p);
}

TEST(Sampler, EqualsTheFullSortForEveryCutOfTheVocabulary) {
  std::mt19937_64 rng(20261130);
  int runs = 0;
  for (int round = 0; round < 6000; ++round) {
    const Shape shape = static_cast<Shape>(round % static_cast<int>(Shape::kCount));
    const int32_t vocab = round % 40 == 0 ? 9000 : 1 + static_cast<int32_t>(rng() % 400);
    const std::vector<float> logits = make_logits(rng, shape, vocab);
    const SampleKey key = make_key(rng, vocab);
    SCOPED_TRACE(describe(key) + " shape " + std::to_string(static_cast<int>(shape)) + " vocab " +
                 std::to_string(vocab));
    const Choice want = reference_sample(logits, key);
    SamplerScratch scratch(vocab);
    const Choice got = sampler_internal::sample_one_shard<Noise52>(logits, key, scratch);
    ASSERT_EQ(got.id, want.id);
    if (got.kept != 0) {
      ASSERT_EQ(got.kept, want.kept);
      ASSERT_EQ(got.last_kept, want.last_kept);
    }
    ASSERT_EQ(sample_token(logits, key.params, key.seed, key.position, scratch), want.id);
    for (int32_t shards = 1; shards <= 4; ++shards) {
      std::vector<int32_t> ends = even_shards(vocab, shards);
      if (round % 2 == 0)  // uneven cuts, empty shards among them
        for (int32_t& end : ends) end = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab + 1));
      std::sort(ends.begin(), ends.end());
      ends.back() = vocab;
      ASSERT_EQ(sample_sharded<Noise52>(logits, key, ends).id, want.id) << shards << " shards";
      ++runs;
    }
  }
  EXPECT_EQ(runs, 24000);
}

TEST(Sampler, EqualsTheFullSortOnTheRealVocabulary) {
  std::mt19937_64 rng(7);
  const int32_t vocab = 154880;
  SamplerScratch scratch(vocab);
  int stages[kSamplerStages + 1] = {};
  for (int round = 0; round < 24; ++round) {
    std::vector<float> logits = make_logits(rng, round % 2 ? Shape::kBf16 : Shape::kSmooth, vocab);
    const float sharpness = pick(rng, {0.05f, 0.5f, 1.0f, 2.5f, 4.0f});
    for (float& v : logits) v *= sharpness;
    SampleKey key = make_key(rng, vocab);
    if (round % 2 == 0) key.params = {1.0, 0, 0.95, 0.0, {}};  // the default path
    SCOPED_TRACE(describe(key));
    const int32_t want = reference_sample(logits, key).id;
    ASSERT_EQ(sample_token(logits, key.params, key.seed, key.position, scratch), want);
    int used = 0;
    ASSERT_EQ(sample_sharded<Noise52>(logits, key, even_shards(vocab, 2 + round % 3), &used).id, want);
    ++stages[used];
  }
  EXPECT_GT(stages[1], 0);
  EXPECT_GT(stages[kSamplerStages], 0);  // flat rows need the whole shards
}

// The planted fault: shards that claim to have sent all that can matter when they have not must change some
// draw.
TEST(Sampler, ATooShortUnionIsCaught) {
  std::mt19937_64 rng(17);
  int wrong = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits = make_logits(rng, Shape::kSmooth, 2000);
    for (float& v : logits) v *= 0.2f;
    const SampleKey key{{1.0, 0, 0.95, 0.0, {}}, rng(), round};
    SamplerScratch left(1000), right(1000), both(2000);
    const std::span<const float> all(logits);
    const float best = std::max(shard_max(all.first(1000), left), shard_max(all.last(1000), right));
    ShardCandidates shards[2] = {shard_candidates(all.first(1000), 0, key, best, 0, left),
                                 shard_candidates(all.last(1000), 1000, key, best, 0, right)};
    ASSERT_EQ(choose(shards, key, best, both).id, kNeedMore);
    shards[0].complete = shards[1].complete = true;
    wrong += choose(shards, key, best, both).id != reference_sample(logits, key).id;
  }
  EXPECT_GT(wrong, 0);
}

TEST(Sampler, MaskedRowsGiveNoToken) {
  SamplerScratch scratch(300);
  for (const float fill : {-INFINITY, NAN}) {
    const std::vector<float> logits(300, fill);
    for (const SamplingParams& p :
         {SamplingParams{}, SamplingParams{1, 0, 1, 0, {}}, SamplingParams{1, 5, 0.9, 0, {}},
          SamplingParams{1, 0, 0.9, 0, {}}, SamplingParams{1, 0, 1, 2, {}}})
      EXPECT_EQ(sample_token(logits, p, 1, 2, scratch), kNoToken);
  }
  std::vector<float> one(300, -INFINITY);
  one[299] = -5;
  EXPECT_EQ(sample_token(one, {1.0, 0, 0.95, 0.0, {}}, 1, 2, scratch), 299);
  one[7] = INFINITY;
  EXPECT_EQ(sample_token(one, {1.0, 0, 0.95, 0.0, {}}, 1, 2, scratch), 7);
}

TEST(Sampler, NeedIsTheExactRational) {
  using sampler_internal::nucleus_need;
  EXPECT_EQ(nucleus_need(0.5, 10), 5);
  EXPECT_EQ(nucleus_need(0.5, 11), 6);
  // The double nearest 0.95 is below 0.95, the one nearest 0.1 above 0.1; in floating point both products are
  // integers.
  EXPECT_EQ(nucleus_need(0.95, 100), 95);
  EXPECT_EQ(nucleus_need(0.1, 10), 2);
  EXPECT_EQ(nucleus_need(0.1, int64_t{10} << 53), (int64_t{1} << 53) + 1);
  EXPECT_EQ(nucleus_need(5e-324, int64_t{1} << 57), 1);
  EXPECT_EQ(nucleus_need(0x1p-70, int64_t{1} << 57), 1);
  EXPECT_EQ(nucleus_need(1.0 - 0x1p-53, int64_t{1} << 57), (int64_t{1} << 57) - 16);
}

TEST(Sampler, BoundIsNeverBelowTheNoise) {
  std::mt19937_64 rng(11);
  for (int i = 0; i < 400000; ++i) {
    uint64_t hash = rng();
    if (i % 2 == 0) hash = ~(hash >> (rng() % 64));  // near the top, where noise is large
    ASSERT_GE(Noise52::bound(hash), Noise52::gumbel(hash)) << hash;
    ASSERT_GE(Noise53::bound(hash), Noise53::gumbel(hash)) << hash;
    ASSERT_GE(Noise52::kMax, Noise52::gumbel(hash));
  }
  EXPECT_GE(Noise52::kMax, Noise52::gumbel(~0ull));
  EXPECT_TRUE(std::isfinite(Noise52::gumbel(~0ull)));
}

TEST(Sampler, FollowsTheDistribution) {
  std::vector<float> logits = {0, 1.75, 3.5, 3.5, 3, 0.75, 2.5, 0.25, 2, 3.5, 1.5, 3.25, 1, 2.75, 0.5, 2.25};
  SamplerScratch scratch(16);
  for (const SamplingParams& params : {SamplingParams{1, 0, 1, 0, {}}, SamplingParams{1, 16, 1, 0, {}}}) {
    std::vector<int> count(16);
    const int draws = 200000;
    for (int i = 0; i < draws; ++i)
      ++count[static_cast<size_t>(sample_token(logits, params, 99, i, scratch))];
    double sum = 0;
    for (const float v : logits) sum += std::exp(v);
    for (size_t i = 0; i < 16; ++i)
      EXPECT_NEAR(count[i] / double{draws}, std::exp(logits[i]) / sum, 0.004) << i;
  }
}

}  // namespace
}  // namespace firesteel
