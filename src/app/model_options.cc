#include "app/model_options.h"

#include <CLI/CLI.hpp>
#include <filesystem>

namespace firesteel {

CLI::Option* add_model_options(CLI::App* app, ModelOptions* o) {
  CLI::Option* const model =
      app->add_option("--model", o->dir, "checkpoint directory")->type_name("DIR")->required();
  app->add_option("--device", o->device, "where to compute")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app->add_option("--threads", o->threads, "CPU threads, 0 = all")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  CLI::Option* const dense =
      app->add_option("--dense", o->dense, "dense matrices: as stored (bf16), or narrowed to FP8 or 4 bits")
          ->check(CLI::IsMember({"auto", "q4", "fp8", "bf16"}))
          ->capture_default_str();
  CLI::Option* const kv =
      app->add_option("--kv", o->kv, "attention's memory of the context: FP8, or as computed (bf16)")
          ->check(CLI::IsMember({"auto", "fp8", "bf16"}))
          ->capture_default_str();
  app->add_flag("--exact", o->exact, "nothing lossy: --dense bf16 and --kv bf16")
      ->excludes(dense)
      ->excludes(kv);
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
