// bench tokenizer: loading, encoding and decoding on one thread.
#include <ctime>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "app/bench.h"
#include "app/bench_prompts.h"
#include "app/bench_report.h"
#include "text/tokenizer.h"

namespace firesteel {
namespace {

constexpr int64_t kFillerWords = 50'000;

struct Text {
  std::string name, bytes;
};

/// Mean seconds of a call, on the clock and of this thread's processor time (what counts on a busy machine).
struct Spent {
  double wall = 0, cpu = 0;
};

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <typename Call>
Spent time_calls(double seconds, Call call) {
  using Clock = std::chrono::steady_clock;
  call();  // warm
  int64_t calls = 0;
  const auto start = Clock::now();
  const double cpu_start = thread_seconds();
  std::chrono::duration<double> wall{};
  do {
    call();
    ++calls;
    wall = Clock::now() - start;
  } while (wall.count() < seconds);
  const auto n = static_cast<double>(calls);
  return {wall.count() / n, (thread_seconds() - cpu_start) / n};
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{ErrorCode::kNotFound, path + ": cannot be read"};
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (bytes.empty()) return Error{ErrorCode::kInvalidArgument, path + ": holds no text"};
  return bytes;
}

Status bench_tokenizer(const BenchTokenizerOptions& options) {
  const std::string file = (std::filesystem::path(options.dir) / "tokenizer.json").string();
  ASSIGN_OR_RETURN(const std::string json, read_file(file));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::parse(json, file));
  std::vector<Text> texts;
  for (const std::string& path : options.texts) {
    ASSIGN_OR_RETURN(std::string bytes, read_file(path));
    texts.push_back({std::filesystem::path(path).filename().string(), std::move(bytes)});
  }
  if (texts.empty()) texts.push_back({"made-up English", filler_text(kFillerWords, 1)});
  // What a slow merge loop would choke on.
  texts.push_back({"one letter, 1 MiB", std::string(1 << 20, 'a')});

  TextTable table({"what", "bytes", "tokens", "ms", "tok/s", "tok/cpu-s", "MB/cpu-s"});
  auto rows = nlohmann::ordered_json::array();
  const auto add = [&](const std::string& what, size_t bytes, size_t tokens, const Spent& spent) {
    const auto n = static_cast<double>(tokens);
    table.add({what, std::to_string(bytes), tokens > 0 ? std::to_string(tokens) : "-",
               number_text(spent.wall * 1e3, 2), tokens > 0 ? number_text(n / spent.wall, 0) : "-",
               tokens > 0 ? number_text(n / spent.cpu, 0) : "-",
               number_text(static_cast<double>(bytes) / spent.cpu * 1e-6, 1)});
    nlohmann::ordered_json row = {
        {"what", what}, {"bytes", bytes}, {"ms", spent.wall * 1e3}, {"cpu_ms", spent.cpu * 1e3}};
    if (tokens > 0) {
      row["tokens"] = tokens;
      row["tokens_per_s"] = n / spent.wall;
      row["tokens_per_cpu_s"] = n / spent.cpu;
      row["bytes_per_token"] = static_cast<double>(bytes) / n;
    }
    rows.push_back(std::move(row));
  };
  bool loaded = true;
  const Spent load =
      time_calls(options.seconds, [&] { loaded = Tokenizer::parse(json, file).ok() && loaded; });
  if (!loaded) return Error{ErrorCode::kInternal, file + ": loaded once and not again"};
  add("load", json.size(), 0, load);
  for (const Text& text : texts) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.encode(text.bytes));
    size_t sum = 0;
    const Spent encode = time_calls(options.seconds, [&] { sum += tokenizer.encode(text.bytes)->size(); });
    add("encode: " + text.name, text.bytes.size(), ids.size(), encode);
    const Spent decode = time_calls(options.seconds, [&] { sum += tokenizer.decode(ids).size(); });
    add("decode: " + text.name, text.bytes.size(), ids.size(), decode);
    if (sum == 0) return Error{ErrorCode::kInternal, text.name + ": came out empty"};
  }
  std::printf("%s, %d ids, one thread\n\n%s", file.c_str(), tokenizer.id_count(), table.text().c_str());
  return write_bench_json(
      options.json_file, "Tokenizer, one thread", options.command,
      {{"tokenizer", {{"ids", tokenizer.id_count()}, {"bytes", json.size()}}}, {"figures", std::move(rows)}});
}

}  // namespace

int run_bench_tokenizer(const BenchTokenizerOptions& options) {
  const Status done = bench_tokenizer(options);
  return done.ok() ? 0 : report(done.error());
}

}  // namespace firesteel
