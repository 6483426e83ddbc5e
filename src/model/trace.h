// Runs one prompt through a model and keeps what happened: logits of every position and, on request, what
// each layer produced and chose. For the `logits` command and for tests; allocates freely.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/model.h"

namespace firesteel {

struct TraceOptions {
  std::vector<int32_t> split;  // rows of the first chunks; what is left over is one more chunk
  bool layers = false;
  int32_t layer_rows = 64;  // streams, attn and mlp of the last so many positions; 0 = all
};

struct TraceTensor {
  std::vector<int64_t> shape;
  std::vector<float> floats;  // one of the two
  std::vector<int32_t> ints;
};

/// "logits" [n, vocab]; with layers, for layer L: "streams.L" [m, 4, H], "attn.L", "mlp.L" [m, H] (outputs of
/// the layer and its two sublayers), "index.L" [n, index_topk + kpool - 1] (tokens that its indexer selects,
/// ascending, -1 = unused; layers with an indexer only), "router_idx.L", "router_w.L" [n, k] (MoE layers).
using Trace = std::map<std::string, TraceTensor>;

/// Limits that a trace of `tokens` tokens needs.
ModelLimits trace_limits(int64_t tokens);

/// Uses slot 0 and the first pages. Chunks larger than the model's limits are cut further, which changes no
/// bit. kInvalidArgument: ids or split that do not fit.
Result<Trace> trace_prompt(Model& model, std::span<const int32_t> ids, const TraceOptions& options);

/// Writes a trace as safetensors (F32 and I32).
Status write_trace(const std::string& path, const Trace& trace);

}  // namespace firesteel
