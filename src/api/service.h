// What all routes of one ApiServer share: the model's text side, the engine once it is there, the runs in
// flight.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "api/chat_request.h"
#include "api/metrics.h"
#include "api/reply_memory.h"
#include "api/responses_store.h"
#include "api/server.h"
#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace firesteel::api {

class ReplyRun;

struct Service : std::enable_shared_from_this<Service> {
  ApiOptions options;
  ModelText text;
  ChatDefaults chat_defaults;
  std::vector<int32_t> end_ids;  // tokens that end a reply
  MarkupIds markup;
  std::unique_ptr<AnswerFormats> formats;  // null where the tokenizer has no usable tokens
  int64_t created = 0;                     // when the server started, seconds since the epoch
  std::atomic<Engine*> engine{nullptr};
  std::atomic<bool> stopping{false};
  std::shared_ptr<ApiMetrics> metrics;
  std::unique_ptr<ReplyMemory> memory;  // null: switched off
  std::shared_ptr<ResponseStore> responses = std::make_shared<ResponseStore>();

  // Runs register themselves, so that stop() can end them with an error event.
  std::mutex runs_mutex;
  std::unordered_map<const ReplyRun*, std::weak_ptr<ReplyRun>> runs;

  /// True when requests may name this model.
  bool serves(const std::string& name) const;
  Window window() const;  // engine attached
};

// The routes. Each is called with the engine attached and runs on a worker thread unless said otherwise.
void handle_chat(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange);

void handle_completions(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange);
void handle_messages(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange);
void handle_count_tokens(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange);
void handle_responses(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange);
/// Tokens of the prompt that a Responses request would run; the engine may be missing.
void handle_response_tokens(const std::shared_ptr<Service>& service,
                            std::shared_ptr<http::Exchange> exchange);
/// Prompts and conversations to ids and back; the engine may be missing.
void handle_tokenize(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange);
void handle_detokenize(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange);

// Stored responses, by the path's argument; worker threads, the engine may be missing.
void handle_response(const Service& service, http::Exchange& exchange);
void handle_delete_response(const Service& service, http::Exchange& exchange);
void handle_cancel_response(const Service& service, http::Exchange& exchange);

// Quick ones, where bytes are moved; the engine may be missing.
void handle_health(const Service& service, http::Exchange& exchange, const http::ServerCounters& http);
void handle_metrics(const Service& service, http::Exchange& exchange, const http::ServerCounters& http);
void handle_ready(const Service& service, http::Exchange& exchange);
void handle_models(const Service& service, http::Exchange& exchange);
void handle_model(const Service& service, http::Exchange& exchange);

/// Answers with an error in the format of the exchange's route.
void respond_error(http::Exchange& exchange, const ApiError& error);
ApiError not_loaded_yet();

}  // namespace firesteel::api
