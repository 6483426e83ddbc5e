#include "app/bench.h"

#include <CLI/CLI.hpp>

namespace firesteel {
namespace {

std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

void add_json(CLI::App* app, std::string* file) {
  app->add_option("--json", *file, "file to write the figures to, with machine, build and command")
      ->type_name("FILE");
}

CLI::Option* add_numbers(CLI::App* app, const std::string& name, std::vector<int>* out,
                         const std::string& help, int low, int high) {
  return app->add_option(name, *out, help)->delimiter(',')->check(CLI::Range(low, high));
}

void add_model_or_synthetic(CLI::App* app, ModelOptions* model, SyntheticOptions* synthetic) {
  CLI::Option* const dir = add_model_options(app, model)->required(false);
  CLI::Option* const shape =
      app->add_option("--synthetic", synthetic->shape,
                      "instead of a model: random weights of a published shape, glm-5.3-flash[:layers=N]")
          ->excludes(dir);
  app->add_option("--rank-of", synthetic->rank_of,
                  "with --synthetic: the part of one rank of so many, alone, without sums over ranks")
      ->needs(shape)
      ->check(CLI::IsMember({1, 2, 4}));
  app->callback([dir, shape] {
    if (dir->empty() && shape->empty()) throw CLI::RequiredError("--model or --synthetic");
  });
}

}  // namespace

BenchCommands::BenchCommands(CLI::App& program) {
  bench_ = program.add_subcommand("bench", "measure: a served model, decode, prefill, the tokenizer");
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
  add_numbers(serve_app_, "--streams", &serve_.streams, "numbers of streams at once", 1, 256)
      ->capture_default_str();
  serve_app_->add_option("--tokens", serve_.tokens, "tokens of a reply")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  add_numbers(serve_app_, "--prefill", &serve_.prefill,
              "also prompts of about so many tokens: 8192,16384,… with a passphrase to find", 256, 1 << 21);
  serve_app_->add_option("--timeout", serve_.timeout_s, "longest silence of a stream in seconds")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  add_json(serve_app_, &serve_.json_file);

  decode_app_ = bench_->add_subcommand("decode", "reply tokens per second of a model in this process");
  add_model_or_synthetic(decode_app_, &decode_.model, &decode_.synthetic);
  add_numbers(decode_app_, "--streams", &decode_.streams, "numbers of replies at once", 1, 64)
      ->capture_default_str();
  decode_app_->add_option("--prompt", decode_.prompt, "prompt tokens of each")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  decode_app_->add_option("--tokens", decode_.tokens, "reply tokens of each")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  add_json(decode_app_, &decode_.json_file);

  prefill_app_ = bench_->add_subcommand("prefill", "prompt tokens per second of a model in this process");
  add_model_or_synthetic(prefill_app_, &prefill_.model, &prefill_.synthetic);
  add_numbers(prefill_app_, "--lengths", &prefill_.lengths, "prompt lengths in tokens", 1, 1 << 21)
      ->capture_default_str();
  add_json(prefill_app_, &prefill_.json_file);

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
  add_json(tokenizer_app_, &tokenizer_.json_file);
}

bool BenchCommands::chosen() const { return bench_->parsed(); }

int BenchCommands::run(int argc, char** argv) {
  std::string command = "firesteel";
  for (int i = 1; i < argc; ++i) command += " " + quoted(argv[i]);
  serve_.command = decode_.command = prefill_.command = tokenizer_.command = command;
  if (serve_app_->parsed()) return run_bench_serve(serve_);
  if (decode_app_->parsed()) return run_bench_decode(decode_);
  if (prefill_app_->parsed()) return run_bench_prefill(prefill_);
  return run_bench_tokenizer(tokenizer_);
}

}  // namespace firesteel
