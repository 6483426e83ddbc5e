// FakeModel: a Model whose logits are a hash of everything that a row may depend on, and of nothing else.
//
// A slot holds the chain hash of the tokens before it, every page row the chain hash up to it. A row's logits
// come from the slot's chain and all page rows of its sequence, so a slot that was not reset, a page of
// another sequence, a missing or doubled row, each changes the reply. oracle_reply() computes a reply without
// engine, pages or slots.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "model/model.h"

namespace firesteel {

class FakeModel final : public Model {
 public:
  enum class Fault { kNone, kRowsInTheBatch, kNeighboursPage, kSlotNotReset };
  static constexpr int32_t kVocab = 61;
  static constexpr int32_t kPoisonToken = 59;   // a row that ends with it has no usable logits
  static constexpr int32_t kExplodeToken = 60;  // a batch that contains it fails

  explicit FakeModel(const ModelLimits& limits, Fault fault = Fault::kNone);

  const ModelConfig& config() const override { return config_; }
  Ops& ops() override { return *ops_; }
  bool has_mtp() const override { return false; }
  const ModelLimits& limits() const override { return limits_; }
  void reset_slot(int32_t slot) override;
  size_t slot_bytes() const override { return sizeof(uint64_t); }
  void save_slot(int32_t slot, std::byte* host) override;
  void restore_slot(int32_t slot, const std::byte* host) override;
  size_t page_bytes() const override { return kPageTokens * sizeof(uint64_t); }
  void copy_page(int32_t dst, int32_t src) override;
  Status forward(const Batch& batch, std::span<const int32_t> logit_rows, ForwardHooks* hooks) override;
  const float* logits() const override { return logits_.data(); }
  int32_t logit_width() const override { return kVocab; }
  int32_t first_logit_id() const override { return 0; }
  int32_t ranks() const override { return 1; }
  const Act* hidden() const override { return nullptr; }
  Status mtp_forward(const Batch&, const Act*, std::span<const int32_t>, ForwardHooks*) override;
  const Act* mtp_hidden() const override { return nullptr; }

  /// Called at the start of each forward, on the engine thread.
  std::function<void()> before_forward;
  std::atomic<int64_t> forwards{0};

 private:
  ModelConfig config_;
  ModelLimits limits_;
  Fault fault_;
  std::unique_ptr<Ops> ops_;
  std::vector<uint64_t> slots_;
  std::vector<int32_t> slot_rows_;
  std::vector<uint64_t> pages_;  // [pages, 256]
  std::vector<float> logits_;
};

/// Log-softmax of the model's rows, in double.
struct OracleScores {
  std::vector<std::vector<double>> prompt;  // of the row behind each prompt token
  std::vector<std::vector<double>> reply;   // of the rows that the reply's tokens were drawn from
};

/// The reply to a request by itself. Uses up its constraint.
std::vector<int32_t> oracle_reply(const GenerationRequest& request, OracleScores* scores = nullptr);

}  // namespace firesteel
