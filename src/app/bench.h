// The bench subcommands: their options, and one function each (bench_NAME.cc). Each prints a table and, if
// asked, writes a JSON file with machine, build, command and figures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/bench_models.h"

namespace firesteel {

struct BenchServeOptions {
  std::string url = "http://127.0.0.1:8888";
  std::string model;     // "": the first that the server lists
  std::string key_file;  // its first line is the API key
  std::vector<std::string> prompts = {"structured", "prose"};
  std::vector<int> streams = {1, 2, 3, 4};
  int tokens = 400;
  std::vector<int> prefill;  // prompt lengths in tokens, about
  int timeout_s = 600;       // longest silence of a stream
  std::string json_file, command;
};
int run_bench_serve(const BenchServeOptions& options);

struct BenchTokenizerOptions {
  std::string dir;
  std::vector<std::string> texts;  // files; none: made-up English
  double seconds = 1;              // for each figure
  std::string json_file, command;
};
int run_bench_tokenizer(const BenchTokenizerOptions& options);

/// `bench` and its subcommands on a command line.
class BenchCommands {
 public:
  /// Adds them; this object must outlive the parsing.
  explicit BenchCommands(CLI::App& program);
  bool chosen() const;
  /// Runs what was chosen. `argv` is noted in the JSON file.
  int run(int argc, char** argv);

 private:
  CLI::App* bench_;
  ModelBenches models_;
  CLI::App *serve_app_, *tokenizer_app_;
  BenchServeOptions serve_;
  BenchTokenizerOptions tokenizer_;
};

}  // namespace firesteel
