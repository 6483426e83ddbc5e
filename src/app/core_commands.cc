#include "app/core_commands.h"

#include <CLI/CLI.hpp>

namespace firesteel {

CLI::Option* add_ranks_option(CLI::App* app, int* ranks) {
  return app->add_option("--ranks", *ranks, "processes that share the model")
      ->check(CLI::IsMember({1, 2, 4}))
      ->capture_default_str();
}

void add_exchange_option(CLI::App* app, std::string* exchange) {
  app->add_option("--exchange", *exchange,
                  "between ranks on GPUs: through NCCL, through host memory, or NCCL where it can be")
      ->check(CLI::IsMember({"auto", "host", "nccl"}))
      ->capture_default_str();
}

CoreCommands::CoreCommands(CLI::App& app) {
  info_app_ = app.add_subcommand("info", "what a checkpoint is, what it needs, what window fits");
  add_model_options(info_app_, &info_.model);
  add_ranks_option(info_app_, &info_.ranks);
  info_app_->add_option("--streams", info_.streams, "requests computed together")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  info_app_->add_option("--context", info_.context, "window in tokens, or auto")->capture_default_str();
  info_app_->add_option("--assume-free", info_.assume_free_gib, "free memory in GiB of another machine")
      ->check(CLI::Range(0.0, 1e6));
  info_app_->add_flag("--json", info_.json, "as one JSON object");

  logits_app_ = app.add_subcommand("logits", "logits of every prompt position, as safetensors");
  add_model_options(logits_app_, &logits_.model);
  logits_app_->add_option("--prompt-ids", logits_.prompt_ids, "token ids: 1,2,3")->required();
  logits_app_->add_option("--out", logits_.out, "file to write")->required()->type_name("FILE");
  logits_app_->add_option("--split", logits_.split, "chunk lengths: 21,22,1; the rest in one chunk");
  logits_app_->add_flag("--layers", logits_.layers, "layer outputs and choices too");

  version_app_ = app.add_subcommand("version", "version and build");
}

int CoreCommands::run() {
  if (info_app_->parsed()) return run_info(info_);
  if (logits_app_->parsed()) return run_logits(logits_);
  return version_app_->parsed() ? run_version() : 2;
}

}  // namespace firesteel
