// bench decode: reply tokens per second of a model in this process, several replies at once.
#include <algorithm>
#include <cstdio>

#include "app/bench_engine.h"
#include "app/bench_forward.h"
#include "app/bench_models.h"
#include "app/bench_report.h"
#include "app/bench_stats.h"

namespace firesteel {
namespace {

Status bench_steps(const BenchDecodeOptions& options) {
  const int most = *std::max_element(options.streams.begin(), options.streams.end());
  const int rounds = static_cast<int>(options.streams.size()), warm_up = 4;
  ASSIGN_OR_RETURN(const auto bench,
                   ForwardBench::open(options.model, options.synthetic, most,
                                      options.prompt + rounds * (options.tokens + warm_up + 1)));
  for (int i = 0; i < most; ++i) {
    ASSIGN_OR_RETURN(const auto chunks, bench->fill(i, options.prompt));
    (void)chunks;
  }
  TextTable table({"streams", "experts a layer", "step ms", "p90", "tok/s all"});
  auto rows = nlohmann::ordered_json::array();
  for (const int count : options.streams) {
    // The first steps of a number of streams are issued and recorded.
    std::vector<double> ms;
    for (int i = -warm_up; i < options.tokens; ++i) {
      ASSIGN_OR_RETURN(const double one, bench->step(count));
      if (i >= 0) ms.push_back(one);
    }
    ASSIGN_OR_RETURN(const double experts, bench->distinct_experts(count));
    const double p50 = percentile(ms, 0.5), p90 = percentile(ms, 0.9);
    table.add({std::to_string(count), number_text(experts, 1), number_text(p50, 3), number_text(p90, 3),
               number_text(count / (p50 * 1e-3), 1)});
    rows.push_back({{"streams", count},
                    {"distinct_experts_of_a_layer", experts},
                    {"step_ms", {{"p50", p50}, {"p90", p90}}},
                    {"tokens_per_s_all", count / (p50 * 1e-3)}});
  }
  std::printf("%s, context %d, steps of %d\n\n%s", bench->title().c_str(), options.prompt, options.tokens,
              table.text().c_str());
  nlohmann::ordered_json figures = bench->facts();
  figures.update({{"context", options.prompt}, {"steps", options.tokens}, {"runs", std::move(rows)}});
  return write_bench_json(options.json_file, "Decode steps of random weights, forward passes with logits",
                          options.command, figures);
}

Status bench_decode(const BenchDecodeOptions& options) {
  const int most = *std::max_element(options.streams.begin(), options.streams.end());
  ASSIGN_OR_RETURN(const auto engine,
                   BenchEngine::open(options.model, most, options.prompt + options.tokens));
  uint64_t seed = 1;
  ASSIGN_OR_RETURN(const EngineRun warm_up, engine->run({engine->request(options.prompt, 4, seed++)}));
  TextTable table({"streams", "tok/s each", "tok/s all", "first ms", "gap p50 ms", "gap p90", "gap max"});
  auto rows = nlohmann::ordered_json::array();
  for (const int count : options.streams) {
    std::vector<GenerationRequest> requests;
    for (int i = 0; i < count; ++i) {
      requests.push_back(engine->request(options.prompt, options.tokens, seed++));
    }
    ASSIGN_OR_RETURN(const EngineRun run, engine->run(std::move(requests)));
    const StreamFigures f = figures_of(run.replies);
    table.add({std::to_string(count), number_text(f.rate, 1), number_text(f.aggregate, 1),
               number_text(f.first_ms, 0), number_text(f.gap_p50_ms, 2), number_text(f.gap_p90_ms, 2),
               number_text(f.gap_max_ms, 2)});
    rows.push_back({{"streams", count},
                    {"tokens_per_s_each", f.rate},
                    {"tokens_per_s_all", f.aggregate},
                    {"first_token_ms", f.first_ms},
                    {"gap_ms", {{"p50", f.gap_p50_ms}, {"p90", f.gap_p90_ms}, {"max", f.gap_max_ms}}},
                    {"cpu_seconds", run.cpu_seconds}});
  }
  std::printf("%s, prompts of %d tokens, replies of %d\n\n%s", model_name(options.model.dir).c_str(),
              options.prompt, options.tokens, table.text().c_str());
  return write_bench_json(options.json_file, "Decoding in one process, prompts of made-up ids",
                          options.command,
                          {{"model", model_name(options.model.dir)},
                           {"prompt_tokens", options.prompt},
                           {"reply_tokens", options.tokens},
                           {"runs", std::move(rows)}});
}

}  // namespace

int run_bench_decode(const BenchDecodeOptions& options) {
  const Status done = options.synthetic.shape.empty() ? bench_decode(options) : bench_steps(options);
  return done.ok() ? 0 : report(done.error());
}

}  // namespace firesteel
