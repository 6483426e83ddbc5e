#include "engine/model_engine.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/clock.h"
#include "engine/limits.h"
#include "engine/record_codec.h"

namespace firesteel {
namespace {

Error ranks_lost(const std::string& why = "a machine of the group is lost") {
  return {ErrorCode::kUnavailable, why + "; the service comes back by itself, try again soon"};
}

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

}  // namespace

Result<std::unique_ptr<ModelEngine>> ModelEngine::create(Model& model, EngineConfig config,
                                                         Observer* observer, RankGroup* group) {
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
  if ((model.ranks() > 1) != (group != nullptr)) return invalid("a model that ranks share needs their group");
  if (config.pages < 0 || config.pages > limits.pages)
    return invalid("the model was loaded with fewer than " + std::to_string(config.pages) + " pages");
  if (config.pages == 0) config.pages = limits.pages;
  const int64_t pool_tokens = int64_t{config.pages} * kPageTokens;
  int64_t window = std::min<int64_t>(pool_tokens, model.config().max_positions);
  if (config.window > 0) window = std::min<int64_t>(window, config.window);
  if (window < 2) return invalid("the pages hold no window: give the model more pages");
  EngineInfo info;
  info.vocab = model.config().vocab;
  info.window = static_cast<int32_t>(window);
  info.max_streams = config.max_streams;
  info.pool_tokens = pool_tokens;
  info.max_queue = config.max_queue;
  info.device = model.ops().device();
  info.formats = config.formats;
  info.prompt_logprobs = limits.max_logit_rows > config.max_streams;
  return std::unique_ptr<ModelEngine>(new ModelEngine(model, config, info, observer, group));
}

ModelEngine::ModelEngine(Model& model, const EngineConfig& config, const EngineInfo& info, Observer* observer,
                         RankGroup* group)
    : config_(config),
      info_(info),
      observer_(observer),
      group_(group),
      state_(config, info.window, config.pages, model.limits().slots),
      scheduler_(config, model.limits().max_rows, model.limits().max_logit_rows - config.max_streams),
      executor_(model, config),
      record_(config.max_streams, info.vocab),
      outcome_(config.max_streams),
      waiting_(config.max_streams + config.max_queue) {
  publish();
  if (group_ != nullptr) {
    forgets_.reserve(static_cast<size_t>(config.max_streams + config.max_queue));
    whole_.store(false, std::memory_order_relaxed);
    group_->set_listener([this] { inbox_.wake(); });
    join_ranks();
  }
  thread_ = std::thread([this] { run(); });
}

ModelEngine::~ModelEngine() { stop(); }

EngineStats ModelEngine::stats() const {
  EngineStats s;
  s.whole = whole_.load(std::memory_order_relaxed);
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
  if (!whole_.load(std::memory_order_acquire)) return ranks_lost();
  int32_t in_flight = in_flight_.load(std::memory_order_relaxed);
  do {
    if (in_flight >= config_.max_streams + config_.max_queue)
      return Error{ErrorCode::kBusy,
                   "the server is busy: " + std::to_string(in_flight) + " requests are waiting"};
  } while (!in_flight_.compare_exchange_weak(in_flight, in_flight + 1, std::memory_order_relaxed));
  auto node = std::make_unique<Request>();
  node->seed = request.sampling.seed ? *request.sampling.seed : prompt_seed(request.prompt);
  node->spec = std::move(request);
  node->prepare();
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
    if (!join_ranks()) {
      fail_everything(ranks_lost());
      inbox_.wait(seen);
      continue;
    }
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
    fill_masks();
    if (Status sent = send_record(); !sent.ok()) {
      for (const RoundRecord::Admission& a : record_.admissions) waiting_.insert(a.request);
      continue;  // join_ranks() sees what happened
    }
    executor_.apply(record_, state_, outcome_);
    if (comm_ != nullptr && comm_->broken()) {
      whole_.store(false, std::memory_order_release);  // before the readers hear of it
      for (RoundOutcome::Finished& f : outcome_.finished)
        if (f.reason == FinishReason::kError) f.error = ranks_lost(f.error.message);
    }
    finish_round();
#ifndef NDEBUG
    state_.verify();
#endif
    if (observer_ != nullptr) observer_->round_ended(state_, record_);
  }
  shut_down();
}

/// Whether all ranks are there; notices when they are lost and when they are back.
bool ModelEngine::join_ranks() {
  if (group_ == nullptr) return true;
  if (comm_ != nullptr && !comm_->broken()) return true;
  if (comm_ != nullptr) {
    whole_.store(false, std::memory_order_release);
    executor_.connect(nullptr);
    comm_.reset();
  }
  comm_ = group_->current();
  if (comm_ == nullptr || comm_->broken()) return false;
  fail_everything(ranks_lost());  // what came or ran while ranks were missing
  state_.reset();
  forgets_.clear();
  executor_.connect(comm_.get());
  whole_.store(true, std::memory_order_release);
  return true;
}

/// The masks of the rows that draw a constrained token in this round.
void ModelEngine::fill_masks() {
  for (const RoundRecord::Rows& r : record_.rows) {
    const Stream& stream = state_.streams[static_cast<size_t>(r.stream)];
    const Request* request = stream.request;
    int32_t pending = request != nullptr ? stream.pending() : 0;
    for (const RoundRecord::Admission& a : record_.admissions)
      if (a.stream == r.stream) request = a.request, pending = a.request->known();
    if (request->spec.constraint == nullptr || r.rows != pending || !request->rules.answering()) continue;
    const std::span<uint32_t> mask = record_.add_mask(r.stream);
    if (request->constraint_broken)
      std::fill(mask.begin(), mask.end(), 0);
    else
      request->spec.constraint->fill_mask(mask);
  }
}

Status ModelEngine::send_record() {
  if (comm_ == nullptr) return {};
  record_.forgets.swap(forgets_);
  encode_round(record_, sealed_);
  auto sent = comm_->control(sealed_, std::chrono::milliseconds(0));
  if (!sent.ok()) return sent.error();
  return {};
}

void ModelEngine::fail_everything(const Error& error) {
  take_requests();
  for (std::vector<Request*>* list : {&waiting_.foreground, &waiting_.background}) {
    for (Request* request : *list) finish(request, FinishReason::kError, error);
    list->clear();
  }
  executor_.fail_all(state_, error, outcome_);
  finish_round();
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
      if (request->known_to_ranks) forgets_.push_back(request->id);
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
  if (group_ == nullptr) return;
  group_->set_listener(nullptr);
  if (comm_ == nullptr) return;
  encode_stop(sealed_);
  (void)comm_->control(sealed_, std::chrono::milliseconds(0));
  executor_.connect(nullptr);
  comm_.reset();
}

void ModelEngine::publish() {
  counters_.running.store(state_.running(), std::memory_order_relaxed);
  counters_.queued.store(waiting_.size(), std::memory_order_relaxed);
  counters_.pages_free.store(state_.pages.free(), std::memory_order_relaxed);
  counters_.slots_free.store(state_.slots.free(), std::memory_order_relaxed);
  counters_.rounds.store(state_.rounds, std::memory_order_relaxed);
}

}  // namespace firesteel
