// The subcommands that need neither HTTP nor text: info, logits, version.
#pragma once

#include "app/commands.h"

namespace firesteel {

/// --ranks N
CLI::Option* add_ranks_option(CLI::App* app, int* ranks);
/// --exchange auto|host|nccl
void add_exchange_option(CLI::App* app, std::string* exchange);

class CoreCommands {
 public:
  /// Adds them; this object must outlive the parsing.
  explicit CoreCommands(CLI::App& app);
  /// Runs what was chosen; 2 if none was.
  int run();

 private:
  CLI::App *info_app_, *logits_app_, *version_app_;
  InfoOptions info_;
  LogitsOptions logits_;
};

}  // namespace firesteel
