// config.json on arbitrary text: an error of one line, or a config that keeps every promise the model relies
// on.
#include <cmath>
#include <cstdlib>

#include "model/config.h"
#include "ops/ops.h"

namespace {
void require(bool held) {
  if (!held) std::abort();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto parsed = firesteel::parse_model_config(text, "fuzz");
  if (!parsed.ok()) {
    require(parsed.error().message.rfind("fuzz: ", 0) == 0);
    require(parsed.error().message.find('\n') == std::string::npos);
    require(parsed.error().message.size() < 1000);
    return 0;
  }
  firesteel::ModelConfig& c = *parsed;
  const auto layers = static_cast<size_t>(c.layers);
  require(c.layers > 0 && c.layers <= 1024 && c.kinds.size() == layers && c.sparse_mlp.size() == layers &&
          c.shared_indexer.size() == layers);
  require(c.vocab > 1 && c.hidden > 0 && c.max_positions > 0 && c.hc_mult == 4 && c.hc_iters > 0);
  require(std::isfinite(c.rms_eps) && c.rms_eps > 0 && std::isfinite(c.hc_eps) && c.hc_eps > 0 &&
          c.swiglu_limit > 0);
  if (firesteel::dsa_layers(c, true) > 0) {
    require(c.kpool > 0 && firesteel::kPageTokens % c.kpool == 0 && c.index_topk % c.kpool == 0);
    require(firesteel::top_pools(c) > 0 && firesteel::top_pools(c) <= firesteel::kMaxTopPools);
    require(c.heads > 0 && c.qk_dim > 0 && c.v_dim > 0 && c.q_lora > 0 && c.kv_lora > 0);
  }
  if (firesteel::kda_layers(c) > 0) require(c.kda_heads > 0 && c.kda_dim > 0 && c.kda_taps > 0);
  for (size_t i = 0; i < layers; ++i) {
    if (!c.shared_indexer[i]) continue;
    require(i > 0 && c.kinds[i] == firesteel::LayerKind::kDsa &&
            c.kinds[i - 1] == firesteel::LayerKind::kDsa && !c.shared_indexer[i - 1]);
  }
  for (const int32_t id : c.eos_ids) require(id >= 0 && id < c.vocab);
  const firesteel::Status generation = firesteel::apply_generation_config(text, "fuzz", c);
  if (!generation.ok()) require(generation.error().message.find('\n') == std::string::npos);
  return 0;
}
