// Time of one keyed draw from a row of 154,880 logits. Argument: logits drawn from a normal distribution
// times sharpness/10. At top_p 0.95 the nucleus is 2 tokens for 60 (as language models mostly have it), about
// 700 for 40, 30,000 for 25 and 115,000 for 10.
#include <benchmark/benchmark.h>

#include <random>

#include "decode/sampler.h"

namespace firesteel {
namespace {

constexpr int32_t kVocab = 154880;

void draw(benchmark::State& state, const SamplingParams& params) {
  std::mt19937_64 rng(1);
  std::normal_distribution<float> normal(0.0f, static_cast<float>(state.range(0)) / 10.0f);
  std::vector<float> logits(kVocab);
  for (float& v : logits) v = normal(rng);
  SamplerScratch scratch(kVocab);
  int64_t position = 0;
  for (auto _ : state) benchmark::DoNotOptimize(sample_token(logits, params, 1234, position++, scratch));
}

BENCHMARK_CAPTURE(draw, greedy, SamplingParams{})->Arg(40)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(draw, default_top_p, SamplingParams{1.0, 0, 0.95, 0.0, {}})
    ->Arg(60)
    ->Arg(40)
    ->Arg(25)
    ->Arg(10)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(draw, temperature_07, SamplingParams{0.7, 0, 0.95, 0.0, {}})
    ->Arg(40)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(draw, top_k_40, SamplingParams{1.0, 40, 0.95, 0.0, {}})
    ->Arg(40)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(draw, everything, SamplingParams{1.0, 0, 1.0, 0.0, {}})
    ->Arg(40)
    ->Arg(10)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(draw, min_p, SamplingParams{1.0, 0, 1.0, 0.05, {}})
    ->Arg(40)
    ->Arg(10)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace firesteel

BENCHMARK_MAIN();
