// Opening a model for a command: headers, backend, memory plan, weights, in that order, with progress on
// standard error.
#pragma once

#include <cstdint>
#include <memory>

#include "app/commands.h"
#include "base/result.h"
#include "comm/nccl_choice.h"
#include "model/config.h"
#include "model/model.h"
#include "model/plan.h"
#include "ops/ops.h"

namespace firesteel {

struct OpenRequest {
  int32_t streams = 1;
  int32_t window = 0;    // tokens one request may span; 0: the largest that fits
  int32_t max_rows = 0;  // of one forward; 0: what suits the backend
  int32_t max_logit_rows = 64;
  Placement placement;  // which part of the model
};

/// How the model's numbers are kept.
struct ModelFormats {
  DenseFormat dense = DenseFormat::kStored;
  KvFormat kv = KvFormat::kWide;
  bool lossy() const { return dense != DenseFormat::kStored || kv != KvFormat::kWide; }
};
/// What --dense, --kv and --exact say; by default a GPU narrows and the CPU does not.
ModelFormats model_formats(const ModelOptions& options, bool gpu);
inline ModelFormats model_formats(const ModelOptions& options, const Ops& ops) {
  return model_formats(options, ops.name() == "cuda");
}
/// "dense matrices in 4 bits, KV in FP8 (lossy; --exact: neither)", "exact".
std::string formats_text(const ModelFormats& formats);

/// A loaded model with what it runs on. Members are destroyed in reverse order: the model before its ops.
struct OpenModel {
  ModelConfig config;
  MemoryPlan plan;
  ModelFormats formats;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
};

/// The backend of --device; `auto` takes a GPU that this build has code for, else the CPU. `exchange`:
/// between ranks on GPUs.
Result<std::unique_ptr<Ops>> make_ops(const ModelOptions& options, int rank,
                                      ExchangeChoice exchange = ExchangeChoice::kAuto);

/// Bytes that a plan may use where `ops` keeps its memory, when `ranks_here` ranks share this machine.
uint64_t usable_memory(const Ops& ops, int ranks_here);

/// Rows of the largest forward: a prompt chunk.
int32_t forward_rows(const OpenRequest& request, const Ops& ops);

/// What the headers alone say. `usable` = bytes the plan may use.
struct PlannedModel {
  ModelFiles files;
  MemoryPlan plan;
};
Result<PlannedModel> plan_model(const ModelOptions& options, const Ops& ops, const OpenRequest& request,
                                uint64_t usable);

/// The same for headers that are open already: fills out.plan from out.files.
Status plan_files(const Ops& ops, const OpenRequest& request, uint64_t usable, PlannedModel& out);

/// Reads the weights of a plan and takes its memory, with `pages` of the planned pages; `out.ops` is there
/// already.
Status load_planned(const PlannedModel& planned, const OpenRequest& request, int32_t pages, OpenModel& out);

/// All steps for a model that is not shared. kOutOfMemory before anything is loaded when the plan does not
/// fit.
Result<OpenModel> open_model(const ModelOptions& options, const OpenRequest& request);

}  // namespace firesteel
