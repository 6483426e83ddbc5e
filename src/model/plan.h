// The memory plan: what every part of a model takes, from headers alone, and which window fits.
//
// Made before anything is loaded; `info` shows it, `serve` refuses by it. Sizes that depend on the backend
// come from its Ops. Plain values, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "model/config.h"
#include "model/weight_map.h"
#include "ops/ops.h"

namespace firesteel {

/// What one rank needs, in bytes.
struct MemoryNeeds {
  std::array<uint64_t, kWeightGroups> weights{};  // by WeightGroup, as the backend keeps them
  uint64_t arenas = 0;                            // buffers and scratch of a forward of max_rows rows
  uint64_t page = 0;                              // kPageTokens tokens: latents and pools of all layers
  uint64_t slot = 0;                              // recurrent state of one sequence
  uint64_t weights_total() const;
};

MemoryNeeds measure_memory(const WeightMap& map, const ModelConfig& config, const Ops& ops, int32_t max_rows,
                           int32_t max_logit_rows);

struct PlanRequest {
  uint64_t available = 0;   // bytes that may be used
  int32_t streams = 1;      // sequences at once
  int32_t window = 0;       // tokens a sequence may span; 0 = auto: the largest that fits
  int32_t extra_slots = 0;  // beyond one per stream
  int64_t pool_tokens = 0;  // tokens that all pages should hold if there is room; 0 = streams × window
};

struct MemoryPlan {
  MemoryNeeds needs;
  int32_t window = 0;
  int32_t largest_window = 0;  // that would fit with these streams
  int32_t streams = 0;
  int32_t pages = 0, slots = 0;
  uint64_t total = 0;  // bytes of everything
  uint64_t available = 0;
};

/// One sequence must be able to span the window while each other stream has at least a page. kOutOfMemory
/// names the largest window that fits, or says that not even the weights do; kInvalidArgument: a window or
/// stream count outside what the model or the plan knows.
Result<MemoryPlan> plan_memory(const MemoryNeeds& needs, const ModelConfig& config,
                               const PlanRequest& request);

/// "12.34 GiB"
std::string gib_text(uint64_t bytes);

}  // namespace firesteel
