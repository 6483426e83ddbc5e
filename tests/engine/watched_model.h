// WatchedModel: passes everything to a model and remembers the logits of every row by the tokens before it.
//
// The same tokens must give the same bits in whatever batch, chunk or slot they are computed, so two logits
// rows with equal prefixes and different bits are a fault, whichever runs they come from. That is far
// stricter than comparing drawn ids, which a small error rarely changes. The planted fault moves one
// activation by one unit in the last place when the batch has an even number of rows: a sum whose order
// depends on the rows.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "model/model.h"

namespace firesteel {

class WatchedModel final : public Model {
 public:
  explicit WatchedModel(Model& model);

  const ModelConfig& config() const override { return model_.config(); }
  Ops& ops() override { return model_.ops(); }
  bool has_mtp() const override { return model_.has_mtp(); }
  const ModelLimits& limits() const override { return model_.limits(); }
  void reset_slot(int32_t slot) override;
  size_t slot_bytes() const override { return model_.slot_bytes(); }
  void save_slot(int32_t slot, std::byte* host) override { model_.save_slot(slot, host); }
  void restore_slot(int32_t slot, const std::byte* host) override { model_.restore_slot(slot, host); }
  size_t page_bytes() const override { return model_.page_bytes(); }
  void copy_page(int32_t dst, int32_t src) override { model_.copy_page(dst, src); }
  Status forward(const Batch& batch, std::span<const int32_t> logit_rows, ForwardHooks* hooks) override;
  const float* logits() const override { return model_.logits(); }
  int32_t logit_width() const override { return model_.logit_width(); }
  int32_t first_logit_id() const override { return model_.first_logit_id(); }
  int32_t ranks() const override { return model_.ranks(); }
  const Act* hidden() const override { return model_.hidden(); }
  Status mtp_forward(const Batch& batch, const Act* h, std::span<const int32_t> logit_rows,
                     ForwardHooks* hooks) override {
    return model_.mtp_forward(batch, h, logit_rows, hooks);
  }
  const Act* mtp_hidden() const override { return model_.mtp_hidden(); }

  void plant_fault(bool on) { fault_ = on; }
  /// Rows seen with a prefix that had been seen before, how many of them had other bits, and all rows.
  int64_t repeated = 0, different = 0, rows = 0, forwards = 0;

 private:
  Model& model_;
  bool fault_ = false;
  std::vector<uint64_t> prefix_;  // of each slot
  std::vector<float> row_;
  std::unordered_map<uint64_t, uint64_t> seen_;
};

}  // namespace firesteel
