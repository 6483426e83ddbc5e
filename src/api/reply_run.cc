#include "api/reply_run.h"

#include <algorithm>
#include <chrono>
#include <deque>

#include "api/reply_scores.h"
#include "http/message.h"

namespace firesteel::api {
namespace {

constexpr size_t kTokensBetweenWrites = 64;  // of a backlog, before the client's buffer is looked at again

constexpr auto kHeartbeat = std::chrono::seconds(2);  // while a call is written and nothing is visible

double ms_between(int64_t from, int64_t to) {
  return from == 0 || to == 0 ? -1 : static_cast<double>(to - from) / 1e6;
}

}  // namespace

/// A piece and the tokens whose text begins in it.
struct ReplyRun::Shown {
  ReplyPiece piece;
  std::vector<size_t> tokens;
};

struct ReplyRun::Choice {
  Choice(std::shared_ptr<Generation> g, ReplyStream t, const ReplyOptions& options,
         Pacer::Clock::duration smoothing, ApiMetrics& metrics, int64_t received_ns, int64_t prompt)
      : generation(std::move(g)),
        text(std::move(t)),
        pacer(smoothing),
        meter(metrics, received_ns, prompt),
        prompt_tokens(prompt) {
    if (generation->reports_logprobs()) scores.emplace(!options.raw && !options.continues_text, !options.raw);
  }
  std::shared_ptr<Generation> generation;
  ReplyStream text;
  std::optional<ReplyScores> scores;  // where log-probabilities were asked for
  std::deque<Event> waiting;          // read, and not written yet
  Pacer pacer;
  ReplyMeter meter;
  const int64_t prompt_tokens;
  size_t read = 0;
  bool prompt_written = false, ended = false;
  std::string reasoning;   // of a reply that may be remembered
  std::string begun_call;  // id of the call that goes out as it is written
  std::vector<RememberedCall> calls;
  std::chrono::steady_clock::time_point last_sign;  // of life, while a call is written
};

ReplyRun::ReplyRun(std::shared_ptr<Service> service, std::shared_ptr<http::Exchange> exchange,
                   std::unique_ptr<ReplyWriter> writer, ReplyPlan plan)
    : service_(std::move(service)),
      exchange_(std::move(exchange)),
      writer_(std::move(writer)),
      plan_(std::move(plan)) {}

ReplyRun::~ReplyRun() {
  std::lock_guard lock(service_->runs_mutex);
  service_->runs.erase(this);
}

void ReplyRun::start(const std::shared_ptr<Service>& service, std::shared_ptr<http::Exchange> exchange,
                     std::unique_ptr<ReplyWriter> writer, ReplyPlan plan) {
  std::vector<GenerationRequest> requests = std::move(plan.requests);
  std::shared_ptr<ReplyRun> run(new ReplyRun(service, exchange, std::move(writer), std::move(plan)));
  {
    std::lock_guard lock(service->runs_mutex);
    service->runs.emplace(run.get(), run);
  }
  // The waker keeps the run alive, the engine keeps the waker until the generation is over.
  // The run's own pointer belongs to the exchange's sequence as soon as the client can be seen to leave.
  const std::shared_ptr<http::Waker> waker = exchange->make_waker([run] { run->pump(); });
  run->waker_ = waker;
  exchange->on_gone([weak = std::weak_ptr(run)] {
    if (auto r = weak.lock()) r->client_left();
  });
  exchange->on_drained([weak = std::weak_ptr(run)] {
    if (auto r = weak.lock()) r->pump();
  });
  std::vector<Submitted> all;
  for (GenerationRequest& request : requests) {
    const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
    auto submitted = service->engine.load()->submit(std::move(request), [waker] { waker->wake(); });
    if (!submitted.ok()) {
      for (Submitted& s : all) s.generation->cancel();
      respond_error(*exchange, from_error(submitted.error()));
      exchange->post([run] { run->finish(); });
      return;
    }
    all.push_back({std::move(submitted).value(), prompt_tokens});
  }
  exchange->post([run, all = std::move(all)]() mutable { run->opened(std::move(all)); });
}

void ReplyRun::opened(std::vector<Submitted> submitted) {
  const int64_t received_ns = exchange_->head().received.time_since_epoch() / std::chrono::nanoseconds(1);
  for (Submitted& s : submitted) {
    choices_.push_back(std::make_unique<Choice>(
        std::move(s.generation), ReplyStream(*service_->text.tokenizer, plan_.text), plan_.text,
        plan_.smoothing, *service_->metrics, received_ns, s.prompt_tokens));
    choices_.back()->last_sign = std::chrono::steady_clock::now();
  }
  if (exchange_->gone() || done_) return client_left();
  writer_->begin();
  pump();
}

void ReplyRun::pump() {
  // Holds the run: the last wake may let go of everything else that does.
  const auto self = shared_from_this();
  if (done_ || choices_.empty()) return;
  bool more = true;
  while (more && !done_) {
    more = false;
    for (size_t i = 0; i < choices_.size() && !done_; ++i) more = pump_choice(static_cast<int>(i)) || more;
    if (done_) return;
    writer_->flush(usage());
    if (exchange_->congested()) return;  // on_drained() goes on
  }
  if (std::all_of(choices_.begin(), choices_.end(), [](const auto& c) { return c->ended; })) {
    writer_->end(usage(), stats());
    finish();
    return;
  }
  pump_later();
}

/// Comes back when the next event that is held back is due.
void ReplyRun::pump_later() {
  std::optional<Pacer::Clock::time_point> next;
  for (const auto& c : choices_)
    if (!c->waiting.empty())
      next = std::min(next.value_or(Pacer::Clock::time_point::max()), c->pacer.next(c->waiting.size()));
  if (!next || (next_pump_ && *next_pump_ <= *next)) return;
  next_pump_ = next;
  exchange_->post_at(*next, [weak = weak_from_this(), at = *next] {
    const auto self = weak.lock();
    if (!self) return;
    if (self->next_pump_ == at) self->next_pump_.reset();
    self->pump();
  });
}

// Reads what is new of one choice; true when there is more than one write should carry.
bool ReplyRun::pump_choice(int index) {
  Choice& c = *choices_[static_cast<size_t>(index)];
  if (c.ended) return false;
  // The finish first: tokens pushed before it are then all visible.
  const FinishReason reason = c.generation->finish_reason();
  const auto tokens = c.generation->tokens();
  const size_t until = std::min(tokens.size(), c.read + kTokensBetweenWrites);
  if (!tokens.empty()) write_prompt_scores(index);
  if (plan_.score_only && !tokens.empty()) {
    c.generation->cancel();
    end_choice(index, ReplyEnd::kLength, std::nullopt);
    return false;
  }
  const size_t waited = c.waiting.size(), read = c.read;
  std::vector<ReplyPiece> pieces;
  for (; c.read < until && !c.text.stopped(); ++c.read) {
    const int32_t token = tokens[c.read];
    const bool in_think = c.text.in_think();
    pieces.clear();
    c.text.push(token, pieces);
    if (c.scores && !c.text.ended())
      c.scores->push(c.read, service_->text.tokenizer->token_bytes(token), in_think);
    show(c, pieces);
  }
  c.meter.advance(c.read, c.generation->times());
  const auto now = Pacer::Clock::now();
  if (c.read > read) c.pacer.round(c.waiting.size() - waited, now);
  const size_t due = c.pacer.due(c.waiting.size(), now);
  write_waiting(index, due);
  if (due == 0) give_sign(index);
  if (c.text.stopped()) {
    c.generation->cancel();
    end_choice(index, ReplyEnd::kStop, std::nullopt);
    return false;
  }
  if (c.read < tokens.size()) return true;
  switch (reason) {
    case FinishReason::kNone:
      return false;
    case FinishReason::kStop: {
      const int32_t last = tokens.empty() ? -1 : tokens.back();
      const auto& own = plan_.stop_token_ids;
      const bool callers = std::find(own.begin(), own.end(), last) != own.end();
      end_choice(index, ReplyEnd::kStop, callers ? std::optional(last) : std::nullopt);
      return false;
    }
    case FinishReason::kLength:
      end_choice(index, ReplyEnd::kLength, std::nullopt);
      return false;
    case FinishReason::kCancelled:
      fail({503, "server_error", "unavailable", "", "the server is shutting down"});
      return false;
    case FinishReason::kError:
      c.meter.finished(FinishReason::kError, c.generation->times());
      fail(from_error(c.generation->error()));
      return false;
  }
  return false;
}

// Puts a token's pieces behind those that wait. With smoothing they are an event of their own, otherwise an
// event is what was read at once. Pieces of a kind become one.
void ReplyRun::show(Choice& c, std::vector<ReplyPiece>& pieces) {
  if (pieces.empty()) return;
  if (c.pacer.on() || c.waiting.empty()) c.waiting.emplace_back();
  Event* out = &c.waiting.back();
  for (ReplyPiece& piece : pieces) {
    std::vector<size_t> tokens;
    if (c.scores) c.scores->show(piece, &tokens);
    const bool is_text = piece.kind != ReplyPiece::Kind::kCall && piece.kind != ReplyPiece::Kind::kCallBegun;
    if (is_text && !out->empty() && out->back().piece.kind == piece.kind) {
      out->back().piece.text += piece.text;
      out->back().tokens.insert(out->back().tokens.end(), tokens.begin(), tokens.end());
    } else {
      out->push_back({std::move(piece), std::move(tokens)});
    }
  }
}

void ReplyRun::write_scores(int index, const std::vector<size_t>& tokens) {
  if (tokens.empty()) return;
  const Generation& generation = *choices_[static_cast<size_t>(index)]->generation;
  std::vector<TokenReport> reports;
  for (const size_t i : tokens) reports.push_back(generation.logprobs(i));
  writer_->scores(index, reports);
}

void ReplyRun::write_prompt_scores(int index) {
  Choice& c = *choices_[static_cast<size_t>(index)];
  if (c.prompt_written) return;
  c.prompt_written = true;
  std::vector<TokenReport> reports;
  for (int64_t i = 1; i < c.prompt_tokens; ++i)
    if (const TokenReport report = c.generation->prompt_logprobs(static_cast<size_t>(i)); !report.empty())
      reports.push_back(report);
  if (!reports.empty() || plan_.score_only) writer_->prompt_scores(index, reports);
}

// Writes the oldest `count` events that wait.
void ReplyRun::write_waiting(int index, size_t count) {
  Choice& c = *choices_[static_cast<size_t>(index)];
  for (; count > 0; --count) {
    write_event(index, c.waiting.front());
    c.waiting.pop_front();
  }
}

void ReplyRun::write_event(int index, Event& event) {
  Choice& c = *choices_[static_cast<size_t>(index)];
  for (Shown& shown : event) {
    ReplyPiece& piece = shown.piece;
    write_scores(index, shown.tokens);
    switch (piece.kind) {
      case ReplyPiece::Kind::kCall:
        c.calls.push_back({piece.followed ? c.begun_call : http::random_id("call_"),
                           std::move(piece.call.name), std::move(piece.call.arguments),
                           std::move(piece.call.markup)});
        if (!piece.followed)
          writer_->call(index, {c.calls.back().id, c.calls.back().name, c.calls.back().arguments});
        service_->metrics->tool_calls.at({"parsed"}).add();
        break;
      case ReplyPiece::Kind::kCallBegun:
        c.begun_call = http::random_id("call_");
        writer_->call_begun(index, c.begun_call, piece.text);
        break;
      case ReplyPiece::Kind::kCallArguments:
        writer_->call_arguments(index, piece.text);
        break;
      case ReplyPiece::Kind::kReasoning:
        if (plan_.text.tools != nullptr) c.reasoning += piece.text;
        writer_->reasoning(index, piece.text);
        break;
      case ReplyPiece::Kind::kContent:
        writer_->content(index, piece.text);
        break;
    }
  }
  c.last_sign = std::chrono::steady_clock::now();
}

void ReplyRun::give_sign(int index) {
  Choice& c = *choices_[static_cast<size_t>(index)];
  const auto now = std::chrono::steady_clock::now();
  if (!c.text.inside_call() || now - c.last_sign < kHeartbeat) return;
  writer_->heartbeat(index);
  c.last_sign = now;
}

void ReplyRun::end_choice(int index, ReplyEnd end, std::optional<int32_t> stop_token) {
  Choice& c = *choices_[static_cast<size_t>(index)];
  c.ended = true;
  std::vector<ReplyPiece> pieces;
  c.text.finish(end == ReplyEnd::kLength ? ReplyEnding::kLength : ReplyEnding::kEnd, pieces);
  show(c, pieces);
  write_waiting(index, c.waiting.size());
  if (service_->memory != nullptr && !plan_.conversation.empty() && !c.calls.empty())
    service_->memory->remember(plan_.conversation, std::move(c.reasoning), c.calls);
  ChoiceEnd out;
  out.end = end == ReplyEnd::kStop && c.text.calls() > 0 ? ReplyEnd::kToolCalls : end;
  out.stop_string = c.text.matched_stop();
  out.stop_token = stop_token;
  const auto tokens = c.generation->tokens().first(c.read);
  out.tokens.assign(tokens.begin(), tokens.end());
  if (c.generation->reports_logprobs() && !tokens.empty()) {
    for (size_t i = 0; i < tokens.size(); ++i) out.mean_logprob += c.generation->logprobs(i)[0].logprob;
    out.mean_logprob /= static_cast<double>(tokens.size());
  }
  c.meter.finished(end == ReplyEnd::kLength ? FinishReason::kLength : FinishReason::kStop,
                   c.generation->times());
  writer_->end_choice(index, out);
}

void ReplyRun::client_left() {
  cancel();
  finish();
}

void ReplyRun::cancel() {
  for (auto& c : choices_) {
    c->generation->cancel();
    c->meter.finished(FinishReason::kCancelled, c->generation->times());
  }
}

void ReplyRun::abort(ApiError error) {
  exchange_->post([self = shared_from_this(), error = std::move(error)] {
    if (!self->done_ && !self->choices_.empty()) self->fail(error);
  });
}

void ReplyRun::fail(const ApiError& error) {
  cancel();
  for (size_t i = 0; i < choices_.size(); ++i)
    write_waiting(static_cast<int>(i), choices_[i]->waiting.size());
  writer_->fail(error);
  finish();
}

void ReplyRun::finish() {
  done_ = true;
  waker_.reset();
}

Usage ReplyRun::usage() const {
  Usage u;
  u.prompt = plan_.prompt_tokens;
  u.predicted = plan_.predicted;
  for (const auto& c : choices_) {
    u.completion += static_cast<int64_t>(c->read);
    u.reasoning += c->text.reasoning_tokens();
  }
  if (!choices_.empty()) u.cached = choices_.front()->generation->cached_tokens();
  return u;
}

ReplyStats ReplyRun::stats() const {
  ReplyStats s;
  const GenerationTimes t = choices_.front()->generation->times();
  for (const auto& c : choices_) s.think_cut = s.think_cut || c->generation->think_cut();
  s.queue_ms = ms_between(t.submitted, t.admitted);
  s.prefill_ms = ms_between(t.admitted, t.first_token);
  s.ttft_ms = ms_between(t.submitted, t.first_token);
  const double decode_ms = ms_between(t.first_token, t.finished);
  const auto tokens = static_cast<double>(choices_.front()->read);
  if (decode_ms > 0 && tokens > 1) s.decode_tps = (tokens - 1) * 1000 / decode_ms;
  return s;
}

}  // namespace firesteel::api
