#include "decode/sampler.h"

#include <openssl/evp.h>

#include <charconv>

#include "decode/sampler_impl.h"

namespace firesteel {

using namespace sampler_internal;  // NOLINT(google-build-using-namespace)

SamplerScratch::SamplerScratch(int32_t vocab)
    : block_max(static_cast<size_t>(vocab / kBlock + 1)),
      block_order(block_max.size()),
      keys(static_cast<size_t>(vocab)),
      candidates(static_cast<size_t>(vocab)),
      merged(static_cast<size_t>(vocab)),
      histogram(static_cast<size_t>(kSteps)) {}

uint64_t prompt_seed(std::span<const int32_t> prompt, int64_t salt) {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  CHECK(context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1);
  char text[4096];
  char* at = text;
  const auto put = [&](int64_t number, char before) {
    if (text + sizeof text - at < 24) {
      CHECK(EVP_DigestUpdate(context, text, static_cast<size_t>(at - text)) == 1);
      at = text;
    }
    if (before != 0) *at++ = before;
    at = std::to_chars(at, text + sizeof text, number).ptr;
  };
  for (size_t i = 0; i < prompt.size(); ++i) put(prompt[i], i == 0 ? '\0' : ',');
  put(salt, '|');
  unsigned char digest[EVP_MAX_MD_SIZE];
  CHECK(EVP_DigestUpdate(context, text, static_cast<size_t>(at - text)) == 1);
  CHECK(EVP_DigestFinal_ex(context, digest, nullptr) == 1);
  EVP_MD_CTX_free(context);
  uint64_t seed = 0;
  for (int i = 7; i >= 0; --i) seed = (seed << 8) | digest[i];
  return seed & 0x7FFFFFFFFFFFFFFFull;
}

double keyed_noise(uint64_t seed, int64_t position, int32_t id) {
  return Noise52::gumbel(token_hash(row_key(seed, position), id));
}

float shard_max(std::span<const float> logits, SamplerScratch& scratch) {
  CHECK(logits.size() <= scratch.keys.size());
  const size_t n = logits.size();
  float best = kMasked;
  for (size_t b = 0; b * kBlock < n; ++b) {
    const float* const from = logits.data() + b * kBlock;
    const size_t count = std::min<size_t>(kBlock, n - b * kBlock);
    float lanes[8] = {kMasked, kMasked, kMasked, kMasked, kMasked, kMasked, kMasked, kMasked};
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
      for (size_t j = 0; j < 8; ++j)
        lanes[j] = from[i + j] > lanes[j] ? from[i + j] : lanes[j];  // false for NaN
    float block = kMasked;
    for (const float lane : lanes) block = lane > block ? lane : block;
    for (; i < count; ++i) block = from[i] > block ? from[i] : block;
    scratch.block_max[b] = finite(block);
    best = std::max(best, scratch.block_max[b]);
  }
  return best;
}

int32_t shard_capacity(const SamplingParams& params, int32_t shard_size, int32_t stage) {
  constexpr int32_t kStages[kSamplerStages] = {64, 1024, 16384, std::numeric_limits<int32_t>::max()};
  switch (path_of(params)) {
    case Path::kTopK:
      return std::min(params.top_k, shard_size);
    case Path::kNucleus:
      return std::min(kStages[std::min(stage, kSamplerStages - 1)], shard_size);
    case Path::kGreedy:
    case Path::kOpen:
      break;
  }
  return std::min(1, shard_size);
}

namespace sampler_internal {

int64_t shard_mass(std::span<const float> logits, double temperature, double best,
                   const SamplerScratch& scratch) {
  const size_t n = logits.size();
  int64_t total = 0;
  for (size_t b = 0; b * kBlock < n; ++b) {
    if (scaled(scratch.block_max[b], temperature) - best < -28.0) continue;  // no mass in the whole block
    const float* const from = logits.data() + b * kBlock;
    const size_t count = std::min<size_t>(kBlock, n - b * kBlock);
    int64_t sum = 0;
    if (temperature == 1.0) {
      for (size_t i = 0; i < count; ++i) sum += fixed_mass(static_cast<double>(from[i]), best);
    } else {
      for (size_t i = 0; i < count; ++i) sum += fixed_mass(scaled(from[i], temperature), best);
    }
    total += sum;
  }
  return total;
}

void mass_by_step(std::span<const float> logits, double temperature, double best, SamplerScratch& scratch) {
  const size_t n = logits.size();
  std::fill(scratch.histogram.begin(), scratch.histogram.end(), 0);
  int64_t mass[kBlock];
  double step[kBlock];
  for (size_t b = 0; b * kBlock < n; ++b) {
    if (scaled(scratch.block_max[b], temperature) - best < -28.0) continue;
    const float* const from = logits.data() + b * kBlock;
    const size_t count = std::min<size_t>(kBlock, n - b * kBlock);
    for (size_t i = 0; i < count; ++i) {
      const double s = scaled(from[i], temperature);
      mass[i] = fixed_mass(s, best);
      const double steps = (best - s) * kStepsPerUnit;
      const double above = steps > 0.0 ? steps : 0.0;  // an infinite logit
      step[i] = above < kSteps - 1 ? above : kSteps - 1;
    }
    for (size_t i = 0; i < count; ++i)
      scratch.histogram[static_cast<size_t>(static_cast<int32_t>(step[i]))] += mass[i];
  }
}

int32_t collect_best(std::span<const float> logits, int32_t first_id, int32_t capacity,
                     SamplerScratch& scratch) {
  const size_t n = logits.size(), blocks = (n + kBlock - 1) / kBlock;
  const size_t wanted = static_cast<size_t>(capacity);
  if (wanted == 0) return 0;
  // The wanted-th largest block maximum has at least `wanted` tokens at or above it, so nothing below it can
  // be among the first: only the blocks that reach it are read.
  float threshold = kMasked;
  if (wanted < blocks) {
    std::copy_n(scratch.block_max.begin(), blocks, scratch.block_order.begin());
    const auto nth = scratch.block_order.begin() + static_cast<ptrdiff_t>(wanted - 1);
    std::nth_element(scratch.block_order.begin(), nth,
                     scratch.block_order.begin() + static_cast<ptrdiff_t>(blocks), std::greater<>());
    threshold = *nth;
  }
  size_t count = 0;
  for (size_t b = 0; b < blocks; ++b) {
    if (!(scratch.block_max[b] >= threshold && scratch.block_max[b] > kMasked)) continue;
    for (size_t i = b * kBlock, end = std::min(n, i + kBlock); i < end; ++i)
      if (logits[i] >= threshold && logits[i] > kMasked)
        scratch.keys[count++] = order_key(finite(logits[i]), static_cast<uint32_t>(i));
  }
  const auto begin = scratch.keys.begin();
  if (count > wanted) {
    std::nth_element(begin, begin + static_cast<ptrdiff_t>(wanted), begin + static_cast<ptrdiff_t>(count),
                     std::greater<>());
    count = wanted;
  }
  std::sort(begin, begin + static_cast<ptrdiff_t>(count), std::greater<>());
  for (size_t i = 0; i < count; ++i) {
    const uint32_t index = ~static_cast<uint32_t>(scratch.keys[i]);
    scratch.candidates[i] = {finite(logits[index]), first_id + static_cast<int32_t>(index), 0};
  }
  return static_cast<int32_t>(count);
}

}  // namespace sampler_internal

ShardCandidates shard_candidates(std::span<const float> logits, int32_t first_id, const SampleKey& key,
                                 float global_max, int32_t stage, SamplerScratch& scratch) {
  return sampler_internal::shard_candidates<Noise52>(logits, first_id, key, global_max, stage, scratch);
}

Choice choose(std::span<const ShardCandidates> shards, const SampleKey& key, float global_max,
              SamplerScratch& scratch) {
  return sampler_internal::choose<Noise52>(shards, key, global_max, scratch);
}

int32_t sample_token(std::span<const float> logits, const SamplingParams& params, uint64_t seed,
                     int64_t position, SamplerScratch& scratch) {
  return sample_one_shard<Noise52>(logits, {params, seed, position}, scratch).id;
}

}  // namespace firesteel
