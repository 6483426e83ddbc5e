// What one reply token costs the HTTP side: 64 streamed chat replies at once from an engine that does
// nothing, read by a client in another process, so that only the server's work is counted.
//
//   http_bench --benchmark_counters_tabular=true      cpu_us/token: CPU time of the whole server process per
//   token
#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "../tests/http/raw_client.h"
#include "api/server.h"
#include "base/log.h"
#include "engine/scripted_engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace firesteel {
namespace {

constexpr int kStreams = 64, kTokens = 1000;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Opens all streams, reads them to their ends in turn; runs in the child.
bool read_all(uint16_t port) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"hi"}],"reasoning_effort":"none","stream":true,"max_tokens":1000})";
  std::vector<http::RawClient> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back(port);
    clients.back().send("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: " +
                        std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  for (http::RawClient& c : clients) {
    if (c.read_until("data: [DONE]\n\n", 60'000).empty()) return false;
  }
  return true;
}

// Arguments: tokens that the engine gives a reply at a step, and milliseconds of smoothing.
void BM_StreamedTokens(benchmark::State& state) {
  const std::string model = std::string(FIRESTEEL_SOURCE_DIR) + "/models/demo";
  auto tokenizer =
      std::make_shared<const Tokenizer>(std::move(Tokenizer::load(model + "/tokenizer.json")).value());
  const std::string path = model + "/chat_template.jinja";
  auto chat_template =
      std::make_shared<const ChatTemplate>(std::move(ChatTemplate::parse(read_file(path), path)).value());
  const std::vector<int32_t> words = tokenizer->encode("The grass is green. The sky is blue.").value();
  EngineInfo info;
  info.vocab = 4096;
  info.window = 4096;
  info.max_streams = kStreams;
  info.max_queue = kStreams;
  const int slice = static_cast<int>(state.range(0));
  ScriptedEngine engine(info, [&](const GenerationRequest&) {
    ScriptedReply reply;
    for (int i = 0; i < kTokens; ++i) reply.ids.push_back(words[static_cast<size_t>(i) % words.size()]);
    reply.slices = {slice};
    reply.delay_us = 5000 * slice;
    return reply;
  });
  api::ApiOptions options;
  options.http.port = 0;
  options.smoothing_ms = static_cast<int>(state.range(1));
  auto server = std::move(api::ApiServer::start(options, {tokenizer, chat_template})).value();
  server->attach_engine(engine);
  double cpu = 0;
  int64_t tokens = 0;
  for (auto _ : state) {
    const double before = cpu_seconds();
    const pid_t child = fork();
    if (child == 0) _exit(read_all(server->port()) ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {
      state.SkipWithError("a stream did not end");
      break;
    }
    cpu += cpu_seconds() - before;
    tokens += static_cast<int64_t>(kStreams) * kTokens;
  }
  state.counters["cpu_us/token"] = cpu * 1e6 / static_cast<double>(std::max<int64_t>(tokens, 1));
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_StreamedTokens)->ArgsProduct({{1, 4}, {0, 400}})->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace firesteel

BENCHMARK_MAIN();
