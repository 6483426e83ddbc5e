// TextModel: the forward passes of the text model and the MTP layer, written once over the op table.
//
// Owns the loaded weights' handles and the arenas' layout; the memory is the backend's. One thread calls it.
// A forward allocates nothing.
#pragma once

#include <vector>

#include "model/layout.h"
#include "model/model.h"
#include "model/weights.h"

namespace firesteel {

class TextModel final : public Model {
 public:
  /// Takes the arenas from `ops` (pages, slots, buffers, scratch).
  static Result<std::unique_ptr<TextModel>> create(const ModelConfig& config, const LocalWidths& local,
                                                   Weights weights, Ops& ops, const ModelLimits& limits);

  const ModelConfig& config() const override { return config_; }
  Ops& ops() override { return ops_; }
  bool has_mtp() const override { return weights_.mtp != nullptr; }
  const ModelLimits& limits() const override { return limits_; }

  void reset_slot(int32_t slot) override;
  size_t slot_bytes() const override { return slot_bytes_; }
  void save_slot(int32_t slot, std::byte* host) override;
  void restore_slot(int32_t slot, const std::byte* host) override;
  size_t page_bytes() const override { return page_bytes_; }
  void copy_page(int32_t dst, int32_t src) override;

  Status forward(const Batch& batch, std::span<const int32_t> logit_rows, ForwardHooks* hooks) override;
  const float* logits() const override { return b_.logits; }
  int32_t logit_width() const override { return local_.vocab; }
  int32_t first_logit_id() const override { return local_.first_id; }
  int32_t ranks() const override { return local_.ranks; }
  const Act* hidden() const override { return b_.hidden; }
  Status mtp_forward(const Batch& batch, const Act* h, std::span<const int32_t> logit_rows,
                     ForwardHooks* hooks) override;
  const Act* mtp_hidden() const override { return b_.mtp_hidden; }

 private:
  TextModel(const ModelConfig& config, const LocalWidths& local, Weights weights, Ops& ops,
            const ModelLimits& limits);

  Status check(const Batch& batch, std::span<const int32_t> logit_rows) const;
  void place_planes(std::byte* pages, std::byte* slots);
  std::byte* slot_at(int32_t slot) const;
  Act* at(Act* p, int32_t element) const {
    return reinterpret_cast<Act*>(reinterpret_cast<std::byte*>(p) + static_cast<size_t>(element) * act_size_);
  }

  /// The ops of a pass, after bind and before finish.
  void issue(const Batch& batch, std::span<const int32_t> logit_rows, ForwardHooks* hooks);
  void issue_mtp(const Batch& batch, const Act* h, std::span<const int32_t> logit_rows, ForwardHooks* hooks);
  /// The most that a forward of these limits takes of the backend, found by issuing forwards to nobody.
  size_t measure_scratch();
  // One sublayer each: reads x, leaves the output of all ranks together in part (attention.cc,
  // feed_forward.cc).
  void attention(int32_t layer, const Block& block, const Batch& batch, ForwardHooks* hooks);
  void kda(const KdaLayer& layer);
  void dsa(int32_t layer, const DsaLayer& dsa, const Batch& batch, ForwardHooks* hooks);
  void feed_forward(int32_t layer, const Block& block, int32_t rows, ForwardHooks* hooks);
  void exchange();
  /// Logits of `rows` of `hidden`.
  void head(const Act* hidden, std::span<const int32_t> rows);

  ModelConfig config_;
  LocalWidths local_;
  Weights weights_;
  Ops& ops_;
  ModelLimits limits_;
  size_t act_size_;
  size_t page_bytes_ = 0, slot_bytes_ = 0;
  std::byte* pages_ = nullptr;
  std::byte* slots_ = nullptr;
  RowBuffers b_;
  std::vector<int32_t> all_rows_;  // 0, 1, … max_rows-1
};

}  // namespace firesteel
