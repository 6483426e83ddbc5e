#include "app/bench.h"

#include <CLI/CLI.hpp>

namespace firesteel {

BenchCommands::BenchCommands(CLI::App& program)
    : bench_(program.add_subcommand("bench", "measure: a served model, decode, prefill, the tokenizer")),
      models_(*bench_) {
  bench_->require_subcommand(1);

  serve_app_ =
      bench_->add_subcommand("serve", "streams of any OpenAI-compatible server (sparkDash protocol)");
  serve_app_->add_option("--url", serve_.url, "server, http only")->capture_default_str();
  serve_app_->add_option("--model", serve_.model, "model id; default: the first that the server lists");
  serve_app_->add_option("--key-file", serve_.key_file, "file whose first line is the API key")
      ->type_name("FILE");
  serve_app_->add_option("--prompts", serve_.prompts, "structured, prose, code")
      ->delimiter(',')
      ->check(CLI::IsMember({"structured", "prose", "code"}))
      ->capture_default_str();
  add_number_list(serve_app_, "--streams", &serve_.streams, "numbers of streams at once", 1, 256)
      ->capture_default_str();
  serve_app_->add_option("--tokens", serve_.tokens, "tokens of a reply")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  add_number_list(serve_app_, "--prefill", &serve_.prefill,
                  "also prompts of about so many tokens: 8192,16384,… with a passphrase to find", 256,
                  1 << 21);
  serve_app_->add_option("--timeout", serve_.timeout_s, "longest silence of a stream in seconds")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  add_json_option(serve_app_, &serve_.json_file);

  tokenizer_app_ = bench_->add_subcommand("tokenizer", "loading, encoding and decoding, one thread");
  tokenizer_app_->add_option("--model", tokenizer_.dir, "directory with tokenizer.json")
      ->required()
      ->type_name("DIR");
  tokenizer_app_
      ->add_option("--text", tokenizer_.texts, "text to encode, repeatable; default: made-up English")
      ->type_name("FILE");
  tokenizer_app_->add_option("--seconds", tokenizer_.seconds, "time for each figure")
      ->check(CLI::Range(0.01, 600.0))
      ->capture_default_str();
  add_json_option(tokenizer_app_, &tokenizer_.json_file);
}

bool BenchCommands::chosen() const { return bench_->parsed(); }

int BenchCommands::run(int argc, char** argv) {
  const std::string command = command_line(argc, argv);
  if (models_.chosen()) return models_.run(command);
  serve_.command = tokenizer_.command = command;
  return serve_app_->parsed() ? run_bench_serve(serve_) : run_bench_tokenizer(tokenizer_);
}

}  // namespace firesteel
