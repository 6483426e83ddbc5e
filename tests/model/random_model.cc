#include "model/random_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/config.h"
#include "support/random.h"
#include "tensor/safetensors.h"

namespace firesteel::test {
namespace {

namespace fs = std::filesystem;

/// Directories of this program, removed at its end.
class TemporaryRoot {
 public:
  TemporaryRoot() {
    std::string pattern = (fs::temp_directory_path() / "firesteel-model-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = pattern;
  }
  ~TemporaryRoot() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string next() {
    const fs::path dir = path_ / std::to_string(count_++);
    fs::create_directories(dir);
    return dir.string();
  }

 private:
  fs::path path_;
  int count_ = 0;
};

class Writer {
 public:
  Writer(const ModelConfig& c, const RandomModelOptions& o) : c_(c), o_(o), random_(o.seed) {}

  std::vector<WrittenTensor> run() {
    const std::string& p = o_.prefix;
    normal("lm_head.weight", DType::kBf16, {c_.vocab, c_.hidden}, 0, o_.gain / std::sqrt(c_.hidden));
    normal(p + "embed_tokens.weight", DType::kBf16, {c_.vocab, c_.hidden}, 0, 1);
    norm(p + "norm", c_.hidden);
    for (int32_t i = 0; i < c_.layers; ++i) {
      const std::string at = p + "layers." + std::to_string(i) + ".";
      const auto n = static_cast<size_t>(i);
      hyper(at + "hc_attn");
      hyper(at + "hc_ffn");
      norm(at + "input_layernorm", c_.hidden);
      norm(at + "post_attention_layernorm", c_.hidden);
      if (c_.kinds[n] == LayerKind::kKda) {
        kda(at + "self_attn.");
      } else {
        dsa(at + "self_attn.", !c_.shared_indexer[n]);
      }
      if (c_.sparse_mlp[n]) {
        moe(at + "mlp.");
      } else {
        mlp(at + "mlp.", c_.dense_width);
      }
    }
    if (c_.mtp_layers > 0) {
      const std::string at = p + "layers." + std::to_string(c_.layers) + ".";
      for (const char* name :
           {"enorm", "hnorm", "input_layernorm", "post_attention_layernorm", "shared_head.norm"}) {
        norm(at + name, c_.hidden);
      }
      matrix(at + "eh_proj.weight", c_.hidden, 2 * c_.hidden);
      dsa(at + "self_attn.", true);
      moe(at + "mlp.");
    }
    if (o_.visual) normal("model.visual.blocks.0.attn.qkv.weight", DType::kBf16, {12, 4}, 0, 1);
    return std::move(out_);
  }

 private:
  void normal(const std::string& name, DType type, std::vector<int64_t> shape, double mean, double std) {
    WrittenTensor t{name, type, std::move(shape), {}};
    size_t count = 1;
    for (const int64_t dim : t.shape) count *= static_cast<size_t>(dim);
    t.bytes.resize(count * dtype_size(type));
    for (size_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(mean + std * random_.normal());
      if (type == DType::kF32) {
        std::memcpy(t.bytes.data() + i * 4, &value, 4);
      } else {
        const uint16_t bits = f32_to_bf16(value);
        std::memcpy(t.bytes.data() + i * 2, &bits, 2);
      }
    }
    out_.push_back(std::move(t));
  }
  void matrix(const std::string& name, int32_t n, int32_t k) {
    normal(name, DType::kBf16, {n, k}, 0, o_.gain / std::sqrt(k));
  }
  void norm(const std::string& name, int32_t n) { normal(name + ".weight", DType::kBf16, {n}, 1, 0.2); }
  void hyper(const std::string& at) {
    normal(at + "_fn", DType::kBf16, {24, 4 * c_.hidden}, 0, 0.1);
    normal(at + "_base", DType::kF32, {24}, 0, 0.5);
    normal(at + "_scale", DType::kF32, {3}, 1, 0.3);
  }
  void kda(const std::string& at) {
    const int32_t inner = c_.kda_heads * c_.kda_dim;
    for (const char* name : {"q", "k", "v"}) {
      matrix(at + name + "_proj.weight", inner, c_.hidden);
      normal(at + name + "_conv1d.weight", DType::kBf16, {inner, 1, c_.kda_taps}, 0, 0.5);
    }
    for (const char* name : {"f", "g"}) {
      matrix(at + name + "_a_proj.weight", c_.kda_dim, c_.hidden);
      matrix(at + name + "_b_proj.weight", inner, c_.kda_dim);
    }
    matrix(at + "b_proj.weight", c_.kda_heads, c_.hidden);
    normal(at + "A_log", DType::kF32, {c_.kda_heads}, 0, 0.5);
    normal(at + "dt_bias", DType::kF32, {inner}, -1, 1);
    norm(at + "o_norm", c_.kda_dim);
    matrix(at + "o_proj.weight", c_.hidden, inner);
  }
  void dsa(const std::string& at, bool indexer) {
    matrix(at + "q_a_proj.weight", c_.q_lora, c_.hidden);
    norm(at + "q_a_layernorm", c_.q_lora);
    matrix(at + "q_b_proj.weight", c_.heads * c_.qk_dim, c_.q_lora);
    matrix(at + "kv_a_proj_with_mqa.weight", c_.kv_lora, c_.hidden);
    norm(at + "kv_a_layernorm", c_.kv_lora);
    matrix(at + "kv_b_proj.weight", c_.heads * (c_.qk_dim + c_.v_dim), c_.kv_lora);
    matrix(at + "o_proj.weight", c_.hidden, c_.heads * c_.v_dim);
    if (!indexer) return;
    matrix(at + "indexer.wq_b.weight", c_.index_heads * c_.index_dim, c_.q_lora);
    matrix(at + "indexer.wk.weight", c_.index_dim, c_.hidden);
    matrix(at + "indexer.weights_proj.weight", c_.index_heads, c_.hidden);
    normal(at + "indexer.k_norm.weight", DType::kBf16, {c_.index_dim}, 1, 0.3);
    normal(at + "indexer.k_norm.bias", DType::kBf16, {c_.index_dim}, 0, 0.3);
    normal(at + "indexer.index_kpool_compress_ape", DType::kBf16, {c_.kpool, c_.index_dim}, 0, 1);
    normal(at + "indexer.index_kpool_compress_gate", DType::kBf16, {c_.index_dim, c_.hidden}, 0, 0.3);
  }
  void mlp(const std::string& at, int32_t width) {
    matrix(at + "gate_proj.weight", width, c_.hidden);
    matrix(at + "up_proj.weight", width, c_.hidden);
    matrix(at + "down_proj.weight", c_.hidden, width);
  }
  void moe(const std::string& at) {
    matrix(at + "gate.weight", c_.experts, c_.hidden);
    normal(at + "gate.e_score_correction_bias", DType::kF32, {c_.experts}, 0, 0.3);
    for (int32_t e = 0; e < c_.experts; ++e) mlp(at + "experts." + std::to_string(e) + ".", c_.expert_width);
    if (c_.shared_experts > 0) mlp(at + "shared_experts.", c_.expert_width * c_.shared_experts);
  }

  const ModelConfig& c_;
  const RandomModelOptions& o_;
  Random random_;
  std::vector<WrittenTensor> out_;
};

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

nlohmann::ordered_json model_a_config() {
  return nlohmann::ordered_json::parse(R"({
    "model_type": "glm5_next_text", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 6,
    "num_nextn_predict_layers": 1,
    "layer_types": ["linear_attention", "deepseek_sparse_attention", "deepseek_sparse_attention", "linear_attention",
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
    "max_position_embeddings": 1048576, "eos_token_id": [1]})");
}

std::vector<WrittenTensor> random_tensors(const nlohmann::ordered_json& config,
                                          const RandomModelOptions& options) {
  const auto parsed = parse_model_config(config.dump(), "random model");
  if (!parsed.ok()) throw std::runtime_error(parsed.error().message);
  return Writer(*parsed, options).run();
}

std::string write_random_model(const nlohmann::ordered_json& config, const RandomModelOptions& options) {
  static TemporaryRoot root;
  const std::string dir = root.next();
  std::vector<WrittenTensor> tensors = random_tensors(config, options);
  if (options.edit) options.edit(tensors);
  write_file(dir + "/config.json", config.dump());
  nlohmann::ordered_json index;
  const size_t per_file =
      (tensors.size() + static_cast<size_t>(options.files) - 1) / static_cast<size_t>(options.files);
  for (int f = 0; f < options.files; ++f) {
    const std::string name = options.files == 1 ? "model.safetensors"
                                                : "model-0000" + std::to_string(f + 1) + "-of-0000" +
                                                      std::to_string(options.files) + ".safetensors";
    std::vector<TensorToWrite> part;
    for (size_t i = static_cast<size_t>(f) * per_file;
         i < std::min(tensors.size(), (static_cast<size_t>(f) + 1) * per_file); ++i) {
      part.push_back({tensors[i].name, tensors[i].dtype, tensors[i].shape, tensors[i].bytes.data()});
      index["weight_map"][tensors[i].name] = name;
    }
    const Status written = write_safetensors(dir + "/" + name, part);
    if (!written.ok()) throw std::runtime_error(written.error().message);
  }
  if (options.files > 1) write_file(dir + "/model.safetensors.index.json", index.dump());
  return dir;
}

WrittenTensor& find_tensor(std::vector<WrittenTensor>& tensors, const std::string& name_end) {
  const auto it =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name.ends_with(name_end); });
  if (it == tensors.end()) throw std::runtime_error("no tensor " + name_end);
  return *it;
}

void drop_tensor(std::vector<WrittenTensor>& tensors, const std::string& name_end) {
  const std::string name = find_tensor(tensors, name_end).name;
  std::erase_if(tensors, [&](const auto& t) { return t.name == name; });
}

}  // namespace firesteel::test
