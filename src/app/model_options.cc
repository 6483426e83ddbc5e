#include "app/model_options.h"

#include <CLI/CLI.hpp>

namespace firesteel {

CLI::Option* add_model_options(CLI::App* app, ModelOptions* o) {
  CLI::Option* const model = app->add_option("--model", o->dir, "checkpoint directory")->type_name("DIR")->required();
  app->add_option("--device", o->device, "where to compute")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app->add_option("--threads", o->threads, "CPU threads, 0 = all")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  return model;
}

std::string model_name(const std::string& dir) {
  std::error_code ec;
  std::filesystem::path path = std::filesystem::weakly_canonical(dir, ec);
  if (ec) path = dir;
  const std::string name = path.filename().string();
  return name.empty() ? "firesteel" : name;
}

}  // namespace firesteel
