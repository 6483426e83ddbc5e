// bench serve: the sparkDash protocol against any OpenAI-compatible server.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <latch>
#include <limits>
#include <optional>
#include <random>
#include <thread>

#include "app/bench.h"
#include "app/bench_prompts.h"
#include "app/bench_report.h"
#include "app/bench_stream.h"

namespace firesteel {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr int kWarmUpTokens = 32, kFindTokens = 32;

struct Bench {
  explicit Bench(const BenchServeOptions& o) : options(o) {}
  const BenchServeOptions& options;
  ChatServer server;
  std::string run;  // what makes this run's prompts unlike others'
  uint64_t seed = 0;
  bool plain = false;  // the server refused the fields that fix a reply's length
};

Result<std::string> read_key(const std::string& file) {
  if (file.empty()) return std::string();
  std::ifstream in(file);
  std::string key;
  std::getline(in, key);
  while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
  if (key.empty()) return Error{ErrorCode::kNotFound, file + ": no API key in its first line"};
  return key;
}

Result<ChatStream> ask_once(const Bench& bench, ChatAsk ask) {
  ASSIGN_OR_RETURN(ChatCall call, ChatCall::open(bench.server, std::move(ask)));
  return call.run();
}

/// All questions at the same moment, each on a connection that is open already.
Result<std::vector<ChatStream>> ask_together(const Bench& bench, const std::vector<std::string>& questions) {
  std::vector<ChatCall> calls;
  for (const std::string& question : questions) {
    ASSIGN_OR_RETURN(ChatCall call, ChatCall::open(bench.server, {question, bench.options.tokens, true}));
    calls.push_back(std::move(call));
  }
  std::vector<std::optional<Result<ChatStream>>> results(calls.size());
  std::latch start(static_cast<ptrdiff_t>(calls.size()));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < calls.size(); ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      results[i].emplace(calls[i].run());
    });
  }
  for (std::thread& t : threads) t.join();
  std::vector<ChatStream> out;
  for (auto& result : results) {
    if (!result->ok()) return result->error();
    out.push_back(std::move(*result).value());
  }
  return out;
}

Json stream_json(const ChatStream& stream) {
  const StreamFigures f = figures_of({&stream.times, 1});
  Json out;
  out["prompt_tokens"] = stream.prompt_tokens;
  out["completion_tokens"] = stream.times.tokens;
  out["cached_tokens"] = stream.cached_tokens < 0 ? Json(nullptr) : Json(stream.cached_tokens);
  out["pieces"] = stream.times.visible.size();
  out["finish_reason"] = stream.finish_reason;
  out["tokens_per_s"] = f.rate;
  out["first_token_ms"] = f.first_ms;
  return out;
}

double tokens_per_round(const std::vector<ChatStream>& streams) {
  double tokens = 0, rounds = 0;
  for (const ChatStream& s : streams) {
    if (s.rounds <= 0) return kNone;
    tokens += static_cast<double>(s.times.tokens);
    rounds += static_cast<double>(s.rounds);
  }
  return rounds > 0 ? tokens / rounds : kNone;
}

/// Tokens that the server says it had kept; NaN if one stream says nothing.
double cached_tokens(const std::vector<ChatStream>& streams) {
  double sum = 0;
  for (const ChatStream& s : streams)
    sum += s.cached_tokens < 0 ? kNone : static_cast<double>(s.cached_tokens);
  return sum;
}

Status run_streams(Bench& bench, TextTable& table, Json& results) {
  for (const std::string& kind : bench.options.prompts) {
    for (const int count : bench.options.streams) {
      std::vector<std::string> questions;
      for (int i = 0; i < count; ++i) questions.push_back(bench_question(kind, i, count, bench.run));
      ASSIGN_OR_RETURN(const std::vector<ChatStream> streams, ask_together(bench, questions));
      std::vector<StreamTimes> times;
      Json each = Json::array();
      int64_t fewest = std::numeric_limits<int64_t>::max();
      for (const ChatStream& s : streams) {
        times.push_back(s.times);
        each.push_back(stream_json(s));
        fewest = std::min(fewest, s.times.tokens);
        bench.plain = bench.plain || s.plain;
      }
      const StreamFigures f = figures_of(times);
      table.add({kind, std::to_string(count), number_text(f.rate, 1), number_text(f.aggregate, 1),
                 number_text(f.first_ms, 0), number_text(f.first_max_ms, 0), number_text(f.gap_p50_ms, 1),
                 number_text(f.gap_p90_ms, 1), number_text(f.gap_max_ms, 1),
                 number_text(f.tokens_per_piece, 2), number_text(tokens_per_round(streams), 2),
                 number_text(cached_tokens(streams), 0), std::to_string(fewest)});
      Json row;
      row["prompt"] = kind;
      row["streams"] = count;
      row["tokens_per_s_each"] = f.rate;
      row["tokens_per_s_all"] = f.aggregate;
      row["first_token_ms"] = {{"mean", f.first_ms}, {"max", f.first_max_ms}};
      row["gap_ms"] = {{"p50", f.gap_p50_ms}, {"p90", f.gap_p90_ms}, {"max", f.gap_max_ms}};
      row["tokens_per_piece"] = f.tokens_per_piece;
      row["tokens_per_round"] = tokens_per_round(streams);
      row["cached_tokens"] = cached_tokens(streams);
      row["each"] = std::move(each);
      results.push_back(std::move(row));
    }
  }
  return {};
}

std::string haystack(const Bench& bench, int64_t words, uint64_t seed, const std::string& secret) {
  const std::string text = filler_text(words, seed);
  const size_t middle = std::min(text.find(' ', text.size() / 2), text.size());
  return "Run " + bench.run + "-" + std::to_string(seed) + ". Read this text.\n\n" + text.substr(0, middle) +
         " The passphrase is " + secret + "." + text.substr(middle) +
         "\n\nWhat is the passphrase in the text above? Answer with it alone.";
}

Status run_prefill(Bench& bench, TextTable& table, Json& results) {
  // A short prompt tells how many tokens this server makes of a word.
  constexpr int64_t kProbeWords = 200;
  double tokens_per_word = 0;
  for (const int64_t words : {int64_t{0}, kProbeWords}) {
    ASSIGN_OR_RETURN(const ChatStream probe,
                     ask_once(bench, {haystack(bench, words, bench.seed, "x"), 1, false}));
    tokens_per_word = static_cast<double>(probe.prompt_tokens) - tokens_per_word;
  }
  tokens_per_word = std::max(tokens_per_word / kProbeWords, 0.1);
  for (size_t i = 0; i < bench.options.prefill.size(); ++i) {
    const uint64_t seed = bench.seed + 1 + i;
    const std::string secret = passphrase(seed);
    const auto words = static_cast<int64_t>((bench.options.prefill[i] - 50) / tokens_per_word);
    ASSIGN_OR_RETURN(const ChatStream s,
                     ask_once(bench, {haystack(bench, words, seed, secret), kFindTokens, false}));
    const StreamFigures f = figures_of({&s.times, 1});
    const double rate = static_cast<double>(s.prompt_tokens) / (f.first_ms * 1e-3);
    const bool found = s.text.find(secret) != std::string::npos;
    table.add({std::to_string(s.prompt_tokens), number_text(rate, 0), number_text(f.first_ms, 0),
               s.cached_tokens < 0 ? "-" : std::to_string(s.cached_tokens), found ? "yes" : "no"});
    results.push_back({{"asked_tokens", bench.options.prefill[i]},
                       {"prompt_tokens", s.prompt_tokens},
                       {"tokens_per_s", rate},
                       {"first_token_ms", f.first_ms},
                       {"cached_tokens", s.cached_tokens < 0 ? Json(nullptr) : Json(s.cached_tokens)},
                       {"passphrase_found", found}});
  }
  return {};
}

Status bench_serve(const BenchServeOptions& options) {
  Bench bench(options);
  ASSIGN_OR_RETURN(bench.server.url, parse_server_url(options.url));
  ASSIGN_OR_RETURN(bench.server.key, read_key(options.key_file));
  bench.server.silence = std::chrono::seconds(options.timeout_s);
  bench.server.model = options.model;
  if (options.model.empty()) {
    ASSIGN_OR_RETURN(bench.server.model, first_model(bench.server));
  }
  std::random_device device;
  bench.seed = device();
  char run[16];
  std::snprintf(run, sizeof run, "%06x", static_cast<unsigned>(bench.seed & 0xFFFFFF));
  bench.run = run;

  const std::string warm_up = bench_question("prose", 0, 1, "warm-up " + bench.run);
  ASSIGN_OR_RETURN(const ChatStream warm, ask_once(bench, {warm_up, kWarmUpTokens, true}));
  bench.plain = warm.plain;
  Json streams = Json::array(), prefill = Json::array();
  TextTable stream_table({"prompt", "streams", "tok/s each", "tok/s all", "first ms", "first max",
                          "gap p50 ms", "gap p90", "gap max", "tok/piece", "tok/round", "cached",
                          "fewest tok"});
  RETURN_IF_ERROR(run_streams(bench, stream_table, streams));
  std::printf("%s, model %s, %d tokens a reply\n\n%s", options.url.c_str(), bench.server.model.c_str(),
              options.tokens, stream_table.text().c_str());
  if (!options.prefill.empty()) {
    TextTable table({"prompt tokens", "tok/s", "first ms", "cached", "passphrase found"});
    RETURN_IF_ERROR(run_prefill(bench, table, prefill));
    std::printf("\n%s", table.text().c_str());
  }
  if (bench.plain) {
    std::printf("\nThe server refuses min_tokens, ignore_eos or stop: replies may be shorter than asked.\n");
  }
  Json figures;
  figures["url"] = options.url;
  figures["model"] = bench.server.model;
  figures["reply_tokens"] = options.tokens;
  figures["fixed_length"] = !bench.plain;
  figures["streams"] = std::move(streams);
  if (!options.prefill.empty()) figures["prefill"] = std::move(prefill);
  return write_bench_json(options.json_file,
                          "A served model by the sparkDash protocol; machine is the client's",
                          options.command, figures);
}

}  // namespace

int run_bench_serve(const BenchServeOptions& options) {
  const Status done = bench_serve(options);
  return done.ok() ? 0 : report(done.error());
}

}  // namespace firesteel
