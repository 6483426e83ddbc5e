#include <cstdio>
#include <numeric>

#include "app/open_model.h"
#include "model/trace.h"

namespace firesteel {
namespace {

Status trace_to_file(const LogitsOptions& options) {
  ASSIGN_OR_RETURN(const auto ids, parse_int_list(options.prompt_ids, "--prompt-ids", 0, INT32_MAX));
  TraceOptions trace;
  ASSIGN_OR_RETURN(trace.split, parse_int_list(options.split, "--split", 1, INT32_MAX));
  trace.layers = options.layers;
  if (ids.empty()) return Error{ErrorCode::kInvalidArgument, "--prompt-ids: at least one id"};
  const ModelLimits limits = trace_limits(static_cast<int64_t>(ids.size()));
  OpenRequest request;
  request.window = static_cast<int32_t>(ids.size());
  request.max_rows = limits.max_rows;
  request.max_logit_rows = limits.max_logit_rows;
  ASSIGN_OR_RETURN(OpenModel open, open_model(options.model, request));
  ASSIGN_OR_RETURN(const Trace result, trace_prompt(*open.model, ids, trace));
  RETURN_IF_ERROR(write_trace(options.out, result));
  std::printf("wrote %zu tensors to %s\n", result.size(), options.out.c_str());
  return {};
}

}  // namespace

int run_logits(const LogitsOptions& options) {
  const Status done = trace_to_file(options);
  return done.ok() ? 0 : report(done.error());
}

}  // namespace firesteel
