// bench prefill: prompt tokens per second of a model in this process, by prompt length.
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "app/bench_engine.h"
#include "app/bench_forward.h"
#include "app/bench_models.h"
#include "app/bench_report.h"

namespace firesteel {
namespace {

Status bench_chunks(const BenchPrefillOptions& options) {
  const int longest = *std::max_element(options.lengths.begin(), options.lengths.end());
  ASSIGN_OR_RETURN(const auto bench,
                   ForwardBench::open(options.model, options.synthetic, 1, std::max(longest, 64)));
  ASSIGN_OR_RETURN(const auto warm_up, bench->fill(0, std::min(longest, 2 * ForwardBench::kChunk)));
  TextTable table({"prompt tokens", "tok/s", "first chunk ms", "last chunk ms"});
  auto rows = nlohmann::ordered_json::array();
  for (const int length : options.lengths) {
    ASSIGN_OR_RETURN(const std::vector<double> chunks, bench->fill(0, length));
    const double ms = std::accumulate(chunks.begin(), chunks.end(), 0.0), rate = length / (ms * 1e-3);
    table.add({std::to_string(length), number_text(rate, 0), number_text(chunks.front(), 1),
               number_text(chunks.back(), 1)});
    rows.push_back({{"prompt_tokens", length}, {"tokens_per_s", rate}, {"chunk_ms", chunks}});
  }
  std::printf("%s, chunks of %d\n\n%s", bench->title().c_str(), ForwardBench::kChunk, table.text().c_str());
  nlohmann::ordered_json figures = bench->facts();
  figures.update({{"chunk_rows", ForwardBench::kChunk}, {"runs", std::move(rows)}});
  return write_bench_json(options.json_file, "Prompt chunks of random weights, forward passes",
                          options.command, figures);
}

Status bench_prefill(const BenchPrefillOptions& options) {
  const int longest = *std::max_element(options.lengths.begin(), options.lengths.end());
  ASSIGN_OR_RETURN(const auto engine, BenchEngine::open(options.model, 1, longest + 1));
  uint64_t seed = 1;
  const int shortest = *std::min_element(options.lengths.begin(), options.lengths.end());
  ASSIGN_OR_RETURN(const EngineRun warm_up,
                   engine->run({engine->request(std::min(shortest, 64), 1, seed++)}));
  TextTable table({"prompt tokens", "tok/s", "tok/cpu-s", "first ms"});
  auto rows = nlohmann::ordered_json::array();
  for (const int length : options.lengths) {
    ASSIGN_OR_RETURN(const EngineRun run, engine->run({engine->request(length, 1, seed++)}));
    const double first_ms = figures_of(run.replies).first_ms;
    const double rate = length / (first_ms * 1e-3), cpu_rate = length / run.cpu_seconds;
    table.add(
        {std::to_string(length), number_text(rate, 0), number_text(cpu_rate, 0), number_text(first_ms, 1)});
    rows.push_back({{"prompt_tokens", length},
                    {"tokens_per_s", rate},
                    {"tokens_per_cpu_s", cpu_rate},
                    {"first_token_ms", first_ms}});
  }
  std::printf("%s, one prompt at a time\n\n%s", model_name(options.model.dir).c_str(), table.text().c_str());
  return write_bench_json(options.json_file, "Prefill in one process, prompts of made-up ids",
                          options.command,
                          {{"model", model_name(options.model.dir)}, {"runs", std::move(rows)}});
}

}  // namespace

int run_bench_prefill(const BenchPrefillOptions& options) {
  const Status done = options.synthetic.shape.empty() ? bench_prefill(options) : bench_chunks(options);
  return done.ok() ? 0 : report(done.error());
}

}  // namespace firesteel
