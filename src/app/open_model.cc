#include "app/open_model.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "app/machine.h"

namespace firesteel {
namespace {

/// A line that rewrites itself on a terminal, and nothing but a last line elsewhere.
class ProgressLine {
 public:
  void operator()(uint64_t done, uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    const bool last = done >= total;
    if (!terminal_ || total == 0 || (!last && now - shown_ < std::chrono::milliseconds(100))) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
    std::fprintf(stderr, "\rloading weights: %3.0f %% of %s, %.0f s left ",
                 100.0 * static_cast<double>(done) / static_cast<double>(total), gib_text(total).c_str(),
                 left);
    if (last) std::fprintf(stderr, "\r\033[K");
    std::fflush(stderr);
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_{};
};

}  // namespace

Result<DenseFormat> parse_dense(const std::string& text) {
  if (text == "q4") return DenseFormat::kQ4;
  if (text == "fp8") return DenseFormat::kFp8;
  if (text == "bf16") return DenseFormat::kStored;
  return Error{ErrorCode::kInvalidArgument, "--dense: expected q4, fp8 or bf16, not " + text};
}

Result<std::unique_ptr<Ops>> make_ops(const ModelOptions& options) { return make_cpu_ops(options.threads); }

Result<PlannedModel> plan_model(const std::string& dir, const Ops& ops, const OpenRequest& request,
                                uint64_t usable) {
  PlannedModel out;
  ASSIGN_OR_RETURN(out.files, open_model_files(dir, request.placement, request.dense));
  const MemoryNeeds needs =
      measure_memory(out.files.weights, out.files.config, ops, request.max_rows, request.max_logit_rows);
  PlanRequest ask;
  ask.available = usable;
  ask.streams = request.streams;
  ask.window = request.window;
  ASSIGN_OR_RETURN(out.plan, plan_memory(needs, out.files.config, ask));
  return out;
}

Status load_planned(const PlannedModel& planned, const OpenRequest& request, int32_t pages, OpenModel& out) {
  out.config = planned.files.config;
  out.plan = planned.plan;
  ModelLimits limits;
  limits.max_rows = request.max_rows;
  limits.max_logit_rows = request.max_logit_rows;
  limits.pages = pages;
  limits.slots = out.plan.slots;
  ProgressLine line;
  ASSIGN_OR_RETURN(out.model, load_model(planned.files, *out.ops, limits,
                                         [&](uint64_t done, uint64_t total) { line(done, total); }));
  return {};
}

Result<OpenModel> open_model(const ModelOptions& options, const OpenRequest& request) {
  OpenModel out;
  ASSIGN_OR_RETURN(out.ops, make_ops(options));
  ASSIGN_OR_RETURN(const PlannedModel planned, plan_model(options.dir, *out.ops, request, usable_memory()));
  RETURN_IF_ERROR(load_planned(planned, request, planned.plan.pages, out));
  return out;
}

}  // namespace firesteel
