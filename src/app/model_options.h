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
};

/// --model (returned), --device, --threads.
CLI::Option* add_model_options(CLI::App* app, ModelOptions* o);

/// What a model folder is called: its last part.
std::string model_name(const std::string& dir);

}  // namespace firesteel
