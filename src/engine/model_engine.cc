#include "engine/model_engine.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "engine/limits.h"

namespace firesteel {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

}  // namespace

Result<std::unique_ptr<ModelEngine>> ModelEngine::create(Model& model, EngineConfig config,
                                                         Observer* observer) {
  const ModelLimits& limits = model.limits();
  if (config.max_streams < 1) return invalid("the number of streams must be at least 1");
  if (config.max_streams > limits.slots || config.max_streams > limits.max_rows ||
      config.max_streams > limits.max_logit_rows)
    return invalid("the model was loaded for fewer than " + std::to_string(config.max_streams) + " streams");
  if (config.max_queue < 0 || config.max_queue > 1 << 20)
    return invalid("the queue length must be 0 to 1048576");
  if (config.busy_prompt_rows < 1) return invalid("prompt rows beside decoding replies must be at least 1");
  if (config.headroom_tokens < 1) return invalid("the headroom must be at least 1 token");
  if (config.window < 0 || config.prompt_rows < 0)
    return invalid("window and prompt rows must not be negative");
  if (model.logit_width() != model.config().vocab)
    return Error{ErrorCode::kUnsupported, "this engine needs a model that holds the whole vocabulary"};
  const int64_t pool_tokens = int64_t{limits.pages} * kPageTokens;
  int64_t window = std::min<int64_t>(pool_tokens, model.config().max_positions);
  if (config.window > 0) window = std::min<int64_t>(window, config.window);
  if (window < 2) return invalid("the pages hold no window: give the model more pages");
  EngineInfo info;
  info.vocab = model.config().vocab;
  info.window = static_cast<int32_t>(window);
  info.max_streams = config.max_streams;
  info.pool_tokens = pool_tokens;
  info.max_queue = config.max_queue;
  return std::unique_ptr<ModelEngine>(new ModelEngine(model, config, info, observer));
}

ModelEngine::ModelEngine(Model& model, const EngineConfig& config, const EngineInfo& info, Observer* observer)
    : config_(config),
      info_(info),
      observer_(observer),
      state_(config, info.window, model.limits().pages, model.limits().slots),
      scheduler_(config, model.limits().max_rows),
      executor_(model, config),
      record_(config.max_streams),
      outcome_(config.max_streams),
      waiting_(config.max_streams + config.max_queue) {
  publish();
  thread_ = std::thread([this] { run(); });
}

ModelEngine::~ModelEngine() { stop(); }

EngineStats ModelEngine::stats() const {
  EngineStats s;
  s.running = counters_.running.load(std::memory_order_relaxed);
  s.queued = counters_.queued.load(std::memory_order_relaxed);
  s.pages_total = state_.pages.size();
  s.pages_free = counters_.pages_free.load(std::memory_order_relaxed);
  s.slots_total = state_.slots.size();
  s.slots_free = counters_.slots_free.load(std::memory_order_relaxed);
  s.rounds = counters_.rounds.load(std::memory_order_relaxed);
  s.prompt_tokens = counters_.prompt_tokens.load(std::memory_order_relaxed);
  s.generated_tokens = counters_.generated_tokens.load(std::memory_order_relaxed);
  s.finished = counters_.finished.load(std::memory_order_relaxed);
  s.cancelled = counters_.cancelled.load(std::memory_order_relaxed);
  s.failed = counters_.failed.load(std::memory_order_relaxed);
  return s;
}

// --------------------------------------------------------------------------------------- callers' side

Result<std::shared_ptr<Generation>> ModelEngine::submit(GenerationRequest request,
                                                        std::function<void()> notify) {
  const Error stopping{ErrorCode::kUnavailable, "the server is stopping"};
  if (stopping_.load(std::memory_order_acquire)) return stopping;
  if (Status status = check_request(request, info_); !status.ok()) return std::move(status).error();
  int32_t in_flight = in_flight_.load(std::memory_order_relaxed);
  do {
    if (in_flight >= config_.max_streams + config_.max_queue)
      return Error{ErrorCode::kBusy,
                   "the server is busy: " + std::to_string(in_flight) + " requests are waiting"};
  } while (!in_flight_.compare_exchange_weak(in_flight, in_flight + 1, std::memory_order_relaxed));
  auto node = std::make_unique<Request>();
  node->seed = request.sampling.seed ? *request.sampling.seed : prompt_seed(request.prompt);
  node->spec = std::move(request);
  node->generation = std::make_shared<Generation>(node->spec.max_tokens);
  node->generation->submitted.store(now_ns(), std::memory_order_relaxed);
  node->notify = std::move(notify);
  std::shared_ptr<Generation> generation = node->generation;
  if (!inbox_.push(node.get())) {
    in_flight_.fetch_sub(1, std::memory_order_relaxed);
    return stopping;
  }
  node.release();
  return generation;
}

void ModelEngine::stop() {
  std::lock_guard lock(stop_mutex_);
  stopping_.store(true, std::memory_order_release);
  inbox_.wake();
  if (thread_.joinable()) thread_.join();
}

// --------------------------------------------------------------------------------------- engine thread

void ModelEngine::run() {
  for (;;) {
    const int32_t seen = inbox_.signal();
    if (stopping_.load(std::memory_order_acquire)) break;
    if (observer_ != nullptr) observer_->round_begins();
    take_requests();
    drop_cancelled();
    scheduler_.plan(state_, waiting_, record_);
    if (record_.empty()) {
      publish();
      inbox_.wait(seen);
      continue;
    }
    for (const RoundRecord::Admission& a : record_.admissions) {
      waiting_.remove(a.request);
      std::atomic<int64_t>& at = a.request->generation->admitted;  // a resumed request keeps its first
      if (at.load(std::memory_order_relaxed) == 0) at.store(now_ns(), std::memory_order_relaxed);
    }
    executor_.apply(record_, state_, outcome_);
    finish_round();
#ifndef NDEBUG
    state_.verify();
#endif
    if (observer_ != nullptr) observer_->round_ended(state_, record_);
  }
  shut_down();
}

void ModelEngine::take_requests() {
  Request* request = inbox_.take();
  while (request != nullptr) {
    Request* const next = std::exchange(request->next, nullptr);
    request->id = next_id_++;
    waiting_.insert(request);
    request = next;
  }
}

void ModelEngine::drop_cancelled() {
  for (std::vector<Request*>* list : {&waiting_.foreground, &waiting_.background})
    for (size_t i = list->size(); i-- > 0;) {
      Request* const request = (*list)[i];
      if (!request->generation->cancel_requested()) continue;
      list->erase(list->begin() + static_cast<ptrdiff_t>(i));
      finish(request, FinishReason::kCancelled, {});
    }
}

void ModelEngine::finish_round() {
  counters_.prompt_tokens.fetch_add(static_cast<uint64_t>(outcome_.prompt_rows), std::memory_order_relaxed);
  counters_.generated_tokens.fetch_add(static_cast<uint64_t>(outcome_.tokens), std::memory_order_relaxed);
  for (Request* request : outcome_.preempted) waiting_.insert(request);
  publish();
  const auto note_first = [](Request* request) {
    std::atomic<int64_t>& at = request->generation->first_token;
    if (request->generated() > 0 && at.load(std::memory_order_relaxed) == 0)
      at.store(now_ns(), std::memory_order_relaxed);
  };
  for (Request* request : outcome_.advanced) {
    note_first(request);
    if (request->notify) request->notify();
  }
  for (RoundOutcome::Finished& f : outcome_.finished) {
    note_first(f.request);
    finish(f.request, f.reason, std::move(f.error));
  }
  outcome_.finished.clear();
}

void ModelEngine::finish(Request* request, FinishReason reason, Error error) {
  std::atomic<uint64_t>& counter = reason == FinishReason::kError       ? counters_.failed
                                   : reason == FinishReason::kCancelled ? counters_.cancelled
                                                                        : counters_.finished;
  counter.fetch_add(1, std::memory_order_relaxed);
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  request->generation->ended.store(now_ns(), std::memory_order_relaxed);
  request->generation->finish(reason, std::move(error));
  if (request->notify) request->notify();
  delete request;
}

void ModelEngine::shut_down() {
  for (Request* request = inbox_.close(); request != nullptr;) {
    Request* const next = std::exchange(request->next, nullptr);
    finish(request, FinishReason::kCancelled, {});
    request = next;
  }
  for (std::vector<Request*>* list : {&waiting_.foreground, &waiting_.background}) {
    for (Request* request : *list) finish(request, FinishReason::kCancelled, {});
    list->clear();
  }
  for (Stream& stream : state_.streams) {
    if (stream.request == nullptr) continue;
    stream.sequence.release();
    finish(std::exchange(stream.request, nullptr), FinishReason::kCancelled, {});
  }
  publish();
}

void ModelEngine::publish() {
  counters_.running.store(state_.running(), std::memory_order_relaxed);
  counters_.queued.store(waiting_.size(), std::memory_order_relaxed);
  counters_.pages_free.store(state_.pages.free(), std::memory_order_relaxed);
  counters_.slots_free.store(state_.slots.free(), std::memory_order_relaxed);
  counters_.rounds.store(state_.rounds, std::memory_order_relaxed);
}

}  // namespace firesteel
