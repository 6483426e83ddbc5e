#include <CLI/CLI.hpp>

#include "app/bench.h"
#include "app/check.h"
#include "app/commands.h"
#include "app/core_commands.h"
#include "app/serve.h"
#include "base/log.h"

namespace firesteel {

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Firesteel serves glm5_next models (GLM-5.3-Flash) from one native program."};
  app.name("firesteel");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "help of every command");

  ServeOptions serve;
  auto* serve_app = app.add_subcommand("serve", "serve the OpenAI API over HTTP");
  add_model_options(serve_app, &serve.model);
  serve_app->set_config("--config", "", "TOML file with these options");
  add_api_options(serve_app, &serve.api);
  add_ranks_option(serve_app, &serve.ranks.ranks);
  add_exchange_option(serve_app, &serve.ranks.exchange);
  serve_app
      ->add_option("--rank", serve.ranks.rank,
                   "which of them this is; without it, rank 0 starts the others here")
      ->check(CLI::Range(0, 3));
  serve_app->add_option("--leader", serve.ranks.leader, "address of rank 0 for the other ranks, port 29551")
      ->type_name("HOST[:PORT]");
  serve_app->add_option("--streams", serve.streams, "requests computed together")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  serve_app->add_option("--context", serve.context, "window in tokens, or auto: the largest that fits")
      ->capture_default_str();
  auto* verbose = serve_app->add_flag("--verbose", serve.verbose, "debug lines in the log");
  serve_app->add_flag("--quiet", serve.quiet, "warnings and errors only in the log")->excludes(verbose);

  GenerateOptions generate;
  auto* generate_app = app.add_subcommand("generate", "one reply, printed");
  add_model_options(generate_app, &generate.model);
  auto* what = generate_app->add_option_group("prompt");
  what->add_option("--prompt", generate.prompt, "a user's message");
  what->add_option("--prompt-ids", generate.prompt_ids, "token ids as they are: 1,2,3");
  what->add_option("--messages", generate.messages_file, "JSON file: a messages array, or a chat request")
      ->type_name("FILE");
  what->require_option(1);
  generate_app->add_option("--max-tokens", generate.max_tokens, "reply budget")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  generate_app->add_option("--temperature", generate.temperature, "0 = greedy; default: the checkpoint's");
  generate_app->add_option("--top-p", generate.top_p, "nucleus")->check(CLI::Range(0.0, 1.0));
  generate_app->add_option("--top-k", generate.top_k, "0 = off");
  generate_app->add_option("--min-p", generate.min_p, "least probability relative to the best")
      ->check(CLI::Range(0.0, 1.0));
  generate_app->add_option("--seed", generate.seed, "64-bit seed; default: from the prompt");
  add_ranks_option(generate_app, &generate.ranks.ranks);
  add_exchange_option(generate_app, &generate.ranks.exchange);
  generate_app->add_flag("--json", generate.json, "one JSON object: ids, text, finish_reason, …");

  CoreCommands core(app);
  EvalOptions eval;
  auto* eval_app =
      app.add_subcommand("eval", "perplexity of texts, and how far a format is from the exact model");
  add_model_options(eval_app, &eval.model);
  eval_app->add_option("--against", eval.against, "the exact model, if another directory holds it")
      ->type_name("DIR");
  eval_app->add_option("--context", eval.context, "tokens scored together")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  eval_app->add_option("files", eval.files, "text files")->required()->type_name("FILE");
  eval_app->add_flag("--json", eval.json, "as one JSON object");

  BenchCommands bench(app);

  auto* check_app = app.add_subcommand("check", "what a running server must do, asked over HTTP");
  check_app->require_subcommand(1);
  CheckToolsOptions check_tools;
  auto* tools_app = check_app->add_subcommand("tools", "tool calls of any OpenAI-compatible server");
  tools_app->add_option("--url", check_tools.url, "server, http only")->capture_default_str();
  tools_app->add_option("--key", check_tools.key, "API key");
  tools_app->add_option("--model", check_tools.model, "model id; default: the first that the server lists");
  tools_app->add_option("--timeout", check_tools.timeout_s, "longest silence of the server in seconds")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const bool help = e.get_exit_code() == 0;
    if (help) return app.exit(e);
    std::fprintf(stderr, "firesteel: %s (see --help)\n", e.what());
    return 2;
  }
  init_logging(serve.verbose ? LogLevel::kDebug : serve.quiet ? LogLevel::kWarning : LogLevel::kInfo);
  if (*serve_app) return run_serve(serve);
  if (*generate_app) return run_generate(generate);
  if (*eval_app) return run_eval(eval);
  if (*tools_app) return run_check_tools(check_tools);
  if (bench.chosen()) return bench.run(argc, argv);
  return core.run();
}

}  // namespace
}  // namespace firesteel

int main(int argc, char** argv) { return firesteel::run(argc, argv); }
