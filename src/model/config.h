// ModelConfig: config.json of a glm5_next checkpoint, checked. Plain value.
//
// Accepts the published nested form (text_config) and a flat one, both spellings of the KDA keys
// (linear_attn_config and linear_*), the three ways to give indexer_types. Anything missing without a sound
// default (index_kpool), an illegal shared-indexer pattern, an unknown layer type or quantization is
// kInvalidFile naming the key and the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace firesteel {

enum class LayerKind : uint8_t { kKda, kDsa };

struct ModelConfig {
  int32_t vocab = 0, hidden = 0, layers = 0, mtp_layers = 0;
  std::vector<LayerKind> kinds;      // [layers]
  std::vector<bool> sparse_mlp;      // [layers]: MoE
  std::vector<bool> shared_indexer;  // [layers]: DSA layer that reuses the previous layer's selection
  float rms_eps = 1e-5f, swiglu_limit = 10.0f;
  int32_t dense_width = 0, expert_width = 0, experts = 0, experts_per_token = 0, shared_experts = 0;
  int32_t groups = 1, top_groups = 1;
  bool norm_topk = true;
  float routed_factor = 1.0f;
  int32_t heads = 0, q_lora = 0, kv_lora = 0, qk_dim = 0, v_dim = 0;
  int32_t index_heads = 0, index_dim = 0, index_topk = 0, kpool = 0;
  int32_t kda_heads = 0, kda_dim = 0, kda_taps = 4;
  float kda_lower_bound = -5.0f;  // NaN = none: softplus gate
  int32_t hc_mult = 4, hc_iters = 20;
  float hc_eps = 1e-6f;
  int32_t max_positions = 0;
  std::vector<int32_t> eos_ids;  // config and generation_config together
  int32_t pad_id = -1, image_token_id = -1;
  std::string quant_method;  // "", "exl3", "fp8"
  bool tied_head = false;    // the head is the embedding matrix
  // generation_config.json; negative = not given
  double default_temperature = -1, default_top_p = -1;
  int32_t default_top_k = -1;
};

inline constexpr size_t kMaxConfigBytes = 16u << 20;

/// Pools that a row may select.
inline int32_t top_pools(const ModelConfig& c) { return c.kpool > 0 ? c.index_topk / c.kpool : 0; }
/// Layers with a latent cache (MTP included when `mtp`), and those of them that run an indexer.
int32_t dsa_layers(const ModelConfig& c, bool mtp);
int32_t indexer_layers(const ModelConfig& c, bool mtp);
int32_t kda_layers(const ModelConfig& c);

/// `path` names the file in messages.
Result<ModelConfig> parse_model_config(std::string_view json_text, const std::string& path);
/// Adds eos ids and sampling defaults of a generation_config.json.
Status apply_generation_config(std::string_view json_text, const std::string& path, ModelConfig& config);
/// Reads DIR/config.json and, if present, DIR/generation_config.json.
Result<ModelConfig> load_model_config(const std::string& dir);

}  // namespace firesteel
