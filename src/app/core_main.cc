// firesteel_core: the commands that need neither HTTP nor text, for machines without the packages of the
// whole program (scripts/gpu.sh).
#include <CLI/CLI.hpp>

#include "app/bench_models.h"
#include "app/core_commands.h"
#include "base/log.h"

namespace firesteel {
namespace {

int run(int argc, char** argv) {
  CLI::App app{"Firesteel's commands that need neither HTTP nor text."};
  app.name("firesteel_core");
  app.require_subcommand(1);
  CoreCommands core(app);
  auto* bench_app = app.add_subcommand("bench", "measure: decode, prefill");
  bench_app->require_subcommand(1);
  ModelBenches benches(*bench_app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    std::fprintf(stderr, "firesteel_core: %s (see --help)\n", e.what());
    return 2;
  }
  init_logging(LogLevel::kInfo);
  return benches.chosen() ? benches.run(command_line(argc, argv)) : core.run();
}

}  // namespace
}  // namespace firesteel

int main(int argc, char** argv) { return firesteel::run(argc, argv); }
