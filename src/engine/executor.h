// Executor: carries one RoundRecord out on the state and the model. Engine thread only.
//
// Given equal states, records and weights it does the same on every machine: the tokens it draws depend on
// logits, settings, seed and position alone. It allocates nothing, except to describe a failure.
#pragma once

#include <cstdint>
#include <vector>

#include "decode/group_sampler.h"
#include "engine/round.h"
#include "model/model.h"

namespace firesteel {

/// What a round did to requests. Pointers stay valid until the engine frees the finished ones.
struct RoundOutcome {
  struct Finished {
    Request* request;
    FinishReason reason;
    Error error;  // kError
  };
  explicit RoundOutcome(int32_t max_streams);
  void clear();

  std::vector<Request*> advanced;   // got a token and run on
  std::vector<Finished> finished;   // their last token is pushed, Generation::finish is not called yet
  std::vector<Request*> preempted;  // wait again
  int32_t prompt_rows = 0, tokens = 0;
};

class Executor {
 public:
  /// The model must outlive the executor; its limits must allow config.max_streams rows with logits.
  Executor(Model& model, const EngineConfig& config);

  /// The ranks that share the model, null while they are lost; not called where there is one rank.
  void connect(Communicator* comm);

  /// A lost rank ends the requests of the forward with kUnavailable.
  void apply(const RoundRecord& record, EngineState& state, RoundOutcome& outcome);
  /// Ends everything that runs.
  void fail_all(EngineState& state, const Error& error, RoundOutcome& outcome);

 private:
  void release(EngineState& state, int32_t stream, FinishReason reason, Error error, RoundOutcome& outcome);
  void build_batch(const RoundRecord& record, EngineState& state, RoundOutcome& outcome);
  Status draw(const RoundRecord& record, const EngineState& state);
  void download_row(int32_t at, size_t to);
  Status score(const EngineState& state);
  Status score_prompts(const EngineState& state);
  RoundDigest digest(const EngineState& state);
  void take_token(EngineState& state, int32_t stream, int32_t token, bool masked, RoundOutcome& outcome);

  Model& model_;
  EngineConfig config_;
  Communicator* comm_ = nullptr;
  GroupSampler sampler_;
  std::vector<float> logits_;  // [max_streams, this rank's vocabulary]
  std::vector<float> raw_;     // the rows of logits_ whose log-probabilities are wanted, before rules and masks
  std::vector<SampleRow> sample_rows_;
  std::vector<ScoreRow> score_rows_;
  std::vector<int32_t> drawn_;
  std::vector<std::byte> hidden_;  // last rows of the segments, for the digest
  // The batch of the round.
  std::vector<int32_t> tokens_, page_table_;
  std::vector<int32_t> logit_rows_;     // ascending: rows that draw, and prompt rows that are scored
  std::vector<int32_t> logit_streams_;  // of the rows that draw
  std::vector<int32_t> draw_at_;        // their indices in logit_rows_
  struct PromptRow {
    int32_t at;                // index in logit_rows_
    int32_t stream, position;  // of the token that the row predicts
  };
  std::vector<PromptRow> prompt_rows_;
  std::vector<Segment> segments_;
};

}  // namespace firesteel
