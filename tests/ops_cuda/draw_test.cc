// Tokens drawn on the device are those that the host draws from the same logits, and what it says about a
// shard is what shard_max() and shard_candidates() say, value by value.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "decode/group_sampler.h"
#include "decode/sampler_impl.h"
#include "decode/token_constraint.h"
#include "ops_cuda/both.h"

namespace firesteel::test {
namespace {

enum class Shape { kText, kFlat, kPeaked, kTies, kMasked, kExtreme, kEqual, kZeros, kNone, kCount };

template <typename T>
T pick(Random& random, std::initializer_list<T> from) {
  return *(from.begin() + static_cast<ptrdiff_t>(random.below(from.size())));
}

std::vector<float> make_logits(Random& random, Shape shape, size_t count) {
  const float width = shape == Shape::kFlat ? 0.5f : shape == Shape::kPeaked ? 6.0f : 4.0f;
  std::vector<float> logits(count);
  for (float& v : logits) {
    v = static_cast<float>(random.normal()) * width;
    if (shape == Shape::kTies) v = std::round(v);
    if (shape == Shape::kMasked && random.below(3) != 0) v = -INFINITY;
    if (shape == Shape::kEqual) v = 1.5f;
    if (shape == Shape::kZeros) v = pick(random, {0.0f, -0.0f, -1.0f, -2.0f});
    if (shape == Shape::kNone) v = random.below(2) != 0 ? -INFINITY : kNan;
    if (shape == Shape::kExtreme) {
      const float values[] = {0.0f, -0.0f,   FLT_MAX, -FLT_MAX, INFINITY, -INFINITY,
                              kNan, FLT_MIN, 1e-45f,  -1e-45f,  v};
      v = values[random.below(11)];
    }
  }
  return logits;
}

SampleKey make_key(Random& random) {
  SampleKey key;
  key.params.temperature = pick(random, {0.0, 1e-9, 0.05, 0.3, 0.7, 1.0, 1.0, 1.3, 5.0, 1e40});
  key.params.top_k = pick(random, {0, 0, 0, 1, 4, 40, 1000, 1024});
  key.params.top_p = pick(random, {1.0, 0.95, 0.95, 0.5, 0.999999, 1e-3, 5e-324, 0.0});
  key.params.min_p = pick(random, {0.0, 0.0, 0.0, 0.05, 0.5, 1.0, 1.5});
  key.seed = random.bits();
  key.position = static_cast<int64_t>(random.below(1048576));
  return key;
}

std::string describe(const SampleKey& k) {
  return "T " + std::to_string(k.params.temperature) + " k " + std::to_string(k.params.top_k) + " p " +
         std::to_string(k.params.top_p) + " min " + std::to_string(k.params.min_p);
}

/// Rows of one batch, on the host as sample_token() shall see them and on the device.
struct Rows {
  Rows(Random& random, size_t count, int32_t vocab) {
    for (size_t i = 0; i < count; ++i) {
      const auto shape = static_cast<Shape>(random.below(static_cast<uint64_t>(Shape::kCount)));
      add(random, make_logits(random, shape, static_cast<size_t>(vocab)), make_key(random),
          random.below(3) == 0);
    }
  }
  Rows() = default;
  void add(Random& random, std::vector<float> row, const SampleKey& key, bool mask) {
    std::vector<uint32_t> words;
    if (mask) {
      words.resize(mask_words(static_cast<int32_t>(row.size())));
      const uint64_t share = random.below(3);  // of a half: few, half or most tokens may come
      for (uint32_t& w : words) {
        w = static_cast<uint32_t>(random.bits());
        if (share == 0) w &= static_cast<uint32_t>(random.bits() & random.bits() & random.bits());
        if (share == 2) w |= static_cast<uint32_t>(random.bits() | random.bits());
      }
    }
    raw.push_back(row);
    if (mask) apply_mask(words, 0, row);
    host.push_back(std::move(row));
    masks.push_back(std::move(words));
    keys.push_back(key);
  }
  /// Uploads ids [first, first + width) of all rows.
  std::vector<SampleRow> on_device(size_t first, size_t width) const {
    std::vector<float> all;
    for (const std::vector<float>& row : raw)
      all.insert(all.end(), row.begin() + static_cast<ptrdiff_t>(first),
                 row.begin() + static_cast<ptrdiff_t>(first + width));
    const float* const at = cuda_side()->f32(all);
    std::vector<SampleRow> rows;
    for (size_t i = 0; i < raw.size(); ++i)
      rows.push_back({std::span(at + i * width, width), keys[i], true, masks[i]});
    return rows;
  }
  std::vector<int32_t> drawn_on_host() const {
    SamplerScratch scratch(static_cast<int32_t>(host[0].size()));
    std::vector<int32_t> ids;
    for (size_t i = 0; i < host.size(); ++i)
      ids.push_back(sample_token(host[i], keys[i].params, keys[i].seed, keys[i].position, scratch));
    return ids;
  }

  std::vector<std::vector<float>> raw, host;  // before and after the mask
  std::vector<std::vector<uint32_t>> masks;
  std::vector<SampleKey> keys;
};

std::vector<int32_t> drawn_on_device(std::span<const SampleRow> rows) {
  const auto vocab = static_cast<int32_t>(rows[0].logits.size());
  GroupSampler sampler(vocab, 1, 0, vocab, static_cast<int32_t>(rows.size()), cuda_side()->ops().drawer());
  std::vector<int32_t> ids(rows.size(), -7);
  for (const SampleRow& row : rows) EXPECT_TRUE(sampler.draws_on_device(row.key.params));
  const Status status = sampler.draw(nullptr, {}, rows, ids);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return ids;
}

TEST(CudaDraw, IdsAreThoseOfTheHost) {
  REQUIRE_CUDA();
  Random random;
  for (const int32_t vocab : {154'880, 77'440, 20'001, 4096, 2049, 2047, 257, 64, 33, 2, 1}) {
    for (const size_t count : {1u, 8u, 32u, 40u}) {
      cuda_side()->reset();
      const Rows rows(random, count, vocab);
      const std::vector<int32_t> want = rows.drawn_on_host(), got = drawn_on_device(rows.on_device(0, vocab));
      for (size_t i = 0; i < count; ++i)
        EXPECT_EQ(got[i], want[i]) << vocab << " row " << i << " of " << count << ": "
                                   << describe(rows.keys[i]);
    }
  }
}

TEST(CudaDraw, NucleiFromTwoTokensToMostOfThem) {
  REQUIRE_CUDA();
  Random random;
  constexpr int32_t kVocab = 154'880;
  SamplerScratch scratch(kVocab);
  for (const float width : {6.0f, 4.0f, 2.5f, 1.0f, 0.2f}) {
    cuda_side()->reset();
    Rows rows;
    for (size_t i = 0; i < 16; ++i) {
      SampleKey key = make_key(random);
      key.params = {i % 3 == 0 ? 0.7 : 1.0, 0, i % 4 == 0 ? 0.8 : 0.95, i % 5 == 0 ? 1e-3 : 0.0, {}};
      std::vector<float> row(kVocab);
      for (float& v : row) v = static_cast<float>(random.normal()) * width;
      rows.add(random, std::move(row), key, i % 7 == 6);
    }
    EXPECT_EQ(drawn_on_device(rows.on_device(0, kVocab)), rows.drawn_on_host()) << width;
  }
}

// With two tokens a temperature can be chosen so that their scores are equal but for the last bits of the
// noise: then the noise itself must be right to the last bit.
TEST(CudaDraw, NoiseIsRightToTheLastBit) {
  REQUIRE_CUDA();
  Random random;
  int switched = 0, pairs = 0;
  for (int round = 0; round < 60; ++round) {
    cuda_side()->reset();
    Rows rows;
    while (rows.keys.size() < 32) {
      const uint64_t seed = random.bits();
      const double difference = keyed_noise(seed, 5, 0) - keyed_noise(seed, 5, 1);
      if (difference < 0.05) continue;
      double temperature = 1 / difference;
      for (int i = 0; i < 4; ++i) temperature = std::nextafter(temperature, 0.0);
      for (int i = 0; i < 8; ++i, temperature = std::nextafter(temperature, 1e9))
        rows.add(random, {0.0f, 1.0f}, {{temperature, 0, 1.0, 0.0, {}}, seed, 5}, false);
    }
    const std::vector<int32_t> want = rows.drawn_on_host();
    EXPECT_EQ(drawn_on_device(rows.on_device(0, 2)), want);
    for (size_t i = 0; i < want.size(); i += 8, ++pairs) switched += want[i] != want[i + 7];
  }
  EXPECT_GT(switched, pairs / 2) << "the temperatures are not where the choice turns";
}

TEST(CudaDraw, ShardsSayWhatTheHostSays) {
  REQUIRE_CUDA();
  Random random;
  struct Cut {
    int32_t vocab, first, width;
  };
  for (const Cut cut : {Cut{154'880, 0, 77'440}, Cut{154'880, 77'440, 77'440}, Cut{154'880, 116'096, 38'784},
                        Cut{9001, 0, 3007}, Cut{9001, 3007, 5994}, Cut{100, 37, 1}, Cut{100, 5, 50}}) {
    cuda_side()->reset();
    constexpr size_t kRows = 32;
    const Rows rows(random, kRows, cut.vocab);
    const std::vector<SampleRow> there =
        rows.on_device(static_cast<size_t>(cut.first), static_cast<size_t>(cut.width));
    DeviceRows device(cuda_side()->ops().drawer(), false, cut.first, cut.width, kRows);
    SamplerScratch scratch(cut.vocab);
    const auto part = [&](size_t i) {
      return std::span(rows.host[i]).subspan(static_cast<size_t>(cut.first), static_cast<size_t>(cut.width));
    };
    ASSERT_TRUE(device.find_best(there).ok());
    std::vector<float> maxima;
    for (size_t i = 0; i < kRows; ++i) {
      EXPECT_EQ(device.best(i).value, shard_max(part(i), scratch));
      maxima.push_back(shard_max(rows.host[i], scratch));  // of all ranks
    }
    for (int32_t stage = 0; stage <= DeviceRows::kLastStage; ++stage) {
      std::vector<int> said(kRows);
      const auto use = [&](size_t i, const ShardCandidates& got) {
        ++said[i];
        shard_max(part(i), scratch);
        ShardCandidates want = shard_candidates(part(i), cut.first, rows.keys[i], maxima[i], 0, scratch);
        if (stage > 0) want = shard_candidates(part(i), cut.first, rows.keys[i], maxima[i], stage, scratch);
        const std::string what = describe(rows.keys[i]) + " row " + std::to_string(i);
        EXPECT_EQ(got.mass, want.mass) << what;
        EXPECT_EQ(got.complete, want.complete) << what;
        ASSERT_EQ(got.best.size(), want.best.size()) << what;
        for (size_t k = 0; k < want.best.size(); ++k) {
          EXPECT_EQ(got.best[k].id, want.best[k].id) << what << " " << k;
          EXPECT_EQ(got.best[k].value, want.best[k].value) << what << " " << k;
          EXPECT_EQ(got.best[k].mass, want.best[k].mass) << what << " " << k;
        }
      };
      ASSERT_TRUE(device.candidates(there, 0, kRows, maxima, stage, std::ref(use)).ok());
      EXPECT_EQ(said, std::vector<int>(kRows, 1));
    }
  }
}

// The comparison above must see a wrong seed, a lost mask, another temperature and another nucleus.
TEST(CudaDraw, PlantedFaultsAreSeen) {
  REQUIRE_CUDA();
  Random random;
  constexpr int32_t kVocab = 20'000;
  Rows rows;
  for (size_t i = 0; i < 32; ++i) {
    SampleKey key = make_key(random);
    key.params = {1.0, 0, 0.95, 0.0, {}};
    rows.add(random, make_logits(random, Shape::kText, kVocab), key, true);
  }
  const std::vector<int32_t> want = rows.drawn_on_host();
  const auto differing = [&](const std::function<void(SampleRow&)>& fault) {
    std::vector<SampleRow> there = rows.on_device(0, kVocab);
    for (SampleRow& row : there) fault(row);
    const std::vector<int32_t> got = drawn_on_device(there);
    int count = 0;
    for (size_t i = 0; i < want.size(); ++i) count += got[i] != want[i];
    return count;
  };
  EXPECT_EQ(differing([](SampleRow&) {}), 0);
  EXPECT_GT(differing([](SampleRow& row) { ++row.key.seed; }), 16);
  EXPECT_GT(differing([](SampleRow& row) { ++row.key.position; }), 16);
  EXPECT_GT(differing([](SampleRow& row) { row.mask = {}; }), 4);
  EXPECT_GT(differing([](SampleRow& row) { row.key.params.temperature = 2; }), 4);
  EXPECT_GT(differing([](SampleRow& row) { row.key.params.top_p = 0.05; }), 4);
}

}  // namespace
}  // namespace firesteel::test
