#include "model/synthetic.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace firesteel {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr char kName[] = "glm-5.3-flash";
constexpr int32_t kLayers = 45, kDenseLayers = 3, kHidden = 4096, kVocab = 154880, kExperts = 288;

bool is_dsa(int32_t layer) { return layer % 4 == 3; }

/// The published config.json, cut to its first layers (spec/model.md 1.2).
ordered_json config_of(int32_t layers) {
  ordered_json kinds = ordered_json::array(), mlps = ordered_json::array(), indexers = ordered_json::array();
  for (int32_t i = 0; i < layers; ++i) {
    kinds.push_back(is_dsa(i) ? "deepseek_sparse_attention" : "linear_attention");
    mlps.push_back(i < kDenseLayers ? "dense" : "sparse");
    indexers.push_back("full");
  }
  const ordered_json text = {
      {"model_type", "glm5_next_text"},
      {"vocab_size", kVocab},
      {"hidden_size", kHidden},
      {"num_hidden_layers", layers},
      {"layer_types", kinds},
      {"mlp_layer_types", mlps},
      {"indexer_types", indexers},
      {"rms_norm_eps", 1e-5},
      {"hidden_act", "silu"},
      {"swiglu_limit", 10.0},
      {"intermediate_size", 12288},
      {"moe_intermediate_size", 2048},
      {"n_routed_experts", kExperts},
      {"num_experts_per_tok", 8},
      {"n_shared_experts", 1},
      {"n_group", 1},
      {"topk_group", 1},
      {"norm_topk_prob", true},
      {"routed_scaling_factor", 2.5},
      {"scoring_func", "sigmoid"},
      {"num_attention_heads", 64},
      {"num_key_value_heads", 64},
      {"q_lora_rank", 1536},
      {"kv_lora_rank", 512},
      {"qk_nope_head_dim", 256},
      {"qk_rope_head_dim", 0},
      {"v_head_dim", 256},
      {"index_n_heads", 32},
      {"index_head_dim", 128},
      {"index_topk", 2048},
      {"index_kpool", 4},
      {"index_kpool_always_select_tail", true},
      {"index_kpool_compress", true},
      {"linear_attn_config",
       {{"num_heads", 64}, {"head_dim", 128}, {"short_conv_kernel_size", 4}, {"gate_lower_bound", -5.0}}},
      {"hc_mult", 4},
      {"hc_sinkhorn_iters", 20},
      {"hc_eps", 1e-6},
      {"num_nextn_predict_layers", 0},
      {"max_position_embeddings", 1048576},
      {"tie_word_embeddings", false},
      {"pad_token_id", 154820},
      {"eos_token_id", {154820, 154827, 154829}}};
  return {{"model_type", "glm5_next"},
          {"image_token_id", 154854},
          {"quantization_config", {{"quant_method", "exl3"}, {"bits", 4}, {"codebook", "mcg"}}},
          {"text_config", text}};
}

/// Names, types and shapes of a checkpoint whose routed experts are EXL3 (spec/model.md 4.2,
/// spec/exl3.md 4.2).
class Headers {
 public:
  explicit Headers(int32_t layers) {
    const std::string text = "model.language_model.";
    add("lm_head.weight", "BF16", {kVocab, kHidden});
    add(text + "embed_tokens.weight", "BF16", {kVocab, kHidden});
    add(text + "norm.weight", "BF16", {kHidden});
    for (int32_t i = 0; i < layers; ++i) layer(text + "layers." + std::to_string(i) + ".", i);
  }

  std::string json() const { return tensors_.dump(); }
  uint64_t data_bytes() const { return end_; }

 private:
  void add(const std::string& name, const char* dtype, std::vector<int64_t> shape) {
    uint64_t bytes = std::strcmp(dtype, "F32") == 0 || std::strcmp(dtype, "I32") == 0 ? 4 : 2;
    for (const int64_t side : shape) bytes *= static_cast<uint64_t>(side);
    tensors_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {end_, end_ + bytes}}};
    end_ += bytes;
  }
  void matrix(const std::string& name, int64_t n, int64_t k) { add(name + ".weight", "BF16", {n, k}); }
  void exl3(const std::string& name, int64_t n, int64_t k) {
    add(name + ".trellis", "I16", {k / 16, n / 16, 64});
    add(name + ".suh", "F16", {k});
    add(name + ".svh", "F16", {n});
    add(name + ".mcg", "I32", {1});
  }

  void layer(const std::string& at, int32_t index) {
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      add(at + norm + ".weight", "BF16", {kHidden});
    for (const char* site : {"hc_attn", "hc_ffn"}) {
      add(at + site + "_fn", "BF16", {24, 4 * kHidden});
      add(at + site + "_base", "F32", {24});
      add(at + site + "_scale", "F32", {3});
    }
    is_dsa(index) ? dsa(at + "self_attn.") : kda(at + "self_attn.");
    const std::string mlp = at + "mlp.";
    if (index < kDenseLayers) {
      three(mlp, 12288, [&](const std::string& name, int64_t n, int64_t k) { matrix(name, n, k); });
      return;
    }
    matrix(mlp + "gate", kExperts, kHidden);
    add(mlp + "gate.e_score_correction_bias", "F32", {kExperts});
    three(mlp + "shared_experts.", 2048,
          [&](const std::string& name, int64_t n, int64_t k) { matrix(name, n, k); });
    for (int32_t e = 0; e < kExperts; ++e)
      three(mlp + "experts." + std::to_string(e) + ".", 2048,
            [&](const std::string& name, int64_t n, int64_t k) { exl3(name, n, k); });
  }
  template <typename Fn>
  void three(const std::string& at, int64_t width, Fn&& one) {
    one(at + "gate_proj", width, kHidden);
    one(at + "up_proj", width, kHidden);
    one(at + "down_proj", kHidden, width);
  }
  void kda(const std::string& at) {
    for (const char* name : {"q", "k", "v"}) {
      matrix(at + name + "_proj", 8192, kHidden);
      add(at + name + "_conv1d.weight", "BF16", {8192, 1, 4});
    }
    for (const char* name : {"f", "g"}) {
      matrix(at + name + "_a_proj", 128, kHidden);
      matrix(at + name + "_b_proj", 8192, 128);
    }
    matrix(at + "b_proj", 64, kHidden);
    add(at + "A_log", "F32", {64});
    add(at + "dt_bias", "F32", {8192});
    add(at + "o_norm.weight", "BF16", {128});
    matrix(at + "o_proj", kHidden, 8192);
  }
  void dsa(const std::string& at) {
    matrix(at + "q_a_proj", 1536, kHidden);
    add(at + "q_a_layernorm.weight", "BF16", {1536});
    matrix(at + "q_b_proj", 16384, 1536);
    matrix(at + "kv_a_proj_with_mqa", 512, kHidden);
    add(at + "kv_a_layernorm.weight", "BF16", {512});
    matrix(at + "kv_b_proj", 32768, 512);
    matrix(at + "o_proj", kHidden, 16384);
    matrix(at + "indexer.wq_b", 4096, 1536);
    matrix(at + "indexer.wk", 128, kHidden);
    matrix(at + "indexer.weights_proj", 32, kHidden);
    add(at + "indexer.k_norm.weight", "BF16", {128});
    add(at + "indexer.k_norm.bias", "BF16", {128});
    add(at + "indexer.index_kpool_compress_ape", "BF16", {4, 128});
    add(at + "indexer.index_kpool_compress_gate", "BF16", {128, kHidden});
  }

  nlohmann::json tensors_ = nlohmann::json::object();  // not ordered_json, whose look-up walks all of them
  uint64_t end_ = 0;
};

Error io_error(const std::string& what) { return Error{ErrorCode::kIo, what + ": " + std::strerror(errno)}; }

/// A folder that goes with this object.
struct TemporaryFolder {
  fs::path path;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
};

Status write_headers(const fs::path& dir, int32_t layers) {
  {
    std::ofstream config(dir / "config.json");
    config << config_of(layers).dump(1);
    if (!config.good()) return io_error((dir / "config.json").string());
  }
  const Headers headers(layers);
  const std::string json = headers.json();
  const fs::path file = dir / "model.safetensors";
  {
    std::ofstream out(file, std::ios::binary);
    const uint64_t length = json.size();
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out.write(json.data(), static_cast<std::streamsize>(json.size()));
    if (!out.good()) return io_error(file.string());
  }
  std::error_code failed;
  fs::resize_file(file, 8 + json.size() + headers.data_bytes(), failed);
  if (failed) return Error{ErrorCode::kIo, file.string() + ": " + failed.message()};
  return {};
}

}  // namespace

Result<SyntheticShape> parse_synthetic(std::string_view text) {
  SyntheticShape shape{kName, kLayers};
  const std::string_view name = text.substr(0, text.find(':'));
  constexpr std::string_view kOption = ":layers=";
  std::string_view rest = text.substr(name.size());
  bool right = name == kName;
  if (right && !rest.empty()) {
    right = rest.starts_with(kOption);
    if (right) {
      rest.remove_prefix(kOption.size());
      const auto [end, failed] = std::from_chars(rest.data(), rest.data() + rest.size(), shape.layers);
      right = failed == std::errc() && end == rest.data() + rest.size() && shape.layers >= 1 &&
              shape.layers <= kLayers;
    }
  }
  if (right) return shape;
  return Error{ErrorCode::kInvalidArgument, "no such synthetic model: \"" + std::string(text) +
                                                "\"; there is " + kName + " and " + kName + ":layers=1 to " +
                                                std::to_string(kLayers)};
}

Result<ModelFiles> open_synthetic(const SyntheticShape& shape, const Placement& placement,
                                  DenseFormat dense) {
  std::error_code failed;
  std::string pattern = (fs::temp_directory_path(failed) / "firesteel-synthetic-XXXXXX").string();
  if (failed) return Error{ErrorCode::kIo, "no temporary folder: " + failed.message()};
  TemporaryFolder folder;
  if (mkdtemp(pattern.data()) == nullptr) return io_error(pattern);
  folder.path = pattern;
  RETURN_IF_ERROR(write_headers(folder.path, shape.layers));
  ASSIGN_OR_RETURN(ModelFiles files, open_model_files(folder.path, placement, dense));
  files.random_weights = true;
  return files;
}

}  // namespace firesteel
