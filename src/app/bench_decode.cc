// bench decode: reply tokens per second of a model in this process, several replies at once.
#include <algorithm>
#include <cstdio>

#include "app/bench.h"
#include "app/bench_engine.h"
#include "app/bench_report.h"
#include "app/model_text.h"

namespace firesteel {
namespace {

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
  const Status done = bench_decode(options);
  return done.ok() ? 0 : report(done.error());
}

}  // namespace firesteel
