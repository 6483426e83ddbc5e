#include "app/open_model.h"

#include <algorithm>

#include "app/machine.h"
#include "app/progress_line.h"
#include "base/log.h"
#include "ops/cuda/cuda_ops.h"

namespace firesteel {

ModelFormats model_formats(const ModelOptions& options, bool gpu) {
  const bool narrow = gpu && !options.exact;
  ModelFormats out;
  const std::string dense = options.dense == "auto" && narrow ? "q4" : options.dense;
  out.dense = dense == "q4" ? DenseFormat::kQ4 : dense == "fp8" ? DenseFormat::kFp8 : DenseFormat::kStored;
  if (options.kv == "fp8" || (options.kv == "auto" && narrow)) out.kv = KvFormat::kFp8;
  return out;
}

std::string formats_text(const ModelFormats& f) {
  if (!f.lossy()) return "exact";
  std::string out;
  if (f.dense != DenseFormat::kStored)
    out = f.dense == DenseFormat::kQ4 ? "dense matrices in 4 bits" : "dense matrices in FP8";
  if (f.kv == KvFormat::kFp8) out += out.empty() ? "KV in FP8" : ", KV in FP8";
  return out + " (lossy; --exact turns it off)";
}

Result<std::unique_ptr<Ops>> make_ops(const ModelOptions& options, int rank, ExchangeChoice exchange) {
  if (options.device != "cpu") {
    // Ranks on one machine take its GPUs in turn.
    auto ops =
        make_cuda_ops(rank % std::max(1, cuda_device_count()), model_formats(options, true).kv, exchange);
    if (ops.ok() || options.device == "cuda") return ops;
    if (ops.error().code != ErrorCode::kUnavailable)
      LOG_WARN("{}; computing on the CPU", ops.error().message);
  }
  return make_cpu_ops(options.threads, model_formats(options, false).kv);
}

uint64_t usable_memory(const Ops& ops, int ranks_here) {
  const uint64_t own = ops.own_memory(), ranks = static_cast<uint64_t>(ranks_here);
  if (own == 0) return usable_memory() / ranks;
  const auto gpus = static_cast<uint64_t>(std::max(1, cuda_device_count()));
  return own / ((ranks + gpus - 1) / gpus);
}

int32_t forward_rows(const OpenRequest& request, const Ops& ops) {
  // A GPU reads every expert once a chunk: fewer, larger chunks.
  return request.max_rows > 0 ? request.max_rows : ops.name() == "cuda" ? 2048 : 512;
}

Result<PlannedModel> plan_model(const ModelOptions& options, const Ops& ops, const OpenRequest& request,
                                uint64_t usable) {
  PlannedModel out;
  ASSIGN_OR_RETURN(out.files,
                   open_model_files(options.dir, request.placement, model_formats(options, ops).dense));
  RETURN_IF_ERROR(plan_files(ops, request, usable, out));
  return out;
}

Status plan_files(const Ops& ops, const OpenRequest& request, uint64_t usable, PlannedModel& out) {
  const MemoryNeeds needs = measure_memory(out.files.weights, out.files.config, ops,
                                           forward_rows(request, ops), request.max_logit_rows);
  PlanRequest ask;
  ask.available = usable;
  ask.streams = request.streams;
  ask.window = request.window;
  ASSIGN_OR_RETURN(out.plan, plan_memory(needs, out.files.config, ask));
  return {};
}

Status load_planned(const PlannedModel& planned, const OpenRequest& request, int32_t pages, OpenModel& out) {
  out.config = planned.files.config;
  out.plan = planned.plan;
  ModelLimits limits;
  limits.max_rows = forward_rows(request, *out.ops);
  limits.max_logit_rows = request.max_logit_rows;
  limits.pages = pages;
  limits.slots = out.plan.slots;
  ProgressLine line("loading weights", gib_text(out.plan.needs.weights_total()));
  ASSIGN_OR_RETURN(out.model, load_model(planned.files, *out.ops, limits,
                                         [&](uint64_t done, uint64_t total) { line(done, total); }));
  return {};
}

Result<OpenModel> open_model(const ModelOptions& options, const OpenRequest& request) {
  OpenModel out;
  ASSIGN_OR_RETURN(out.ops, make_ops(options, 0));
  out.formats = model_formats(options, *out.ops);
  ASSIGN_OR_RETURN(const PlannedModel planned,
                   plan_model(options, *out.ops, request, usable_memory(*out.ops, 1)));
  RETURN_IF_ERROR(load_planned(planned, request, planned.plan.pages, out));
  return out;
}

}  // namespace firesteel
