#include "engine/executor.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/check.h"
#include "decode/token_constraint.h"
#include "engine/scheduler.h"
#include "model/slicing.h"

namespace firesteel {

RoundOutcome::RoundOutcome(int32_t max_streams) {
  const size_t n = static_cast<size_t>(max_streams);
  advanced.reserve(n);
  finished.reserve(2 * n);  // a place can be left and taken again in one round
  preempted.reserve(n);
}

void RoundOutcome::clear() {
  advanced.clear();
  finished.clear();
  preempted.clear();
  prompt_rows = tokens = 0;
}

namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

/// Ids of the widest part of the vocabulary that any rank holds.
int32_t widest_part(int32_t vocab, int32_t ranks) {
  int32_t widest = 0;
  for (int32_t rank = 0; rank < ranks; ++rank)
    widest = std::max(widest, rank_range(vocab, {rank, ranks}).size());
  return widest;
}

}  // namespace

Executor::Executor(Model& model, const EngineConfig& config)
    : model_(model),
      config_(config),
      sampler_(model.config().vocab, model.ranks(), model.first_logit_id(),
               widest_part(model.config().vocab, model.ranks()), config.max_streams, model.ops().drawer()),
      logits_(static_cast<size_t>(config.max_streams) * static_cast<size_t>(model.logit_width())),
      raw_(logits_.size()),
      drawn_(static_cast<size_t>(config.max_streams)) {
  CHECK(model.limits().max_logit_rows >= config.max_streams && model.limits().max_rows >= config.max_streams);
  tokens_.reserve(static_cast<size_t>(model.limits().max_rows));
  page_table_.reserve(static_cast<size_t>(model.limits().pages));
  logit_rows_.reserve(static_cast<size_t>(model.limits().max_logit_rows));
  prompt_rows_.reserve(static_cast<size_t>(model.limits().max_logit_rows));
  logit_streams_.reserve(static_cast<size_t>(config.max_streams));
  draw_at_.reserve(static_cast<size_t>(config.max_streams));
  segments_.reserve(static_cast<size_t>(config.max_streams));
  sample_rows_.reserve(static_cast<size_t>(config.max_streams));
  score_rows_.reserve(static_cast<size_t>(config.max_streams));
  if (model.ranks() > 1)
    hidden_.resize(static_cast<size_t>(config.max_streams) * static_cast<size_t>(model.config().hidden) *
                   model.ops().act_size());
}

void Executor::connect(Communicator* comm) {
  comm_ = comm;
  model_.ops().connect(comm);
}

void Executor::apply(const RoundRecord& record, EngineState& state, RoundOutcome& outcome) {
  outcome.clear();
  ++state.rounds;
  for (const int32_t stream : record.cancels) release(state, stream, FinishReason::kCancelled, {}, outcome);
  for (const int32_t stream : record.preempts) {
    Stream& s = state.streams[static_cast<size_t>(stream)];
    s.sequence.release();
    outcome.preempted.push_back(std::exchange(s.request, nullptr));
  }
  for (const RoundRecord::Admission& admission : record.admissions) {
    Stream& s = state.streams[static_cast<size_t>(admission.stream)];
    CHECK(s.request == nullptr);
    s.request = admission.request;
    s.sequence.start(state.pages, state.slots);
    CHECK(s.sequence.reserve(admission_rows(*s.request, config_)));
    model_.reset_slot(s.sequence.slot());
  }
  if (record.rows.empty()) return;

  build_batch(record, state, outcome);
  const Batch batch{static_cast<int32_t>(tokens_.size()), tokens_, segments_, page_table_};
  Status status = model_.forward(batch, logit_rows_);
  if (status.ok()) {
    for (const RoundRecord::Rows& r : record.rows) {
      Sequence& sequence = state.streams[static_cast<size_t>(r.stream)].sequence;
      sequence.advance_to(sequence.rows() + r.rows);
    }
    status = score_prompts(state);
    if (status.ok()) status = draw(record, state);
  }
  if (!status.ok()) {
    // Slots and pages of all rows are in doubt; the requests end, and whoever comes next starts from a reset
    // slot.
    for (const RoundRecord::Rows& r : record.rows)
      release(state, r.stream, FinishReason::kError, status.error(), outcome);
    return;
  }
  for (size_t i = 0; i < logit_streams_.size(); ++i)
    take_token(state, logit_streams_[i], drawn_[i], !record.mask(logit_streams_[i]).empty(), outcome);
}

void Executor::fail_all(EngineState& state, const Error& error, RoundOutcome& outcome) {
  outcome.clear();
  for (size_t i = 0; i < state.streams.size(); ++i)
    if (state.streams[i].request != nullptr)
      release(state, static_cast<int32_t>(i), FinishReason::kError, error, outcome);
}

void Executor::build_batch(const RoundRecord& record, EngineState& state, RoundOutcome& outcome) {
  tokens_.clear();
  segments_.clear();
  page_table_.clear();
  logit_rows_.clear();
  logit_streams_.clear();
  draw_at_.clear();
  prompt_rows_.clear();
  for (const RoundRecord::Rows& r : record.rows) {
    Stream& s = state.streams[static_cast<size_t>(r.stream)];
    CHECK(s.request != nullptr && r.rows >= 1 && r.rows <= s.pending());
    const int32_t start = s.sequence.rows();
    CHECK(s.sequence.reserve(start + r.rows));
    segments_.push_back({static_cast<int32_t>(tokens_.size()), r.rows, start, s.sequence.slot(),
                         static_cast<int32_t>(page_table_.size())});
    if (s.request->scores_prompt())
      for (int32_t row = 0; row < r.rows && start + row + 1 < s.request->prompt_tokens(); ++row) {
        prompt_rows_.push_back({static_cast<int32_t>(logit_rows_.size()), r.stream, start + row + 1});
        logit_rows_.push_back(static_cast<int32_t>(tokens_.size()) + row);
      }
    if (r.rows == s.pending()) {
      draw_at_.push_back(static_cast<int32_t>(logit_rows_.size()));
      logit_rows_.push_back(static_cast<int32_t>(tokens_.size()) + r.rows - 1);
      logit_streams_.push_back(r.stream);
    }
    for (int32_t p = start; p < start + r.rows; ++p) tokens_.push_back(s.request->token(p));
    page_table_.insert(page_table_.end(), s.sequence.pages().begin(), s.sequence.pages().end());
    if (start + r.rows <= s.request->prompt_tokens()) outcome.prompt_rows += r.rows;
  }
}

RoundDigest Executor::digest(const EngineState& state) {
  const size_t row = static_cast<size_t>(model_.config().hidden) * model_.ops().act_size();
  const auto* const rows = reinterpret_cast<const std::byte*>(model_.hidden());
  for (size_t i = 0; i < segments_.size(); ++i) {
    const auto last = static_cast<size_t>(segments_[i].first_row + segments_[i].rows - 1);
    model_.ops().download(hidden_.data() + i * row, rows + last * row, row);
  }
  return {state.digest(), XXH3_64bits(hidden_.data(), segments_.size() * row)};
}

void Executor::download_row(int32_t at, size_t to) {
  const size_t width = static_cast<size_t>(model_.logit_width());
  model_.ops().download(logits_.data() + to * width, model_.logits() + static_cast<size_t>(at) * width,
                        width * sizeof(float));
}

/// Log-probabilities of the prompt rows in this batch, as many at a time as logits_ holds.
Status Executor::score_prompts(const EngineState& state) {
  const size_t width = static_cast<size_t>(model_.logit_width());
  const size_t some = static_cast<size_t>(config_.max_streams);
  for (size_t first = 0; first < prompt_rows_.size(); first += some) {
    const size_t count = std::min(some, prompt_rows_.size() - first);
    score_rows_.clear();
    for (size_t i = 0; i < count; ++i) {
      const PromptRow& row = prompt_rows_[first + i];
      download_row(row.at, i);
      const Request& request = *state.streams[static_cast<size_t>(row.stream)].request;
      score_rows_.push_back({std::span(logits_.data() + i * width, width), request.token(row.position),
                             request.generation->prompt_logprobs_slot(static_cast<size_t>(row.position))});
    }
    RETURN_IF_ERROR(sampler_.score(comm_, score_rows_));
  }
  return {};
}

/// Tokens of logit_rows_ into drawn_.
Status Executor::draw(const RoundRecord& record, const EngineState& state) {
  if (logit_streams_.empty() && model_.ranks() == 1) return {};
  const size_t width = static_cast<size_t>(model_.logit_width());
  const int32_t first_id = model_.first_logit_id();
  sample_rows_.clear();
  for (size_t i = 0; i < logit_streams_.size(); ++i) {
    const Request& request = *state.streams[static_cast<size_t>(logit_streams_[i])].request;
    const std::span<const uint32_t> mask = record.mask(logit_streams_[i]);
    const SampleKey key{request.spec.sampling, request.seed, request.known()};
    const bool may_end = !mask.empty() || request.generated() >= request.spec.min_tokens;
    // A rank may have no part of the vocabulary.
    if (width > 0 && may_end && request.rules.plain() && request.spec.logprobs < 0 &&
        sampler_.draws_on_device(key.params)) {
      const float* const there = model_.logits() + static_cast<size_t>(draw_at_[i]) * width;
      sample_rows_.push_back({std::span(there, width), key, true, mask});
      continue;
    }
    download_row(draw_at_[i], i);
    const std::span<float> row(logits_.data() + i * width, width);
    if (request.spec.logprobs >= 0)
      std::copy(row.begin(), row.end(), raw_.begin() + static_cast<ptrdiff_t>(i * width));
    if (!mask.empty()) {
      apply_mask(mask, first_id, row);
    } else if (!may_end) {
      for (const int32_t id : request.spec.end_ids)
        if (id >= first_id && id - first_id < model_.logit_width())
          row[static_cast<size_t>(id - first_id)] = kMasked;
    }
    request.rules.adjust(row, first_id);
    sample_rows_.push_back({row, key});
  }
  RETURN_IF_ERROR(sampler_.draw(comm_, model_.ranks() == 1 ? RoundDigest{} : digest(state), sample_rows_,
                                std::span(drawn_).first(sample_rows_.size())));
  for (size_t i = 0; i < logit_streams_.size(); ++i) {
    const int32_t forced = state.streams[static_cast<size_t>(logit_streams_[i])].request->rules.forced();
    if (forced >= 0) drawn_[i] = forced;
  }
  return score(state);
}

/// Log-probabilities of the tokens in drawn_ where they are wanted.
Status Executor::score(const EngineState& state) {
  const size_t width = static_cast<size_t>(model_.logit_width());
  score_rows_.clear();
  for (size_t i = 0; i < logit_streams_.size(); ++i) {
    const Request& request = *state.streams[static_cast<size_t>(logit_streams_[i])].request;
    if (request.spec.logprobs < 0 || drawn_[i] < 0) continue;
    score_rows_.push_back({std::span(raw_).subspan(i * width, width), drawn_[i],
                           request.generation->logprobs_slot(static_cast<size_t>(request.generated()))});
  }
  return sampler_.score(comm_, score_rows_);
}

void Executor::take_token(EngineState& state, int32_t stream, int32_t token, bool masked, RoundOutcome& outcome) {
  Request& request = *state.streams[static_cast<size_t>(stream)].request;
  if (token < 0) {
    Error error{ErrorCode::kInternal,
                "the model gave no usable logits at position " + std::to_string(request.known() - 1)};
    if (masked) error = {ErrorCode::kGrammar, "the grammar rejected the reply"};
    release(state, stream, FinishReason::kError, std::move(error), outcome);
    return;
  }
  if (request.spec.constraint != nullptr && request.rules.answering() &&
      !request.spec.constraint->accept(token))
    request.constraint_broken = true;
  request.rules.take(token);
  if (request.rules.cut()) request.generation->think_cut_.store(true, std::memory_order_relaxed);
  request.generation->push(token);
  ++outcome.tokens;
  const std::vector<int32_t>& ends = request.spec.end_ids;
  if (std::find(ends.begin(), ends.end(), token) != ends.end())
    release(state, stream, FinishReason::kStop, {}, outcome);
  else if (request.generated() == request.spec.max_tokens)
    release(state, stream, FinishReason::kLength, {}, outcome);
  else
    outcome.advanced.push_back(&request);
}

void Executor::release(EngineState& state, int32_t stream, FinishReason reason, Error error,
                       RoundOutcome& outcome) {
  Stream& s = state.streams[static_cast<size_t>(stream)];
  s.sequence.release();
  outcome.finished.push_back({std::exchange(s.request, nullptr), reason, std::move(error)});
}

}  // namespace firesteel
