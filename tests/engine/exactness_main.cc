// engine_exactness --model tiny|demo [--requests N] [--first I]: the same request gives the same reply, bit
// for bit, alone, beside 7 others, with its prompt in one pass, in any split, token by token, and with the
// first tokens of its own reply given as prompt. Every logits row of every run is compared by the tokens
// before it (watched_model.h), and a planted row-dependent sum must be caught.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "engine/executor.h"
#include "engine/scheduler.h"
#include "model_runs.h"
#include "request_set.h"
#include "watched_model.h"

namespace firesteel {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The engine's loop with the rows of each stream chosen by `cut` (1 to the rows that are left).
std::vector<Ids> serve_split(Model& model, const std::vector<GenerationRequest>& requests,
                             const std::function<int32_t()>& cut) {
  EngineConfig config;
  config.max_streams = kCompany;
  EngineState state(config, model.limits().pages * kPageTokens, model.limits().pages, model.limits().slots);
  Scheduler scheduler(config, model.limits().max_rows, model.limits().max_logit_rows - kCompany);
  Executor executor(model, config);
  RoundRecord record(kCompany, model.config().vocab);
  RoundOutcome outcome(kCompany);
  WaitingRequests waiting(static_cast<int32_t>(requests.size()));
  std::vector<std::unique_ptr<Request>> all;
  for (const GenerationRequest& spec : requests) {
    auto request = std::make_unique<Request>();
    request->id = all.size() + 1;
    request->spec = spec;
    request->seed = *spec.sampling.seed;
    request->prepare();
    waiting.insert(request.get());
    all.push_back(std::move(request));
  }
  for (;;) {
    scheduler.plan(state, waiting, record);
    if (record.empty()) break;
    for (const RoundRecord::Admission& a : record.admissions) waiting.remove(a.request);
    record.rows.clear();
    for (int32_t i = 0; i < kCompany; ++i) {
      const Stream& s = state.streams[static_cast<size_t>(i)];
      int32_t pending = s.request != nullptr ? s.pending() : 0;
      for (const RoundRecord::Admission& a : record.admissions)
        if (a.stream == i) pending = a.request->known();
      if (pending > 0) record.rows.push_back({i, std::min(pending, cut())});
    }
    executor.apply(record, state, outcome);
  }
  std::vector<Ids> out;
  for (const auto& request : all)
    out.push_back(Ids(request->generation->tokens().begin(), request->generation->tokens().end()));
  return out;
}

int equal_count(const std::vector<Ids>& a, const std::vector<Ids>& b) {
  int equal = 0;
  for (size_t i = 0; i < a.size(); ++i) equal += !a[i].empty() && a[i] == b[i];
  return equal;
}

/// The requests again with the first part of each reply moved into the prompt.
std::vector<GenerationRequest> continuations(const std::vector<GenerationRequest>& requests,
                                             const std::vector<Ids>& replies) {
  std::vector<GenerationRequest> out = requests;
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t given = 1 + (i * 7) % (replies[i].size() - 1);
    out[i].prompt.insert(out[i].prompt.end(), replies[i].begin(),
                         replies[i].begin() + static_cast<ptrdiff_t>(given));
    out[i].max_tokens -= static_cast<int32_t>(given);
  }
  return out;
}

int run(const RunArguments& arguments) {
  const std::string& name = arguments.model;
  const int32_t first = arguments.first, count = arguments.requests;
  const std::unique_ptr<Ops> ops = test_ops(arguments.device, 0);
  if (ops == nullptr) return 1;
  const std::unique_ptr<Model> loaded = load_test_model(name, *ops);
  if (loaded == nullptr) return 1;
  WatchedModel model(*loaded);
  const std::vector<GenerationRequest> requests = request_set(model.config().vocab, first, count);

  bool ok = true;
  std::vector<Ids> reference;
  const auto variant = [&](const char* what, const std::function<std::vector<Ids>()>& replies) {
    const auto start = std::chrono::steady_clock::now();
    const int64_t different = model.different, rows = model.rows, forwards = model.forwards;
    const std::vector<Ids> got = replies();
    if (reference.empty()) reference = got;
    const int equal = equal_count(reference, got);
    std::printf(
        "[done 2] %s, %s: %d of %d replies equal, %lld of the logits rows differ (%lld rows in %lld passes, "
        "%.1f s)\n",
        name.c_str(), what, equal, count, static_cast<long long>(model.different - different),
        static_cast<long long>(model.rows - rows), static_cast<long long>(model.forwards - forwards),
        seconds_since(start));
    std::fflush(stdout);
    ok = ok && equal == count && model.different == different;
  };
  variant("beside 7 others", [&] { return serve(model, requests, kCompany); });
  variant("alone, prompt in one pass", [&] { return serve(model, requests, 1); });
  std::mt19937_64 rng(static_cast<uint64_t>(first) + 99);
  variant("random splits", [&] {
    return serve_split(model, requests,
                       [&] { return 1 + static_cast<int32_t>(rng() % (rng() % 4 == 0 ? 64 : 9)); });
  });
  variant("token by token", [&] { return serve_split(model, requests, [] { return 1; }); });
  variant("own first tokens given as prompt", [&] {
    const std::vector<GenerationRequest> rest = continuations(requests, reference);
    std::vector<Ids> got = serve(model, rest, kCompany);
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t given = rest[i].prompt.size() - requests[i].prompt.size();
      got[i].insert(got[i].begin(), reference[i].begin(),
                    reference[i].begin() + static_cast<ptrdiff_t>(given));
    }
    return got;
  });
  if (model.repeated < 4 * count) {
    std::fprintf(stderr, "only %lld rows were compared\n", static_cast<long long>(model.repeated));
    ok = false;
  }

  // The planted fault: the test must see it in the logits of the first few requests.
  model.plant_fault(true);
  const int64_t before = model.different;
  const int32_t few = std::min(count, 8);
  const std::vector<Ids> faulty = serve(model, {requests.begin(), requests.begin() + few}, kCompany);
  const int64_t caught = model.different - before;
  std::printf("[done 2] %s, planted row-dependent sum: %lld logits rows differ, %d of %d replies equal\n",
              name.c_str(), static_cast<long long>(caught),
              equal_count({reference.begin(), reference.begin() + few}, faulty), few);
  return ok && caught > 0 ? 0 : 1;
}

}  // namespace
}  // namespace firesteel

int main(int argc, char** argv) { return firesteel::run(firesteel::parse_run_arguments(argc, argv)); }
