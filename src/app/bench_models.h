// The benches of a model in this process: their options, and one function each (bench_NAME.cc).
#pragma once

#include <string>
#include <vector>

#include "app/commands.h"

namespace firesteel {

/// Random weights instead of a checkpoint.
struct SyntheticOptions {
  std::string shape;  // "": none
  int rank_of = 1;    // the part of one rank of so many, alone
};

struct BenchDecodeOptions {
  ModelOptions model;
  SyntheticOptions synthetic;
  std::vector<int> streams = {1, 4};
  int prompt = 64;
  int tokens = 64;
  std::string json_file, command;
};
int run_bench_decode(const BenchDecodeOptions& options);

struct BenchPrefillOptions {
  ModelOptions model;
  SyntheticOptions synthetic;
  std::vector<int> lengths = {128, 512, 2048};
  std::string json_file, command;
};
int run_bench_prefill(const BenchPrefillOptions& options);

struct BenchKernelsOptions {
  std::string filter;       // cases whose name holds it; "": all
  bool once = false;        // every case once, untimed: for a profiler
  std::string kv = "bf16";  // or fp8
  std::vector<int> rows = {1, 2, 4, 8, 16, 32, 512, 2048};
  std::string json_file, command;
};
int run_bench_kernels(const BenchKernelsOptions& options);

/// `decode`, `prefill` and `kernels` under the bench command.
class ModelBenches {
 public:
  /// Adds them; this object must outlive the parsing.
  explicit ModelBenches(CLI::App& bench);
  bool chosen() const;
  /// Runs what was chosen; `command` is noted in the JSON file.
  int run(const std::string& command);

 private:
  CLI::App *decode_app_, *prefill_app_, *kernels_app_;
  BenchDecodeOptions decode_;
  BenchPrefillOptions prefill_;
  BenchKernelsOptions kernels_;
};

/// The command line as one string.
std::string command_line(int argc, char** argv);
/// --json FILE, and numbers joined by commas.
void add_json_option(CLI::App* app, std::string* file);
CLI::Option* add_number_list(CLI::App* app, const std::string& name, std::vector<int>* out,
                             const std::string& help, int low, int high);

}  // namespace firesteel
