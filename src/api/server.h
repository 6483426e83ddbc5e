// ApiServer: the HTTP API of one served model, from listening socket to engine. What the `serve` command
// constructs.
//
// It listens before the model is loaded: /health and /ready say so, and generating routes answer 503 until
// attach_engine(). The caller owns the engine and must call stop() before destroying it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/access.h"
#include "base/result.h"
#include "http/server.h"

namespace firesteel {
class ChatTemplate;
class Engine;
class Tokenizer;
}  // namespace firesteel

namespace firesteel::api {

struct ApiOptions {
  http::ServerOptions http;

  std::string model_id = "firesteel";  // what /v1/models lists and replies are signed with
  std::vector<std::string> aliases;    // further names it answers to
  bool strict_model = false;           // 404 for other names instead of an answer

  // Defaults of requests; the checkpoint's generation_config.json and the command line set them.
  double temperature = 1.0;
  double top_p = 0.95;
  int32_t top_k = 0;
  int64_t max_tokens = 32'768;
  bool random_seed = false;
  bool thinking = true;
  std::string effort = "max";  // low, high or max
  bool clear_thinking = false;
  int64_t thinking_budget = 0;  // reply tokens of reasoning; 0: no limit
  bool answer_reserve = false;  // close the think block while a quarter of the limit (1,024 at most) is left
  bool loop_guard = false;      // close a think block that repeats itself
  bool trust_caller_markup = false;
  int smoothing_ms = 400;        // a round's tokens go out over at most this, one an event; 0: as they come
  bool remember_replies = true;  // put lost reasoning and call markup back into histories

  AccessOptions access;  // API keys and CORS origins

  std::vector<int32_t> end_ids;  // the checkpoint's; <|assistant|> is added
};

/// The text side of a model. `chat_template` may be null: then the chat routes are refused.
struct ModelText {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;
};

class ApiServer {
 public:
  /// Starts listening. kIo when the address is taken, kInvalidArgument for options out of range.
  static Result<std::unique_ptr<ApiServer>> start(ApiOptions options, ModelText text);
  ~ApiServer();

  uint16_t port() const;
  /// "http://127.0.0.1:8888"
  std::string url() const;

  /// From now on requests are served. `engine` must outlive stop().
  void attach_engine(Engine& engine);

  /// Refuses new requests, lets running replies finish for `grace`, ends the rest, closes everything.
  /// Idempotent.
  void stop(std::chrono::milliseconds grace = std::chrono::seconds(30));

 private:
  struct Impl;
  explicit ApiServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace firesteel::api
