// config.json of glm5_next: both layouts, all spellings, fallbacks, and every refusal as one line naming key
// and file.
#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

namespace firesteel::test {
namespace {

using Json = nlohmann::ordered_json;

/// Six layers with every feature, flat.
Json base_text() {
  return Json::parse(R"({
    "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 6, "num_nextn_predict_layers": 1,
    "layer_types": ["linear_attention", "deepseek_sparse_attention", "full_attention", "linear_attention",
                    "deepseek_sparse_attention", "linear_attention"],
    "indexer_types": ["full", "full", "shared", "full", "full", "full"],
    "mlp_layer_types": ["dense", "dense", "sparse", "sparse", "sparse", "sparse"],
    "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 0, "v_head_dim": 24,
    "index_n_heads": 8, "index_head_dim": 32, "index_topk": 16, "index_kpool": 4,
    "linear_num_heads": 4, "linear_head_dim": 16, "linear_conv_kernel_dim": 4, "linear_lower_bound": -5.0,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-5, "swiglu_limit": 1.0,
    "max_position_embeddings": 4096, "eos_token_id": [1, 2], "pad_token_id": 0, "hidden_act": "silu"})");
}

Json nested(Json text) {
  Json root;
  root["model_type"] = "glm5_next";
  root["image_token_id"] = 500;
  text["model_type"] = "glm5_next_text";
  root["text_config"] = std::move(text);
  return root;
}

Result<ModelConfig> parse(const Json& j) { return parse_model_config(j.dump(), "DIR/config.json"); }

ModelConfig good(const Json& j) {
  auto c = parse(j);
  if (!c.ok()) {
    ADD_FAILURE() << c.error().message;
    return {};
  }
  return *c;
}

/// The parse must fail with one line that names the file and `key`.
void expect_refused(const Json& j, const std::string& key, const std::string& words = "") {
  const auto c = parse(j);
  ASSERT_FALSE(c.ok()) << key;
  const std::string& m = c.error().message;
  EXPECT_TRUE(c.error().code == ErrorCode::kInvalidFile || c.error().code == ErrorCode::kUnsupported) << m;
  EXPECT_EQ(m.rfind("DIR/config.json: ", 0), 0u) << m;
  EXPECT_NE(m.find(key), std::string::npos) << m;
  EXPECT_NE(m.find(words), std::string::npos) << m;
  EXPECT_EQ(m.find('\n'), std::string::npos) << m;
}

Json with(const std::string& key, const Json& value) {
  Json j = base_text();
  j[key] = value;
  return j;
}
Json without(const std::string& key) {
  Json j = base_text();
  j.erase(key);
  return j;
}
Json kinds(std::vector<const char*> types, std::vector<const char*> indexers) {
  Json j = base_text();
  j["num_hidden_layers"] = types.size();
  j["layer_types"] = types;
  j["indexer_types"] = indexers;
  j["mlp_layer_types"] = std::vector<const char*>(types.size(), "sparse");
  return j;
}
constexpr const char* kKda = "linear_attention";
constexpr const char* kDsa = "deepseek_sparse_attention";

TEST(ModelConfig, FlatAndNestedAgree) {
  for (const Json& j : {base_text(), nested(base_text())}) {
    const ModelConfig c = good(j);
    EXPECT_EQ(c.vocab, 512);
    EXPECT_EQ(c.layers, 6);
    EXPECT_EQ(c.mtp_layers, 1);
    EXPECT_EQ(c.kinds, (std::vector<LayerKind>{LayerKind::kKda, LayerKind::kDsa, LayerKind::kDsa,
                                               LayerKind::kKda, LayerKind::kDsa, LayerKind::kKda}));
    EXPECT_EQ(c.shared_indexer, (std::vector<bool>{false, false, true, false, false, false}));
    EXPECT_EQ(c.sparse_mlp, (std::vector<bool>{false, false, true, true, true, true}));
    EXPECT_EQ(c.eos_ids, (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(c.v_dim, 24);
    EXPECT_EQ(top_pools(c), 4);
    EXPECT_EQ(dsa_layers(c, true), 4);
    EXPECT_EQ(indexer_layers(c, true), 3);
    EXPECT_EQ(indexer_layers(c, false), 2);
    EXPECT_EQ(kda_layers(c), 3);
    EXPECT_EQ(c.swiglu_limit, 1.0f);
  }
  EXPECT_EQ(good(nested(base_text())).image_token_id, 500);
}

TEST(ModelConfig, KdaKeysInBothSpellings) {
  Json j = base_text();
  for (const char* key :
       {"linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim", "linear_lower_bound"})
    j.erase(key);
  j["linear_attn_config"] = {
      {"num_heads", 8},           {"head_dim", 32},          {"short_conv_kernel_size", 3},
      {"gate_lower_bound", -4.0}, {"kda_layers", {0, 3, 5}}, {"full_attn_layers", {1, 2, 4}}};
  const ModelConfig c = good(j);
  EXPECT_EQ(c.kda_heads, 8);
  EXPECT_EQ(c.kda_dim, 32);
  EXPECT_EQ(c.kda_taps, 3);
  EXPECT_EQ(c.kda_lower_bound, -4.0f);
  j["linear_num_heads"] = 4;
  expect_refused(j, "linear_num_heads", "contradicts");
}

TEST(ModelConfig, LowerBoundNullMeansSoftplusUnlessSafe) {
  EXPECT_TRUE(std::isnan(good(with("linear_lower_bound", nullptr)).kda_lower_bound));
  EXPECT_EQ(good(without("linear_lower_bound")).kda_lower_bound, -5.0f);
  Json j = without("linear_lower_bound");
  j["linear_attn_config"] = {{"gate_lower_bound", nullptr}};
  EXPECT_EQ(good(j).kda_lower_bound, -5.0f);  // safe_gate defaults to true
  j["linear_attn_config"]["safe_gate"] = false;
  EXPECT_TRUE(std::isnan(good(j).kda_lower_bound));
  j["linear_lower_bound"] = -5.0;
  expect_refused(j, "linear_lower_bound", "contradicts");
  expect_refused(with("linear_lower_bound", 0.5), "linear_lower_bound");
}

TEST(ModelConfig, KdaLayerListsMustAgreeWithLayerTypes) {
  Json j = base_text();
  j["linear_attn_config"] = {{"kda_layers", {0, 3, 4}}};
  expect_refused(j, "linear_attn_config.kda_layers", "layer 4");
  j["linear_attn_config"] = {{"full_attn_layers", {1, 2}}};
  expect_refused(j, "full_attn_layers", "layer 4");
  j["linear_attn_config"] = {{"kda_layers", {0, 3, 99}}};
  expect_refused(j, "kda_layers");
}

TEST(ModelConfig, Fallbacks) {
  Json j = base_text();
  for (const char* key : {"layer_types", "indexer_types", "mlp_layer_types"}) j.erase(key);
  const ModelConfig c = good(j);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(c.kinds[static_cast<size_t>(i)], i % 4 == 3 ? LayerKind::kDsa : LayerKind::kKda);
    EXPECT_EQ(c.sparse_mlp[static_cast<size_t>(i)], i >= 3);
    EXPECT_FALSE(c.shared_indexer[static_cast<size_t>(i)]);
  }
  j["first_k_dense_replace"] = 1;
  EXPECT_TRUE(good(j).sparse_mlp[1]);
}

TEST(ModelConfig, IndexerTypesFromPatternAndFrequency) {
  Json j = without("indexer_types");
  j["index_topk_pattern"] = "FFSFFF";
  EXPECT_EQ(good(j).shared_indexer, (std::vector<bool>{false, false, true, false, false, false}));
  j["index_topk_pattern"] = "FFXFFF";
  expect_refused(j, "index_topk_pattern");
  j["index_topk_pattern"] = "FFS";
  expect_refused(j, "index_topk_pattern", "3 entries for 6 layers");
  // Frequency 2, offset 2: full where max(i-1, 0) is even, so layer 2 shares and layer 4's entry would too.
  Json f = kinds({kKda, kDsa, kDsa, kKda, kKda, kDsa}, {});
  f.erase("indexer_types");
  f["index_topk_freq"] = 2;
  EXPECT_EQ(good(f).shared_indexer, (std::vector<bool>{false, false, true, false, false, false}));
  f["index_skip_topk_offset"] = 1;  // full where i is even: layer 1 would share after KDA
  expect_refused(f, "index_topk_freq", "layer 1");
}

TEST(ModelConfig, Trap40IllegalSharedPatterns) {
  expect_refused(kinds({kDsa, kDsa, kDsa}, {"full", "shared", "shared"}), "indexer_types", "layer 2");
  expect_refused(kinds({kDsa, kKda, kDsa}, {"full", "full", "shared"}), "indexer_types", "layer 2");
  expect_refused(kinds({kDsa, kDsa}, {"shared", "full"}), "indexer_types", "layer 0");
  EXPECT_TRUE(good(kinds({kDsa, kDsa, kDsa}, {"full", "shared", "full"})).shared_indexer[1]);
}

TEST(ModelConfig, Trap2MissingKpoolIsAnError) {
  expect_refused(without("index_kpool"), "index_kpool", "missing");
  expect_refused(with("index_kpool", 0), "index_kpool");
  expect_refused(with("index_kpool", 3), "index_kpool", "divide");
  expect_refused(with("index_topk", 18), "index_topk", "multiple");
}

TEST(ModelConfig, UnknownKindsAreNamed) {
  Json j = base_text();
  j["layer_types"][2] = "sliding\nattention";
  expect_refused(j, "layer_types", "sliding?attention");
  j = base_text();
  j["mlp_layer_types"][0] = "wide";
  expect_refused(j, "mlp_layer_types", "wide");
  j = base_text();
  j["indexer_types"][0] = "half";
  expect_refused(j, "indexer_types", "half");
  expect_refused(with("model_type", "glm4_moe"), "model_type", "glm4_moe");
  expect_refused(with("hidden_act", "gelu"), "hidden_act");
  expect_refused(with("scoring_func", "softmax"), "scoring_func");
  expect_refused(with("mhc", false), "mhc");
  expect_refused(with("attention_bias", true), "attention_bias");
  expect_refused(with("index_kpool_always_select_tail", false), "index_kpool_always_select_tail");
}

TEST(ModelConfig, QuantizationMethods) {
  Json j = nested(base_text());
  j["quantization_config"] = {{"quant_method", "exl3"}, {"bits", 4.0}};
  EXPECT_EQ(good(j).quant_method, "exl3");
  j["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}};
  EXPECT_EQ(good(j).quant_method, "fp8");
  j["quantization_config"]["weight_block_size"] = {64, 128};
  expect_refused(j, "quantization_config.weight_block_size");
  j["quantization_config"] = {{"quant_method", "awq"}};
  expect_refused(j, "quantization_config.quant_method", "awq");
  j["quantization_config"] = Json::array();
  expect_refused(j, "quantization_config");
}

TEST(ModelConfig, SizesThatContradictEachOther) {
  expect_refused(with("num_key_value_heads", 2), "num_key_value_heads");
  expect_refused(with("qk_rope_head_dim", 64), "qk_rope_head_dim");
  expect_refused(with("num_experts_per_tok", 9), "num_experts_per_tok");
  expect_refused(with("n_group", 3), "n_group");
  expect_refused(with("n_group", 8), "n_group");
  Json j = with("n_group", 4);
  j["num_experts_per_tok"] = 3;
  expect_refused(j, "topk_group");
  expect_refused(with("hc_mult", 2), "hc_mult");
  expect_refused(with("num_nextn_predict_layers", 2), "num_nextn_predict_layers");
  expect_refused(with("layer_types", Json::array({kKda})), "layer_types", "1 entries for 6");
}

TEST(ModelConfig, AbsurdValuesAreRefusedWithoutAllocating) {
  const char* keys[] = {"vocab_size",
                        "hidden_size",
                        "num_hidden_layers",
                        "intermediate_size",
                        "moe_intermediate_size",
                        "n_routed_experts",
                        "num_experts_per_tok",
                        "num_attention_heads",
                        "q_lora_rank",
                        "kv_lora_rank",
                        "qk_nope_head_dim",
                        "v_head_dim",
                        "index_n_heads",
                        "index_head_dim",
                        "index_topk",
                        "index_kpool",
                        "linear_num_heads",
                        "linear_head_dim",
                        "linear_conv_kernel_dim",
                        "max_position_embeddings",
                        "hc_sinkhorn_iters"};
  for (const char* key : keys) {
    SCOPED_TRACE(key);
    for (const Json& bad :
         {Json(-1), Json(0), Json(2147483648LL), Json(9223372036854775807LL), Json(18446744073709551615ULL),
          Json(1.5), Json("64"), Json(true), Json::array({1})}) {
      expect_refused(with(key, bad), key);
    }
  }
  for (const char* key : {"rms_norm_eps", "hc_eps", "swiglu_limit", "routed_scaling_factor"}) {
    SCOPED_TRACE(key);
    expect_refused(with(key, "1"), key);
    expect_refused(with(key, 1e300), key);
  }
  expect_refused(with("rms_norm_eps", 0), "rms_norm_eps");
  expect_refused(with("eos_token_id", Json::array({512})), "eos_token_id");
  expect_refused(with("eos_token_id", -1), "eos_token_id");
  expect_refused(with("pad_token_id", 512), "pad_token_id");
}

TEST(ModelConfig, RequiredKeysAreNamed) {
  for (const char* key : {"vocab_size",
                          "hidden_size",
                          "num_hidden_layers",
                          "intermediate_size",
                          "moe_intermediate_size",
                          "n_routed_experts",
                          "num_experts_per_tok",
                          "routed_scaling_factor",
                          "num_attention_heads",
                          "q_lora_rank",
                          "kv_lora_rank",
                          "qk_nope_head_dim",
                          "v_head_dim",
                          "index_n_heads",
                          "index_head_dim",
                          "index_topk",
                          "linear_num_heads",
                          "linear_head_dim",
                          "swiglu_limit",
                          "max_position_embeddings"}) {
    expect_refused(without(key), key, "missing");
  }
}

TEST(ModelConfig, NotJson) {
  for (const char* text :
       {"", "{", "[]", "null", "{\"vocab_size\": NaN}", "{\"vocab_size\": 1e999}", "{\"a\": \"\xff\"}"}) {
    const auto c = parse_model_config(text, "DIR/config.json");
    ASSERT_FALSE(c.ok()) << text;
    EXPECT_EQ(c.error().code, ErrorCode::kInvalidFile);
    EXPECT_EQ(c.error().message.rfind("DIR/config.json: ", 0), 0u) << c.error().message;
  }
  EXPECT_FALSE(parse_model_config(std::string(200000, '['), "DIR/config.json").ok());
  Json j;
  j["text_config"] = 5;
  expect_refused(j, "text_config");
}

TEST(ModelConfig, GenerationConfigAddsDefaults) {
  ModelConfig c = good(base_text());
  ASSERT_TRUE(
      apply_generation_config(R"({"eos_token_id": [2, 7], "temperature": 0.6, "top_p": 0.9, "top_k": 40})",
                              "DIR/generation_config.json", c)
          .ok());
  EXPECT_EQ(c.eos_ids, (std::vector<int32_t>{1, 2, 7}));
  EXPECT_EQ(c.default_temperature, 0.6);
  EXPECT_EQ(c.default_top_k, 40);
  const Status bad = apply_generation_config(R"({"top_p": 1.5})", "DIR/generation_config.json", c);
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("top_p"), std::string::npos);
}

TEST(ModelConfig, LoadsTheBundledModel) {
  const auto c = load_model_config(FIRESTEEL_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(c.ok()) << c.error().message;
  EXPECT_EQ(c->layers, 8);
  EXPECT_EQ(c->mtp_layers, 1);
  EXPECT_EQ(c->quant_method, "exl3");
  EXPECT_EQ(c->eos_ids, (std::vector<int32_t>{4060, 4067, 4069}));
  EXPECT_EQ(c->default_top_p, 0.95);
  const auto missing = load_model_config("/nonexistent");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace firesteel::test
