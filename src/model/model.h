// The glm5_next text model and its MTP layer over the op table.
//
// Built in two steps so that memory is planned before anything is loaded: MemoryPlan (from headers alone,
// model/plan.h) says what every part takes; load() then takes the arenas and reads the weights. One thread
// (the engine's) calls forward(). The model knows nothing of requests: it computes rows of sequences whose
// pages and slots others own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "model/config.h"
#include "model/weight_map.h"
#include "ops/ops.h"

namespace firesteel {

/// What may be watched or forced inside a forward; for `logits --layers` and tests. Pointers are device
/// memory, valid during the call; the ops before the call have been issued (use Ops::download).
class ForwardHooks {
 public:
  virtual ~ForwardHooks() = default;
  virtual void attention_output(int32_t layer, const float* y, int32_t rows) {
    (void)layer, (void)y, (void)rows;
  }
  virtual void mlp_output(int32_t layer, const float* y, int32_t rows) { (void)layer, (void)y, (void)rows; }
  virtual void streams(int32_t layer, const Act* x, int32_t rows) { (void)layer, (void)x, (void)rows; }
  virtual void selection(int32_t layer, Selection& sel, const Batch& batch) {
    (void)layer, (void)sel, (void)batch;
  }
  virtual void experts(int32_t layer, int32_t* idx, float* weight, int32_t rows) {
    (void)layer, (void)idx, (void)weight, (void)rows;
  }
};

/// Sizes that fix the arenas; chosen before loading (see plan.h).
struct ModelLimits {
  int32_t max_rows = 512;  // rows of one forward; more are refused
  int32_t max_logit_rows = 64;
  int32_t pages = 0;
  int32_t slots = 0;
};

using LoadProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual Ops& ops() = 0;
  virtual bool has_mtp() const = 0;
  virtual const ModelLimits& limits() const = 0;

  /// Starts a slot from nothing (zero state). Must be called before a slot's first forward.
  virtual void reset_slot(int32_t slot) = 0;
  /// Recurrent state of one slot (KDA, convolution, index tails, MTP tail): size, and copies out of and into
  /// it.
  virtual size_t slot_bytes() const = 0;
  virtual void save_slot(int32_t slot, std::byte* host) = 0;
  virtual void restore_slot(int32_t slot, const std::byte* host) = 0;
  /// All planes of one page (256 tokens): size, and copies (kept prompts, the partial page of a prompt
  /// state).
  virtual size_t page_bytes() const = 0;
  virtual void copy_page(int32_t dst, int32_t src) = 0;

  /// Runs all layers over the batch, advancing slots and writing pages. Logits (fp32, this rank's vocabulary)
  /// of the rows named in `logit_rows` (ascending) are at logits() afterwards, [logit_rows, vocab]; the
  /// final-normed hidden rows of the whole batch stay at hidden() for mtp_forward.
  virtual Status forward(const Batch& batch, std::span<const int32_t> logit_rows,
                         ForwardHooks* hooks = nullptr) = 0;
  virtual const float* logits() const = 0;
  virtual int32_t logit_width() const = 0;  // ids of this rank's part of the vocabulary
  virtual int32_t first_logit_id() const = 0;
  virtual int32_t ranks() const = 0;  // that share the model, each with its own part
  virtual const Act* hidden() const = 0;

  /// The MTP layer over rows that continue each segment's MTP cache: tokens[i] is the token after row i's
  /// position; `h` [rows, H] the main model's final-normed rows (or the previous draft's mtp_hidden()).
  virtual Status mtp_forward(const Batch& batch, const Act* h, std::span<const int32_t> logit_rows,
                             ForwardHooks* hooks = nullptr) = 0;
  virtual const Act* mtp_hidden() const = 0;  // step 5 rows of the last mtp_forward
};

/// A model directory, opened and checked by its headers; nothing is loaded. Everything in it points into
/// `checkpoint`.
struct ModelFiles {
  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  Placement placement;
  WeightMap weights;            // this rank's
  bool random_weights = false;  // made up while loading instead of read (model/synthetic.h)
};
Result<ModelFiles> open_model_files(const std::string& dir, const Placement& placement = {},
                                    DenseFormat dense = DenseFormat::kStored);

/// Takes the arenas and reads the weights into `ops`' memory. `files` may go when this returns. Errors name
/// the tensor and the file. `ops` must outlive the model.
Result<std::unique_ptr<Model>> load_model(const ModelFiles& files, Ops& ops, const ModelLimits& limits,
                                          const LoadProgress& progress);
/// Both steps for one rank.
Result<std::unique_ptr<Model>> load_model(const std::string& dir, Ops& ops, const ModelLimits& limits,
                                          const LoadProgress& progress);

}  // namespace firesteel
