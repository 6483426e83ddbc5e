// Which model a command works on, and on what it computes. Plain values.
#pragma once

#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace firesteel {

/// Which model, and on what.
struct ModelOptions {
  std::string dir;
  std::string device = "auto";  // auto, cpu, cuda
  int threads = 0;              // CPU backend; 0 = one per hardware thread
  // How plain dense matrices (q4, fp8, bf16) and KV rows (fp8, bf16) are kept. auto: q4 and fp8 on a GPU, as
  // they are on the CPU; exact: as they are.
  std::string dense = "auto", kv = "auto";
  bool exact = false;
};

/// --model (returned), --device, --threads, --dense, --kv, --exact.
CLI::Option* add_model_options(CLI::App* app, ModelOptions* o);

/// What a model folder is called: its last part.
std::string model_name(const std::string& dir);

}  // namespace firesteel
