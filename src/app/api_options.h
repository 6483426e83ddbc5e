// The command line of everything that serves the HTTP API: where it listens, who may ask, what the model is
// called. The same switches and defaults for every program that has them.
#pragma once

#include <string>
#include <vector>

#include "api/server.h"
#include "model/config.h"

namespace CLI {
class App;
}

namespace firesteel {

struct ApiFlags {
  std::string host = "127.0.0.1";
  int port = 8888;                    // 0: any free port
  int max_tokens = 32768;             // reply budget of a request that names none
  int thinking_budget = 0;            // reply tokens of reasoning, where a request names no limit; 0: none
  bool answer_reserve = false;        // close a think block that would leave no room for an answer
  bool loop_guard = false;            // close a think block that repeats itself
  int smoothing = 400;                // milliseconds: tokens that came together go out over at most this
  bool no_thinking = false;           // where a request does not say
  std::string effort = "max";         // of thinking, where a request names none: low, high or max
  bool clear_thinking = false;        // earlier reasoning is left out of prompts
  bool random_seed = false;           // a fresh seed for requests without one
  bool trust_caller_markup = false;   // control tokens that callers spell are control tokens
  bool forget_replies = false;        // histories are taken as clients send them
  std::vector<std::string> api_keys;  // "KEY" or "LABEL: KEY"
  std::string api_key_file;           // such lines; read again when it changes
  std::vector<std::string> cors_origins;  // web pages that may ask
  bool open_metrics = false;              // /metrics without a key
  std::vector<std::string>
      model_names;            // what clients may call the model; the first is the one it answers with
  bool strict_model = false;  // 404 for other names
};

void add_api_options(CLI::App* app, ApiFlags* flags);

/// What the flags and the checkpoint's own defaults make of the API's options. `model_dir` names the model
/// when the flags do not.
api::ApiOptions api_options(const ApiFlags& flags, const std::string& model_dir, const ModelConfig& config);

}  // namespace firesteel
