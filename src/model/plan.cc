#include "model/plan.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "model/layout.h"

namespace firesteel {
namespace {

constexpr int32_t kMaxStreams = 4096;
constexpr int32_t kMaxPages = 1 << 24;

int64_t pages_of(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

}  // namespace

uint64_t MemoryNeeds::weights_total() const {
  return std::accumulate(weights.begin(), weights.end(), uint64_t{0});
}

MemoryNeeds measure_memory(const WeightMap& map, const ModelConfig& config, const Ops& ops, int32_t max_rows,
                           int32_t max_logit_rows) {
  MemoryNeeds needs;
  const auto add = [&](WeightGroup group, size_t bytes) {
    needs.weights[static_cast<size_t>(group)] += aligned(bytes);
  };
  walk_weights(
      map,
      [&](WeightGroup group, const MatrixRef& m) {
        if (!m.empty()) add(group, ops.matrix_bytes(m.spec));
      },
      [&](WeightGroup group, const VectorRef& v) {
        add(group, static_cast<size_t>(v.size()) * sizeof(float));
      });
  const LocalWidths local = local_widths(map);
  const bool mtp = map.mtp.has_value();
  needs.arenas = aligned(row_buffers(config, mtp, local, ops, max_rows, max_logit_rows, nullptr).bytes) +
                 aligned(ops.scratch_bytes(max_rows));
  needs.page = page_layout(config, mtp, ops).bytes;
  needs.slot = slot_layout(config, mtp, local, ops).bytes;
  return needs;
}

Result<MemoryPlan> plan_memory(const MemoryNeeds& needs, const ModelConfig& config,
                               const PlanRequest& request) {
  const auto invalid = [](std::string what) { return Error{ErrorCode::kInvalidArgument, std::move(what)}; };
  if (request.streams < 1 || request.streams > kMaxStreams) {
    return invalid("streams must be from 1 to " + std::to_string(kMaxStreams));
  }
  if (request.window < 0 || request.window > config.max_positions) {
    return invalid("a window of " + std::to_string(request.window) + " tokens: the model knows " +
                   std::to_string(config.max_positions) + " positions");
  }
  if (request.extra_slots < 0 || request.pool_tokens < 0)
    return invalid("extra slots and pool may not be negative");

  MemoryPlan plan;
  plan.needs = needs;
  plan.streams = request.streams;
  plan.available = request.available;
  plan.slots = request.streams + request.extra_slots;
  const uint64_t fixed =
      needs.weights_total() + needs.arenas + static_cast<uint64_t>(plan.slots) * needs.slot;
  const int64_t others = request.streams - 1;  // a page for each
  // A model without a DSA layer has pages of no bytes: then only the model's own limit counts.
  const uint64_t room = request.available > fixed ? request.available - fixed : 0;
  const int64_t fit =
      needs.page == 0 ? kMaxPages : static_cast<int64_t>(std::min<uint64_t>(room / needs.page, kMaxPages));
  if (request.available < fixed || fit < others + 1) {
    const uint64_t least = fixed + static_cast<uint64_t>(others + 1) * needs.page;
    return Error{ErrorCode::kOutOfMemory,
                 "the model does not fit with any window: weights take " + gib_text(needs.weights_total()) +
                     " and with " + std::to_string(request.streams) + " stream(s) at least " +
                     gib_text(least) + " are needed, but " + gib_text(request.available) + " are available"};
  }
  plan.largest_window =
      static_cast<int32_t>(std::min<int64_t>(config.max_positions, (fit - others) * kPageTokens));
  plan.window = request.window == 0 ? plan.largest_window : request.window;
  if (plan.window > plan.largest_window) {
    const uint64_t need = fixed + static_cast<uint64_t>(pages_of(plan.window) + others) * needs.page;
    return Error{ErrorCode::kOutOfMemory, "a window of " + std::to_string(plan.window) + " tokens with " +
                                              std::to_string(request.streams) + " stream(s) needs " +
                                              gib_text(need) + ", but " + gib_text(request.available) +
                                              " are available; the largest window that fits is " +
                                              std::to_string(plan.largest_window)};
  }
  const int64_t least = pages_of(plan.window) + others;
  const int64_t wanted =
      request.pool_tokens > 0 ? pages_of(request.pool_tokens) : request.streams * pages_of(plan.window);
  plan.pages = static_cast<int32_t>(std::max(least, std::min(fit, wanted)));
  plan.total = fixed + static_cast<uint64_t>(plan.pages) * needs.page;
  return plan;
}

std::string gib_text(uint64_t bytes) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return buffer;
}

}  // namespace firesteel
