// Tokenizer: load time and single-thread speed.
//   tokenizer_bench [--tokenizer=FILE] [--text=FILE]… [google benchmark flags]
// Without flags: the bundled tokenizer over this source tree. The figures of bench/results are with a
// 200,000-token vocabulary (tests/oracle/large_tokenizer.mjs) over named texts.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "text/pretokenizer_regex.h"
#include "text/pretokenizer_words.h"
#include "text/tokenizer.h"

namespace firesteel {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

std::string source_tree() {
  std::string text;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(std::string(FIRESTEEL_SOURCE_DIR) + "/src")) {
    if (entry.path().extension() == ".cc" || entry.path().extension() == ".h")
      text += read_file(entry.path());
  }
  return text;
}

void load(benchmark::State& state, const std::string& json) {
  for (auto _ : state) {
    auto tokenizer = Tokenizer::parse(json, "bench");
    benchmark::DoNotOptimize(tokenizer.ok());
  }
  state.SetBytesProcessed(static_cast<int64_t>(json.size()) * state.iterations());
}

void encode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  size_t tokens = 0;
  for (auto _ : state) tokens = tokenizer.encode(text)->size();
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
  state.counters["tokens/s"] = benchmark::Counter(
      static_cast<double>(tokens) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["bytes/token"] = static_cast<double>(text.size()) / static_cast<double>(tokens);
}

void decode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text).value();
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.decode(ids));
  state.counters["tokens/s"] = benchmark::Counter(
      static_cast<double>(ids.size()) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void split(benchmark::State& state, const std::string& text, bool by_regex) {
  const auto regex = RegexSplitter::compile(kWordsPattern);
  std::vector<uint32_t> ends;
  for (auto _ : state) {
    ends.clear();
    if (by_regex) {
      benchmark::DoNotOptimize(regex->split(text, 0, ends).ok());
    } else {
      split_words(text, 0, ends);
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
}

}  // namespace
}  // namespace firesteel

int main(int argc, char** argv) {
  using namespace firesteel;
  std::string path = std::string(FIRESTEEL_SOURCE_DIR) + "/models/demo/tokenizer.json";
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.starts_with("--tokenizer=")) {
      path = arg.substr(12);
    } else if (arg.starts_with("--text=")) {
      texts.emplace_back(std::filesystem::path(arg.substr(7)).filename(), read_file(arg.substr(7)));
    } else {
      rest.push_back(argv[i]);
    }
  }
  if (texts.empty()) texts.emplace_back("source", source_tree());
  const std::string json = read_file(path);
  const auto tokenizer = Tokenizer::parse(json, path);
  if (!tokenizer) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 1;
  }
  benchmark::RegisterBenchmark("load", [&](benchmark::State& s) {
    load(s, json);
  })->Unit(benchmark::kMillisecond);
  for (const auto& [name, text] : texts) {
    const auto add = [&](const char* what, auto run) {
      benchmark::RegisterBenchmark((std::string(what) + "/" + name).c_str(), run)
          ->Unit(benchmark::kMillisecond);
    };
    add("encode", [&](benchmark::State& s) { encode(s, *tokenizer, text); });
    add("decode", [&](benchmark::State& s) { decode(s, *tokenizer, text); });
    add("split", [&](benchmark::State& s) { split(s, text, false); });
    add("split_by_regex", [&](benchmark::State& s) { split(s, text, true); });
  }
  const std::string letters(1 << 20, 'a');
  benchmark::RegisterBenchmark("encode/one_letter_1MiB", [&](benchmark::State& s) {
    encode(s, *tokenizer, letters);
  })->Unit(benchmark::kMillisecond);
  int count = static_cast<int>(rest.size());
  benchmark::Initialize(&count, rest.data());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
