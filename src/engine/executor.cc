#include "engine/executor.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/scheduler.h"

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

Executor::Executor(Model& model, const EngineConfig& config)
    : model_(model),
      config_(config),
      vocab_(model.config().vocab),
      scratch_(vocab_),
      logits_(static_cast<size_t>(config.max_streams) * static_cast<size_t>(vocab_)) {
  CHECK(model.limits().max_logit_rows >= config.max_streams && model.limits().max_rows >= config.max_streams);
  tokens_.reserve(static_cast<size_t>(model.limits().max_rows));
  page_table_.reserve(static_cast<size_t>(model.limits().pages));
  logit_rows_.reserve(static_cast<size_t>(config.max_streams));
  logit_streams_.reserve(static_cast<size_t>(config.max_streams));
  segments_.reserve(static_cast<size_t>(config.max_streams));
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
  if (Status status = model_.forward(batch, logit_rows_); !status.ok()) {
    // Slots and pages of all rows are in doubt; the requests end, and whoever comes next starts from a reset
    // slot.
    for (const RoundRecord::Rows& r : record.rows)
      release(state, r.stream, FinishReason::kError, status.error(), outcome);
    return;
  }
  for (const RoundRecord::Rows& r : record.rows) {
    Sequence& sequence = state.streams[static_cast<size_t>(r.stream)].sequence;
    sequence.advance_to(sequence.rows() + r.rows);
  }
  if (logit_rows_.empty()) return;
  const size_t vocab = static_cast<size_t>(vocab_);
  model_.ops().download(logits_.data(), model_.logits(), logit_rows_.size() * vocab * sizeof(float));
  for (size_t i = 0; i < logit_streams_.size(); ++i)
    draw_token(state, logit_streams_[i], logits_.data() + i * vocab, outcome);
}

void Executor::build_batch(const RoundRecord& record, EngineState& state, RoundOutcome& outcome) {
  tokens_.clear();
  segments_.clear();
  page_table_.clear();
  logit_rows_.clear();
  logit_streams_.clear();
  for (const RoundRecord::Rows& r : record.rows) {
    Stream& s = state.streams[static_cast<size_t>(r.stream)];
    CHECK(s.request != nullptr && r.rows >= 1 && r.rows <= s.pending());
    const int32_t start = s.sequence.rows();
    CHECK(s.sequence.reserve(start + r.rows));
    segments_.push_back({static_cast<int32_t>(tokens_.size()), r.rows, start, s.sequence.slot(),
                         static_cast<int32_t>(page_table_.size())});
    if (r.rows == s.pending()) {
      logit_rows_.push_back(static_cast<int32_t>(tokens_.size()) + r.rows - 1);
      logit_streams_.push_back(r.stream);
    }
    for (int32_t p = start; p < start + r.rows; ++p) tokens_.push_back(s.request->token(p));
    page_table_.insert(page_table_.end(), s.sequence.pages().begin(), s.sequence.pages().end());
    if (start + r.rows <= s.request->prompt_tokens()) outcome.prompt_rows += r.rows;
  }
}

void Executor::draw_token(EngineState& state, int32_t stream, float* logits, RoundOutcome& outcome) {
  Request& request = *state.streams[static_cast<size_t>(stream)].request;
  const std::span<float> row(logits, static_cast<size_t>(vocab_));
  if (request.generated() < request.spec.min_tokens)
    for (const int32_t id : request.spec.end_ids)
      row[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
  const int32_t position = request.known();
  const int32_t token = sample_token(row, request.spec.sampling, request.seed, position, scratch_);
  if (token < 0) {
    release(
        state, stream, FinishReason::kError,
        {ErrorCode::kInternal, "the model gave no usable logits at position " + std::to_string(position - 1)},
        outcome);
    return;
  }
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
