#include "app/bench_engine.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <utility>

#include "base/clock.h"

namespace firesteel {
namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// When each reply moved on; shared with the engine's thread.
struct Marks {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::vector<int64_t>> at;
  uint64_t news = 0;
};

StreamTimes times_of(const Generation& generation, const std::vector<int64_t>& marks) {
  const GenerationTimes t = generation.times();
  StreamTimes out;
  out.sent = t.submitted;
  out.tokens = static_cast<int64_t>(generation.tokens().size());
  for (const int64_t at : marks) {
    if (at < t.finished) out.visible.push_back(at);
  }
  // The last token may be told together with the end.
  if (static_cast<int64_t>(out.visible.size()) < out.tokens) out.visible.push_back(t.finished);
  return out;
}

}  // namespace

Result<std::unique_ptr<BenchEngine>> BenchEngine::open(const ModelOptions& options, int32_t streams,
                                                       int32_t window) {
  std::unique_ptr<BenchEngine> out(new BenchEngine);
  OpenRequest request;
  request.streams = streams;
  request.window = window;
  ASSIGN_OR_RETURN(out->open_, open_model(options, request));
  EngineConfig config;
  config.max_streams = streams;
  config.window = out->open_.plan.window;
  ASSIGN_OR_RETURN(out->engine_, ModelEngine::create(*out->open_.model, config));
  return out;
}

GenerationRequest BenchEngine::request(int32_t prompt, int32_t tokens, uint64_t seed) const {
  GenerationRequest out;
  std::mt19937_64 rng(seed);
  for (int32_t i = 0; i < prompt; ++i) {
    out.prompt.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(engine_->info().vocab)));
  }
  out.sampling.temperature = 0;
  out.max_tokens = tokens;
  return out;
}

Result<EngineRun> BenchEngine::run(std::vector<GenerationRequest> requests) {
  const auto marks = std::make_shared<Marks>();
  marks->at.resize(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    marks->at[i].reserve(static_cast<size_t>(requests[i].max_tokens) + 2);
  }
  std::vector<std::shared_ptr<Generation>> replies;
  const double cpu_before = cpu_seconds();
  for (size_t i = 0; i < requests.size(); ++i) {
    auto submitted = engine_->submit(std::move(requests[i]), [marks, i] {
      const int64_t now = now_ns();
      std::lock_guard lock(marks->mutex);
      marks->at[i].push_back(now);
      ++marks->news;
      marks->changed.notify_one();
    });
    if (!submitted.ok()) {
      for (auto& g : replies) g->cancel();
      return std::move(submitted).error();
    }
    replies.push_back(std::move(submitted).value());
  }
  const auto over = [&] {
    return std::all_of(replies.begin(), replies.end(), [](const auto& g) { return g->finished(); });
  };
  std::unique_lock lock(marks->mutex);
  while (!over()) {
    const uint64_t seen = marks->news;
    marks->changed.wait(lock, [&] { return marks->news != seen || over(); });
  }
  EngineRun out;
  out.cpu_seconds = cpu_seconds() - cpu_before;
  for (size_t i = 0; i < replies.size(); ++i) {
    if (replies[i]->finish_reason() == FinishReason::kError) return replies[i]->error();
    out.replies.push_back(times_of(*replies[i], marks->at[i]));
  }
  return out;
}

}  // namespace firesteel
