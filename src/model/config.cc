#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/config_layers.h"
#include "model/json_reader.h"
#include "ops/ops.h"

namespace firesteel {
namespace {

// Bounds far above any real model, and low enough that products of a few of them stay inside 64 bits (and
// those of a width and a head count inside 32).
constexpr int32_t kMaxVocab = 1 << 22;
constexpr int32_t kMaxWidth = 1 << 18;
constexpr int32_t kMaxLayers = 1024;
constexpr int32_t kMaxHeads = 1024;
constexpr int32_t kMaxHeadDim = 1024;
constexpr int32_t kMaxExperts = 4096;
constexpr int32_t kMaxPositions = 1 << 24;

void read_sizes(JsonReader& r, ModelConfig& c) {
  c.vocab = r.need_int("vocab_size", 2, kMaxVocab);
  c.hidden = r.need_int("hidden_size", 1, kMaxWidth);
  c.layers = r.need_int("num_hidden_layers", 1, kMaxLayers);
  c.mtp_layers = r.int_or("num_nextn_predict_layers", 0, 0, kMaxLayers);
  if (c.mtp_layers > 1) {
    r.fail("num_nextn_predict_layers", "only one multi-token prediction layer is known",
           ErrorCode::kUnsupported);
  }
  c.rms_eps = static_cast<float>(r.number_or("rms_norm_eps", 1e-5, 1e-12, 1e-1));
  c.max_positions = r.need_int("max_position_embeddings", 1, kMaxPositions);
  c.tied_head = r.bool_or("tie_word_embeddings", false);
}

void read_mlp(JsonReader& r, ModelConfig& c) {
  c.swiglu_limit = r.is_null("swiglu_limit") ? std::numeric_limits<float>::infinity()
                                             : static_cast<float>(r.need_number("swiglu_limit", 1e-6, 1e30));
  const bool dense = std::find(c.sparse_mlp.begin(), c.sparse_mlp.end(), false) != c.sparse_mlp.end();
  const bool sparse =
      c.mtp_layers > 0 || std::find(c.sparse_mlp.begin(), c.sparse_mlp.end(), true) != c.sparse_mlp.end();
  if (dense) c.dense_width = r.need_int("intermediate_size", 1, kMaxWidth);
  if (!sparse) return;
  c.expert_width = r.need_int("moe_intermediate_size", 1, kMaxWidth);
  c.experts = r.need_int("n_routed_experts", 1, kMaxExperts);
  c.experts_per_token = r.need_int("num_experts_per_tok", 1, c.experts);
  c.shared_experts = r.int_or("n_shared_experts", 1, 0, 64);
  c.groups = r.int_or("n_group", 1, 1, c.experts);
  c.top_groups = r.int_or("topk_group", 1, 1, c.groups);
  c.norm_topk = r.bool_or("norm_topk_prob", true);
  c.routed_factor = static_cast<float>(r.need_number("routed_scaling_factor", -1e6, 1e6));
  if (c.experts % c.groups != 0) {
    r.fail("n_group",
           std::to_string(c.groups) + " groups do not divide " + std::to_string(c.experts) + " experts");
  } else if (c.groups > 1 && c.experts / c.groups < 2) {
    r.fail("n_group", "a group needs at least two experts");
  } else if (c.experts / c.groups * c.top_groups < c.experts_per_token) {
    r.fail("topk_group", "the kept groups hold fewer experts than num_experts_per_tok");
  }
}

void read_dsa(JsonReader& r, ModelConfig& c) {
  c.heads = r.need_int("num_attention_heads", 1, kMaxHeads);
  const int32_t kv_heads = r.int_or("num_key_value_heads", c.heads, 1, kMaxHeads);
  if (kv_heads != c.heads)
    r.fail("num_key_value_heads", "must equal num_attention_heads", ErrorCode::kUnsupported);
  c.q_lora = r.need_int("q_lora_rank", 1, kMaxWidth);
  c.kv_lora = r.need_int("kv_lora_rank", 1, kMaxWidth);
  c.qk_dim = r.need_int("qk_nope_head_dim", 1, kMaxHeadDim);
  c.v_dim = r.need_int("v_head_dim", 1, kMaxHeadDim);
  if (r.int_or("qk_rope_head_dim", 0, 0, kMaxHeadDim) != 0) {
    r.fail("qk_rope_head_dim", "must be 0: this architecture has no rotary part", ErrorCode::kUnsupported);
  }
  c.index_heads = r.need_int("index_n_heads", 1, kMaxHeads);
  c.index_dim = r.need_int("index_head_dim", 1, kMaxHeadDim);
  c.index_topk = r.need_int("index_topk", 1, kMaxPositions);
  // Readers of this architecture assume 16, 4 or 1 when it is absent; a wrong guess gives fluent nonsense.
  c.kpool = r.need_int("index_kpool", 1, kPageTokens);
  if (kPageTokens % c.kpool != 0) {
    r.fail("index_kpool", "must divide " + std::to_string(kPageTokens), ErrorCode::kUnsupported);
  } else if (c.index_topk % c.kpool != 0) {
    r.fail("index_topk",
           std::to_string(c.index_topk) + " is not a multiple of index_kpool " + std::to_string(c.kpool));
  } else if (c.index_topk / c.kpool > kMaxTopPools) {
    r.fail("index_topk", "selects more than " + std::to_string(kMaxTopPools) + " pools",
           ErrorCode::kUnsupported);
  }
}

/// The KDA keys have a published spelling (linear_attn_config) and a flat one; both may be present and must
/// agree.
struct KdaKeys {
  const char *nested, *flat;
};

int32_t kda_int(JsonReader& text, JsonReader* kda, KdaKeys keys, int32_t fallback, int32_t hi) {
  const bool has_nested = kda != nullptr && kda->has(keys.nested) && !kda->is_null(keys.nested);
  const bool has_flat = text.has(keys.flat) && !text.is_null(keys.flat);
  if (!has_nested) {
    return fallback > 0 ? text.int_or(keys.flat, fallback, 1, hi) : text.need_int(keys.flat, 1, hi);
  }
  const int32_t nested = kda->need_int(keys.nested, 1, hi);
  if (has_flat && text.need_int(keys.flat, 1, hi) != nested) {
    text.fail(keys.flat, std::string("contradicts linear_attn_config.") + keys.nested);
  }
  return nested;
}

float read_lower_bound(JsonReader& text, JsonReader* kda) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  constexpr double kLowest = -80.0;  // exp(-80) is still a normal number
  float nested = -5.0f, flat = -5.0f;
  const bool has_nested = kda != nullptr && kda->has("gate_lower_bound");
  const bool has_flat = text.has("linear_lower_bound");
  if (has_nested) {
    if (!kda->is_null("gate_lower_bound")) {
      nested = static_cast<float>(kda->need_number("gate_lower_bound", kLowest, -1e-3));
    } else if (!kda->bool_or("safe_gate", true)) {
      nested = kNone;
    }
  }
  if (has_flat) {
    flat = text.is_null("linear_lower_bound")
               ? kNone
               : static_cast<float>(text.need_number("linear_lower_bound", kLowest, -1e-3));
  }
  if (has_nested && has_flat && nested != flat && !(std::isnan(nested) && std::isnan(flat))) {
    text.fail("linear_lower_bound", "contradicts linear_attn_config.gate_lower_bound");
  }
  return has_nested ? nested : flat;
}

void read_kda(JsonReader& text, JsonReader* kda, ModelConfig& c) {
  c.kda_heads = kda_int(text, kda, {"num_heads", "linear_num_heads"}, 0, kMaxHeads);
  c.kda_dim = kda_int(text, kda, {"head_dim", "linear_head_dim"}, 0, kMaxHeadDim);
  c.kda_taps = kda_int(text, kda, {"short_conv_kernel_size", "linear_conv_kernel_dim"}, 4, 16);
  c.kda_lower_bound = read_lower_bound(text, kda);
}

void read_hyper(JsonReader& r, ModelConfig& c) {
  c.hc_mult = r.int_or("hc_mult", 4, 1, 64);
  if (c.hc_mult != 4) r.fail("hc_mult", "only 4 residual streams are known", ErrorCode::kUnsupported);
  c.hc_iters = r.int_or("hc_sinkhorn_iters", 20, 1, 1000);
  c.hc_eps = static_cast<float>(r.number_or("hc_eps", 1e-6, 1e-12, 1e-1));
}

/// Keys whose other values would change the arithmetic in ways nobody has published.
void check_fixed(JsonReader& r) {
  const auto word = [&](const char* key, const char* want) {
    const std::string got = r.string_or(key, want);
    if (got != want)
      r.fail(key, in_quotes(got) + " is unknown; only \"" + want + "\" is", ErrorCode::kUnsupported);
  };
  const auto flag = [&](const char* key, bool want) {
    if (r.bool_or(key, want) != want) {
      r.fail(key, std::string("must be ") + (want ? "true" : "false"), ErrorCode::kUnsupported);
    }
  };
  word("hidden_act", "silu");
  word("scoring_func", "sigmoid");
  word("topk_method", "noaux_tc");
  flag("attention_bias", false);
  flag("mla_use_nope", true);
  flag("index_kpool_compress", true);
  flag("index_kpool_always_select_tail", true);
  flag("mhc", true);
}

void read_eos(JsonReader& r, const nlohmann::ordered_json& object, ModelConfig& c) {
  const auto it = object.find("eos_token_id");
  if (it == object.end() || it->is_null()) return;
  std::vector<int32_t> ids;
  if (it->is_array()) {
    if (auto list = r.ints("eos_token_id", 4096, 0, c.vocab - 1)) ids = *std::move(list);
  } else {
    ids.push_back(r.need_int("eos_token_id", 0, c.vocab - 1));
  }
  for (const int32_t id : ids) {
    if (std::find(c.eos_ids.begin(), c.eos_ids.end(), id) == c.eos_ids.end()) c.eos_ids.push_back(id);
  }
}

Status read_quantization(const nlohmann::ordered_json& root, const nlohmann::ordered_json& text,
                         const std::string& path, ModelConfig& c) {
  const nlohmann::ordered_json* q = nullptr;
  for (const nlohmann::ordered_json* where : {&root, &text}) {
    const auto it = where->find("quantization_config");
    if (it != where->end() && !it->is_null()) {
      q = &*it;
      break;
    }
  }
  if (q == nullptr) return Status::success();
  const auto bad = [&](const std::string& what, ErrorCode code) {
    return Error{code, path + ": quantization_config" + what};
  };
  if (!q->is_object()) return bad(": must be an object", ErrorCode::kInvalidFile);
  JsonReader r(*q, path, "quantization_config.");
  c.quant_method = r.string_or("quant_method", "");
  if (c.quant_method != "exl3" && c.quant_method != "fp8") {
    r.fail("quant_method", in_quotes(c.quant_method) + " is unknown; \"exl3\" and \"fp8\" are read",
           ErrorCode::kUnsupported);
  }
  if (c.quant_method == "fp8") {
    const auto block = r.ints("weight_block_size", 2, 1, 1 << 20);
    if (block && *block != std::vector<int32_t>{128, 128}) {
      r.fail("weight_block_size", "only blocks of 128 by 128 are read", ErrorCode::kUnsupported);
    }
    const std::string fmt = r.string_or("fmt", "e4m3");
    if (fmt != "e4m3")
      r.fail("fmt", in_quotes(fmt) + " is unknown; only \"e4m3\" is read", ErrorCode::kUnsupported);
  }
  return r.status();
}

Status check_model_type(JsonReader& r, const char* want) {
  const std::string type = r.string_or("model_type", want);
  if (type != want && type != "glm5_next" && type != "glm5_next_text") {
    r.fail("model_type", in_quotes(type) + " is not served; only glm5_next is", ErrorCode::kUnsupported);
  }
  return r.status();
}

int32_t count(const ModelConfig& c, bool mtp, bool indexers_only) {
  int32_t n = mtp ? c.mtp_layers : 0;
  for (size_t i = 0; i < c.kinds.size(); ++i) {
    n += c.kinds[i] == LayerKind::kDsa && !(indexers_only && c.shared_indexer[i]) ? 1 : 0;
  }
  return n;
}

}  // namespace

int32_t dsa_layers(const ModelConfig& c, bool mtp) { return count(c, mtp, false); }
int32_t indexer_layers(const ModelConfig& c, bool mtp) { return count(c, mtp, true); }
int32_t kda_layers(const ModelConfig& c) {
  return static_cast<int32_t>(std::count(c.kinds.begin(), c.kinds.end(), LayerKind::kKda));
}

Result<ModelConfig> parse_model_config(std::string_view json_text, const std::string& path) {
  ASSIGN_OR_RETURN(const nlohmann::ordered_json root, parse_json_object(json_text, kMaxConfigBytes, path));
  const auto nested = root.find("text_config");
  const bool is_nested = nested != root.end() && !nested->is_null();
  if (is_nested && !nested->is_object()) {
    return Error{ErrorCode::kInvalidFile, path + ": text_config: must be an object"};
  }
  const nlohmann::ordered_json& text = is_nested ? *nested : root;
  JsonReader top(root, path, "");
  JsonReader r(text, path, is_nested ? "text_config." : "");
  RETURN_IF_ERROR(check_model_type(top, "glm5_next"));
  RETURN_IF_ERROR(check_model_type(r, "glm5_next_text"));

  ModelConfig c;
  read_sizes(r, c);
  RETURN_IF_ERROR(r.status());

  std::optional<JsonReader> kda;
  if (const auto it = text.find("linear_attn_config"); it != text.end() && !it->is_null()) {
    if (!it->is_object()) {
      r.fail("linear_attn_config", "must be an object");
      return std::move(r.status()).error();
    }
    kda.emplace(*it, path, std::string(is_nested ? "text_config." : "") + "linear_attn_config.");
  }
  JsonReader* kda_reader = kda ? &*kda : nullptr;
  read_layer_lists(r, kda_reader, c);
  RETURN_IF_ERROR(r.status());
  if (kda) RETURN_IF_ERROR(kda->status());

  check_fixed(r);
  read_mlp(r, c);
  if (dsa_layers(c, true) > 0) read_dsa(r, c);
  if (kda_layers(c) > 0) read_kda(r, kda_reader, c);
  read_hyper(r, c);
  read_eos(r, text, c);
  c.pad_id = r.int_or("pad_token_id", -1, 0, c.vocab - 1);
  RETURN_IF_ERROR(r.status());
  if (kda) RETURN_IF_ERROR(kda->status());

  if (is_nested) read_eos(top, root, c);
  c.image_token_id = top.int_or("image_token_id", -1, 0, c.vocab - 1);
  RETURN_IF_ERROR(top.status());
  RETURN_IF_ERROR(read_quantization(root, text, path, c));
  return c;
}

Status apply_generation_config(std::string_view json_text, const std::string& path, ModelConfig& config) {
  ASSIGN_OR_RETURN(const nlohmann::ordered_json root, parse_json_object(json_text, kMaxConfigBytes, path));
  JsonReader r(root, path, "");
  read_eos(r, root, config);
  config.default_temperature = r.number_or("temperature", -1, 0, 100);
  config.default_top_p = r.number_or("top_p", -1, 0, 1);
  config.default_top_k = r.int_or("top_k", -1, 0, std::numeric_limits<int32_t>::max());
  return r.status();
}

Result<ModelConfig> load_model_config(const std::string& dir) {
  const std::string path = dir + "/config.json";
  ASSIGN_OR_RETURN(const std::string text, read_small_file(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(ModelConfig config, parse_model_config(text, path));
  const std::string generation_path = dir + "/generation_config.json";
  auto generation = read_small_file(generation_path, kMaxConfigBytes);
  if (generation.ok()) {
    RETURN_IF_ERROR(apply_generation_config(*generation, generation_path, config));
  } else if (generation.error().code != ErrorCode::kNotFound) {
    return std::move(generation).error();
  }
  return config;
}

}  // namespace firesteel
