// scripted_server: the HTTP API with replies from a script instead of a model, for reproducing reports and
// for testing clients. Of the model directory it reads config.json, the tokenizer and the template, no
// weights.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "api/server.h"
#include "app/api_options.h"
#include "app/model_text.h"
#include "app/script.h"
#include "app/stop_signals.h"
#include "base/log.h"
#include "engine/scripted_engine.h"
#include "model/config.h"

namespace firesteel {
namespace {

struct Options {
  std::string model_dir, script;
  ApiFlags api;
  int streams = 8;
  int context = 0;  // tokens; 0: the checkpoint's
  bool quiet = false;
};

Result<std::string> read_file(const std::string& path) {
  std::error_code ec;
  std::ifstream in;
  if (!std::filesystem::is_directory(path, ec)) in.open(path, std::ios::binary);
  if (!in.is_open()) return Error{ErrorCode::kIo, path + ": cannot be read"};
  return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
}

Status serve(const Options& options) {
  static StopSignals signals;  // its thread outlives this function
  ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(options.model_dir));
  ASSIGN_OR_RETURN(const DirectoryText text, load_text(options.model_dir));
  if (!text.tokenizer) {
    return Error{ErrorCode::kNotFound, options.model_dir + ": has no tokenizer.json, which a script needs"};
  }
  // A turn that ends as the model ends one: with the token that begins the user's.
  std::vector<int32_t> end_ids = config.eos_ids;
  const auto user = std::find(end_ids.begin(), end_ids.end(), text.tokenizer->added_id("<|user|>"));
  if (user != end_ids.end()) std::iter_swap(end_ids.begin(), user);
  ASSIGN_OR_RETURN(const std::string lines, read_file(options.script));
  ASSIGN_OR_RETURN(const Script script, Script::parse(lines, options.script, text.tokenizer, end_ids));

  EngineInfo info;
  info.vocab = config.vocab;
  info.window = options.context > 0 ? options.context : config.max_positions;
  info.max_streams = options.streams;
  info.pool_tokens = static_cast<int64_t>(info.window) * info.max_streams;
  info.max_queue = 64;
  ScriptedEngine engine(info, [&](const GenerationRequest& request) { return script.reply(request.prompt); });
  ASSIGN_OR_RETURN(const auto server,
                   api::ApiServer::start(api_options(options.api, options.model_dir, config),
                                         {text.tokenizer, text.chat_template}));
  server->attach_engine(engine);
  LOG_INFO("ready: {}/v1/chat/completions, replies from {}", server->url(), options.script);
  signals.wait();
  server->stop();
  engine.stop();
  return {};
}

int run(int argc, char** argv) {
  CLI::App app{"The HTTP API with replies from a script instead of a model."};
  app.name("scripted_server");
  Options options;
  app.add_option("--model", options.model_dir, "checkpoint directory; its weights are not read")
      ->required()
      ->type_name("DIR");
  app.add_option("--script", options.script,
                 "JSON lines: {\"when\": TEXT, \"reply\": TEXT, …}; the first that fits is used")
      ->required()
      ->type_name("FILE");
  add_api_options(&app, &options.api);
  app.add_option("--streams", options.streams, "requests answered together; 64 more may wait")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--context", options.context, "window in tokens, 0 = the checkpoint's")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_flag("--quiet", options.quiet, "warnings and errors only in the log");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    std::fprintf(stderr, "scripted_server: %s (see --help)\n", e.what());
    return 2;
  }
  init_logging(options.quiet ? LogLevel::kWarning : LogLevel::kInfo);
  const Status served = serve(options);
  if (served.ok()) return 0;
  std::fprintf(stderr, "scripted_server: %s\n", served.error().message.c_str());
  return served.error().code == ErrorCode::kInvalidArgument ? 2 : 1;
}

}  // namespace
}  // namespace firesteel

int main(int argc, char** argv) { return firesteel::run(argc, argv); }
