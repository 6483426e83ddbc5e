// The subcommands of the program: options in, exit code out (0 done, 1 failed, 2 bad arguments). Each lives
// in its own file; an error is one line on standard error that says what to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/model_options.h"
#include "base/result.h"

namespace firesteel {

/// How many processes share the model, and which one this is.
struct RankOptions {
  int ranks = 1;                  // 1, 2 or 4
  int rank = -1;                  // -1: rank 0, which starts the others on this machine
  std::string leader;             // HOST[:PORT] of rank 0; on rank 0: where it listens
  bool quiet = false;             // the ranks that this one starts log warnings only
  std::string exchange = "auto";  // between ranks on GPUs: auto, host or nccl
};

struct GenerateOptions {
  ModelOptions model;
  RankOptions ranks;
  std::string prompt, prompt_ids, messages_file;
  int max_tokens = 512;
  double temperature = -1, top_p = -1, min_p = 0;  // negative: the checkpoint's default
  int top_k = -1;
  std::string seed;
  bool json = false;
};
int run_generate(const GenerateOptions& options);

struct InfoOptions {
  ModelOptions model;
  int ranks = 1;
  int streams = 8;
  std::string context = "auto";
  double assume_free_gib = 0;  // 0: this machine's
  bool json = false;
};
int run_info(const InfoOptions& options);

struct LogitsOptions {
  ModelOptions model;
  std::string prompt_ids, out, split;
  bool layers = false;
};
int run_logits(const LogitsOptions& options);

struct EvalOptions {
  ModelOptions model;
  std::string against;
  int context = 2048;  // tokens scored together
  std::vector<std::string> files;
  bool json = false;
};
int run_eval(const EvalOptions& options);

int run_version();

/// Prints "firesteel: MESSAGE" and gives the exit code of the error.
int report(const Error& error);
/// "1,2,3": ids or lengths, each in [lo, hi]; `what` names the option in the error.
Result<std::vector<int32_t>> parse_int_list(const std::string& text, const std::string& what, int32_t lo,
                                            int32_t hi);
/// "auto" is 0; else a positive number of tokens.
Result<int32_t> parse_context(const std::string& text);

}  // namespace firesteel
