#include "api/server.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "api/reply_run.h"
#include "api/service.h"
#include "api/usage_json.h"
#include "base/log.h"

namespace firesteel::api {
namespace {

constexpr uint64_t kChatBody = 96ull << 20, kOtherBody = 32ull << 20;

Result<Effort> effort_of(const std::string& word) {
  const auto found = effort_from_word(word, Effort::kMax);
  if (!found || !found->enabled) {
    return Error{ErrorCode::kInvalidArgument, "the default effort must be low, high or max, not " + word};
  }
  return found->effort;
}

// Runs before a body is read. A preflight carries no key; probes of load balancers have none either.
std::optional<http::Response> gate(Access& access, const http::RequestHead& head) {
  if (head.method == "OPTIONS" && access.cors()) return access.preflight(head);
  if (!access.keys_required() || access.authenticate(head)) return std::nullopt;
  const bool health = head.path == "/health" || head.path == "/v1/health";
  const bool ready = head.path == "/ready" || head.path == "/v1/ready";
  const bool metrics = access.open_metrics() && (head.path == "/metrics" || head.path == "/v1/metrics");
  if ((health || ready || metrics) && (head.method == "GET" || head.method == "HEAD")) {
    if (!health) return std::nullopt;
    http::Response response;
    response.body = R"({"status":"ok"})";
    return response;
  }
  return error_response({401, "authentication_error", "invalid_api_key", "", "a valid API key is required"},
                        error_format_of(head.path), head.request_id);
}

}  // namespace

bool Service::serves(const std::string& name) const {
  return name == options.model_id ||
         std::find(options.aliases.begin(), options.aliases.end(), name) != options.aliases.end();
}

Window Service::window() const {
  const EngineInfo info = engine.load()->info();
  return {info.window, info.pool_tokens};
}

struct ApiServer::Impl {
  std::shared_ptr<Service> service = std::make_shared<Service>();
  std::unique_ptr<http::HttpServer> http;
  std::atomic<http::HttpServer*> counting{
      nullptr};  // `http`, for handlers, which may run before start() returns
  std::mutex stop_mutex;
  bool stopped = false;

  std::vector<http::Route> routes();
  http::Handler generating(void (*handler)(const std::shared_ptr<Service>&, std::shared_ptr<http::Exchange>));
  http::Handler plain(void (*handler)(const std::shared_ptr<Service>&, std::shared_ptr<http::Exchange>));
  http::Handler quick(void (*handler)(const Service&, http::Exchange&));
  http::Handler counting_http(void (*handler)(const Service&, http::Exchange&, const http::ServerCounters&));
};

http::Handler ApiServer::Impl::generating(void (*handler)(const std::shared_ptr<Service>&,
                                                          std::shared_ptr<http::Exchange>)) {
  return [service = service, handler](std::shared_ptr<http::Exchange> exchange) {
    if (service->stopping.load()) {
      return respond_error(*exchange,
                           {503, "server_error", "unavailable", "", "the server is shutting down"});
    }
    if (service->engine.load() == nullptr) return respond_error(*exchange, not_loaded_yet());
    if (!service->text.tokenizer) {
      return respond_error(*exchange, {400, "invalid_request_error", "unsupported_value", "",
                                       "this model has no tokenizer, which text routes need"});
    }
    handler(service, std::move(exchange));
  };
}

http::Handler ApiServer::Impl::plain(void (*handler)(const std::shared_ptr<Service>&,
                                                     std::shared_ptr<http::Exchange>)) {
  return [service = service, handler](std::shared_ptr<http::Exchange> exchange) {
    if (!service->text.tokenizer) {
      return respond_error(*exchange, {400, "invalid_request_error", "unsupported_value", "",
                                       "this model has no tokenizer: it takes and gives token ids only"});
    }
    handler(service, std::move(exchange));
  };
}

http::Handler ApiServer::Impl::quick(void (*handler)(const Service&, http::Exchange&)) {
  return [service = service, handler](std::shared_ptr<http::Exchange> exchange) {
    handler(*service, *exchange);
  };
}

http::Handler ApiServer::Impl::counting_http(void (*handler)(const Service&, http::Exchange&,
                                                             const http::ServerCounters&)) {
  return [this, handler](std::shared_ptr<http::Exchange> exchange) {
    const http::HttpServer* server = counting.load();
    handler(*service, *exchange, server != nullptr ? server->counters() : http::ServerCounters{});
  };
}

std::vector<http::Route> ApiServer::Impl::routes() {
  std::vector<http::Route> out;
  const auto get = [&](std::string path, http::Handler handler) {
    out.push_back({"GET", std::move(path), 64u << 10, true, std::move(handler)});
  };
  out.push_back({"POST", "/v1/chat/completions", kChatBody, false, generating(handle_chat)});
  out.push_back({"POST", "/chat/completions", kChatBody, false, generating(handle_chat)});
  for (const char* path : {"/v1/completions", "/completions"}) {
    out.push_back({"POST", path, kOtherBody, false, generating(handle_completions)});
  }
  for (const char* prefix : {"", "/v1"}) {
    const std::string messages = std::string(prefix) + "/messages";
    out.push_back({"POST", messages, kOtherBody, false, generating(handle_messages)});
    out.push_back({"POST", messages + "/count_tokens", kOtherBody, false, plain(handle_count_tokens)});
    out.push_back({"POST", std::string(prefix) + "/tokenize", kOtherBody, false, plain(handle_tokenize)});
    out.push_back({"POST", std::string(prefix) + "/detokenize", kOtherBody, false, plain(handle_detokenize)});
  }
  for (const char* prefix : {"", "/v1"}) {
    const std::string responses = std::string(prefix) + "/responses";
    out.push_back({"POST", responses, kOtherBody, false, generating(handle_responses)});
    out.push_back({"POST", responses + "/input_tokens", kOtherBody, false, plain(handle_response_tokens)});
    out.push_back({"POST", responses + "/{}/cancel", 64u << 10, false, quick(handle_cancel_response)});
    out.push_back({"GET", responses + "/{}", 64u << 10, false, quick(handle_response)});
    out.push_back({"DELETE", responses + "/{}", 64u << 10, false, quick(handle_delete_response)});
  }
  for (const char* path : {"/v1/models", "/models"}) get(path, quick(handle_models));
  for (const char* path : {"/v1/models/{}", "/models/{}"}) get(path, quick(handle_model));
  for (const char* path : {"/ready", "/v1/ready"}) get(path, quick(handle_ready));
  for (const char* prefix : {"", "/v1"}) {
    get(std::string(prefix) + "/health", counting_http(handle_health));
    get(std::string(prefix) + "/metrics", counting_http(handle_metrics));
  }
  return out;
}

Result<std::unique_ptr<ApiServer>> ApiServer::start(ApiOptions options, ModelText text) {
  if (!std::isfinite(options.temperature) || !(options.top_p > 0 && options.top_p <= 1) ||
      options.max_tokens < 1) {
    return Error{ErrorCode::kInvalidArgument,
                 "default temperature must be finite, top_p in (0, 1], and the token limit at least 1"};
  }
  ASSIGN_OR_RETURN(const Effort effort, effort_of(options.effort));
  auto impl = std::make_shared<Impl>();
  Service& service = *impl->service;
  service.chat_defaults.settings = {options.temperature, options.top_p, options.top_k, options.max_tokens,
                                    options.random_seed};
  service.chat_defaults.thinking = {options.thinking, effort, 0, options.clear_thinking};
  service.chat_defaults.trust_caller_markup = options.trust_caller_markup;
  if (text.chat_template) service.chat_defaults.traits = probe_template(*text.chat_template);
  service.end_ids = options.end_ids;
  if (text.tokenizer) {
    // The model sometimes begins a second answer by itself; that is an end too.
    const int32_t assistant = text.tokenizer->added_id("<|assistant|>");
    if (assistant >= 0 &&
        std::find(service.end_ids.begin(), service.end_ids.end(), assistant) == service.end_ids.end()) {
      service.end_ids.push_back(assistant);
    }
  }
  if (text.tokenizer) {
    service.markup = MarkupIds::of(*text.tokenizer);
    service.formats = AnswerFormats::create(*text.tokenizer, service.end_ids);
  }
  service.created = unix_time();
  service.text = std::move(text);
  const http::ServerOptions http_options = options.http;
  service.options = std::move(options);
  service.metrics = std::make_unique<ApiMetrics>(service.options.model_id);
  if (service.options.remember_replies) service.memory = std::make_unique<ReplyMemory>();

  ASSIGN_OR_RETURN(std::shared_ptr<Access> access, Access::create(service.options.access));
  const bool keys = access->keys_required();
  http::ServerHooks hooks;
  hooks.gate = [access](const http::RequestHead& head) { return gate(*access, head); };
  hooks.decorate = [access](const http::RequestHead& head, http::Headers& out) {
    access->add_cors_headers(head, &out);
  };
  hooks.refusal = [](const http::RequestHead& head, const http::Refusal& why) {
    return error_response(from_http(why), error_format_of(head.path), head.request_id);
  };
  hooks.answered = [access, service = impl->service](const http::RequestHead& head,
                                                     const http::Response& response) {
    const auto key = access->keys_required() ? access->authenticate(head) : std::nullopt;
    service->metrics->answered(head, response, key.value_or(""));
  };
  ASSIGN_OR_RETURN(impl->http, http::HttpServer::start(http_options, impl->routes(), std::move(hooks)));
  impl->counting.store(impl->http.get());
  auto server = std::unique_ptr<ApiServer>(new ApiServer(std::move(impl)));
  LOG_INFO("listening on {}", server->url());
  if (!server->impl_->http->loopback() && !keys) {
    LOG_WARN("{} is reachable from other machines and no API key is set", http_options.host);
  }
  return server;
}

ApiServer::ApiServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
ApiServer::~ApiServer() { stop(std::chrono::milliseconds(0)); }

uint16_t ApiServer::port() const { return impl_->http->port(); }

std::string ApiServer::url() const {
  std::string host = impl_->service->options.http.host;
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  return "http://" + host + ":" + std::to_string(port());
}

void ApiServer::attach_engine(Engine& engine) { impl_->service->engine.store(&engine); }

void ApiServer::stop(std::chrono::milliseconds grace) {
  std::lock_guard lock(impl_->stop_mutex);
  if (impl_->stopped) return;
  impl_->stopped = true;
  Service& service = *impl_->service;
  service.stopping.store(true);
  impl_->http->begin_shutdown();
  if (!impl_->http->wait_idle(grace)) {
    std::vector<std::shared_ptr<ReplyRun>> runs;
    {
      std::lock_guard runs_lock(service.runs_mutex);
      for (auto& [raw, weak] : service.runs) {
        if (auto run = weak.lock()) runs.push_back(std::move(run));
      }
    }
    for (auto& run : runs) {
      run->abort({503, "server_error", "unavailable", "", "the server is shutting down"});
    }
    impl_->http->wait_idle(std::chrono::seconds(2));
  }
  impl_->http->stop();
}

}  // namespace firesteel::api
