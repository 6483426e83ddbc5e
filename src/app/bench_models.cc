#include "app/bench_models.h"

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

std::string command_line(int argc, char** argv) {
  std::string out = "firesteel";
  for (int i = 1; i < argc; ++i) out += " " + quoted(argv[i]);
  return out;
}

void add_json_option(CLI::App* app, std::string* file) {
  app->add_option("--json", *file, "file to write the figures to, with machine, build and command")
      ->type_name("FILE");
}

CLI::Option* add_number_list(CLI::App* app, const std::string& name, std::vector<int>* out,
                             const std::string& help, int low, int high) {
  return app->add_option(name, *out, help)->delimiter(',')->check(CLI::Range(low, high));
}

ModelBenches::ModelBenches(CLI::App& bench) {
  decode_app_ = bench.add_subcommand("decode", "reply tokens per second of a model in this process");
  add_model_or_synthetic(decode_app_, &decode_.model, &decode_.synthetic);
  add_number_list(decode_app_, "--streams", &decode_.streams, "numbers of replies at once", 1, 64)
      ->capture_default_str();
  decode_app_->add_option("--prompt", decode_.prompt, "prompt tokens of each")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  decode_app_->add_option("--tokens", decode_.tokens, "reply tokens of each")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  add_json_option(decode_app_, &decode_.json_file);

  prefill_app_ = bench.add_subcommand("prefill", "prompt tokens per second of a model in this process");
  add_model_or_synthetic(prefill_app_, &prefill_.model, &prefill_.synthetic);
  add_number_list(prefill_app_, "--lengths", &prefill_.lengths, "prompt lengths in tokens", 1, 1 << 21)
      ->capture_default_str();
  add_json_option(prefill_app_, &prefill_.json_file);

  kernels_app_ =
      bench.add_subcommand("kernels", "each operation alone on a GPU, at the shapes of one rank of two");
  kernels_app_
      ->add_option("--filter", kernels_.filter, "only cases whose name holds this: experts, linear q4, …")
      ->type_name("TEXT");
  add_number_list(kernels_app_, "--rows", &kernels_.rows, "rows of a call", 1, 2048)->capture_default_str();
  kernels_app_->add_option("--kv", kernels_.kv, "format of the context: bf16 or fp8")
      ->check(CLI::IsMember({"bf16", "fp8"}))
      ->capture_default_str();
  kernels_app_->add_flag("--once", kernels_.once, "every case once and untimed, for a profiler");
  add_json_option(kernels_app_, &kernels_.json_file);
}

bool ModelBenches::chosen() const {
  return decode_app_->parsed() || prefill_app_->parsed() || kernels_app_->parsed();
}

int ModelBenches::run(const std::string& command) {
  decode_.command = prefill_.command = kernels_.command = command;
  if (kernels_app_->parsed()) return run_bench_kernels(kernels_);
  return decode_app_->parsed() ? run_bench_decode(decode_) : run_bench_prefill(prefill_);
}

}  // namespace firesteel
