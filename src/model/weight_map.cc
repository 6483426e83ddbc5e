#include "model/weight_map.h"

#include "model/tensor_lookup.h"

namespace firesteel {
namespace {

class MapBuilder {
 public:
  MapBuilder(const Checkpoint& checkpoint, const ModelConfig& config, const Placement& placement,
             DenseFormat dense)
      : checkpoint_(checkpoint), c_(config), p_(placement), find_(checkpoint, placement, dense) {}

  Result<WeightMap> build();

 private:
  std::string layer_prefix(int32_t layer) const {
    return checkpoint_.text_prefix() + "layers." + std::to_string(layer) + ".";
  }
  MatrixWanted full(int32_t n, int32_t k) const { return {n, k, whole(n), whole(k), false, false, false}; }
  MatrixWanted plain(int32_t n, int32_t k) const {
    return {n, k, whole(n), whole(k), false, true, false, Narrowing::kNever};
  }
  MatrixWanted rows(int32_t n, int32_t k, Range r) const { return {n, k, r, whole(k), false, false, false}; }
  MatrixWanted cols(int32_t n, int32_t k, Range r) const { return {n, k, whole(n), r, true, false, false}; }

  Status hyper(const std::string& layer, const std::string& site, const std::string& norm,
               HyperRef& out) const;
  Status kda(const std::string& at, KdaRef& out) const;
  Status dsa(const std::string& at, bool with_indexer, DsaRef& out) const;
  Status indexer(const std::string& at, IndexerRef& out) const;
  Status mlp(const std::string& at, int32_t width, Narrowing narrowing, MlpRef& out) const;
  Status moe(const std::string& at, MoeRef& out) const;
  Status layer(int32_t i, LayerRef& out) const;
  Status mtp(const std::string& at, MtpRef& out) const;

  const Checkpoint& checkpoint_;
  const ModelConfig& c_;
  Placement p_;
  TensorLookup find_;
};

Status MapBuilder::hyper(const std::string& layer, const std::string& site, const std::string& norm,
                         HyperRef& out) const {
  const int32_t outputs = c_.hc_mult * (2 + c_.hc_mult);
  MatrixWanted fn = plain(outputs, c_.hc_mult * c_.hidden);
  fn.bare_name = true;
  RETURN_IF_ERROR(find_.matrix(layer + site + "_fn", fn, out.fn));
  RETURN_IF_ERROR(find_.vector(layer + site + "_base", outputs, out.base));
  RETURN_IF_ERROR(find_.vector(layer + site + "_scale", 3, out.scale));
  return find_.vector(layer + norm + ".weight", c_.hidden, out.norm);
}

Status MapBuilder::kda(const std::string& at, KdaRef& out) const {
  const int32_t inner = c_.kda_heads * c_.kda_dim, dim = c_.kda_dim;
  ASSIGN_OR_RETURN(const Range heads, head_range(c_.kda_heads, dim, at, p_));
  const Range part = scaled(heads, dim);
  out.heads = heads.size();
  RETURN_IF_ERROR(find_.matrix(at + "q_proj", rows(inner, c_.hidden, part), out.q));
  RETURN_IF_ERROR(find_.matrix(at + "k_proj", rows(inner, c_.hidden, part), out.k));
  RETURN_IF_ERROR(find_.matrix(at + "v_proj", rows(inner, c_.hidden, part), out.v));
  RETURN_IF_ERROR(find_.matrix(at + "f_a_proj", full(dim, c_.hidden), out.f_a));
  RETURN_IF_ERROR(find_.matrix(at + "g_a_proj", full(dim, c_.hidden), out.g_a));
  RETURN_IF_ERROR(find_.matrix(at + "f_b_proj", rows(inner, dim, part), out.f_b));
  RETURN_IF_ERROR(find_.matrix(at + "g_b_proj", rows(inner, dim, part), out.g_b));
  RETURN_IF_ERROR(find_.matrix(at + "b_proj", rows(c_.kda_heads, c_.hidden, heads), out.b));
  RETURN_IF_ERROR(find_.matrix(at + "o_proj", cols(c_.hidden, inner, part), out.o));
  for (const char* conv : {"q_conv1d", "k_conv1d", "v_conv1d"}) {
    RETURN_IF_ERROR(find_.vector(at + conv + ".weight", {{inner, 1, c_.kda_taps}, {inner, c_.kda_taps}}, part,
                                 c_.kda_taps, out.conv));
  }
  RETURN_IF_ERROR(find_.vector(at + "A_log", {{c_.kda_heads}}, heads, 1, out.a_log));
  RETURN_IF_ERROR(find_.vector(at + "dt_bias", {{inner}}, part, 1, out.dt_bias));
  return find_.vector(at + "o_norm.weight", dim, out.o_norm);
}

Status MapBuilder::indexer(const std::string& at, IndexerRef& out) const {
  RETURN_IF_ERROR(find_.matrix(at + "wq_b", full(c_.index_heads * c_.index_dim, c_.q_lora), out.q));
  RETURN_IF_ERROR(find_.matrix(at + "wk", full(c_.index_dim, c_.hidden), out.k));
  RETURN_IF_ERROR(find_.matrix(at + "weights_proj", full(c_.index_heads, c_.hidden), out.weights));
  MatrixWanted gate = full(c_.index_dim, c_.hidden);
  gate.bare_name = true;
  RETURN_IF_ERROR(find_.matrix(at + "index_kpool_compress_gate", gate, out.gate));
  RETURN_IF_ERROR(find_.vector(at + "k_norm.weight", c_.index_dim, out.k_norm_weight));
  RETURN_IF_ERROR(find_.vector(at + "k_norm.bias", c_.index_dim, out.k_norm_bias));
  return find_.vector(at + "index_kpool_compress_ape", {{c_.kpool, c_.index_dim}}, whole(c_.kpool),
                      c_.index_dim, out.ape);
}

Status MapBuilder::dsa(const std::string& at, bool with_indexer, DsaRef& out) const {
  ASSIGN_OR_RETURN(const Range heads, head_range(c_.heads, c_.v_dim, at, p_));
  out.heads = heads.size();
  const int32_t kv = c_.qk_dim + c_.v_dim;
  RETURN_IF_ERROR(find_.matrix(at + "q_a_proj", full(c_.q_lora, c_.hidden), out.q_a));
  RETURN_IF_ERROR(find_.matrix(at + "kv_a_proj_with_mqa", full(c_.kv_lora, c_.hidden), out.kv_a));
  RETURN_IF_ERROR(find_.matrix(at + "q_b_proj",
                               rows(c_.heads * c_.qk_dim, c_.q_lora, scaled(heads, c_.qk_dim)), out.q_b));
  MatrixWanted kv_b = rows(c_.heads * kv, c_.kv_lora, scaled(heads, kv));
  kv_b.narrowing = Narrowing::kNever;
  RETURN_IF_ERROR(find_.matrix(at + "kv_b_proj", kv_b, out.kv_b));
  if (out.kv_b.spec.format == MatrixFormat::kExl3) out.kv_b.spec.keep = MatrixKeep::kDecoded;
  RETURN_IF_ERROR(
      find_.matrix(at + "o_proj", cols(c_.hidden, c_.heads * c_.v_dim, scaled(heads, c_.v_dim)), out.o));
  RETURN_IF_ERROR(find_.vector(at + "q_a_layernorm.weight", c_.q_lora, out.q_norm));
  RETURN_IF_ERROR(find_.vector(at + "kv_a_layernorm.weight", c_.kv_lora, out.kv_norm));
  return with_indexer ? indexer(at + "indexer.", out.indexer.emplace()) : Status::success();
}

Status MapBuilder::mlp(const std::string& at, int32_t width, Narrowing narrowing, MlpRef& out) const {
  const Range part = rank_range(width, p_);
  out.width = part.size();
  MatrixWanted in = rows(width, c_.hidden, part), down = cols(c_.hidden, width, part);
  in.narrowing = down.narrowing = narrowing;
  RETURN_IF_ERROR(find_.matrix(at + "gate_proj", in, out.gate));
  RETURN_IF_ERROR(find_.matrix(at + "up_proj", in, out.up));
  return find_.matrix(at + "down_proj", down, out.down);
}

Status MapBuilder::moe(const std::string& at, MoeRef& out) const {
  RETURN_IF_ERROR(find_.matrix(at + "gate", plain(c_.experts, c_.hidden), out.router));
  RETURN_IF_ERROR(find_.vector(at + "gate.e_score_correction_bias", c_.experts, out.bias));
  out.experts.resize(static_cast<size_t>(c_.experts));
  for (int32_t e = 0; e < c_.experts; ++e) {
    RETURN_IF_ERROR(mlp(at + "experts." + std::to_string(e) + ".", c_.expert_width, Narrowing::kNever,
                        out.experts[static_cast<size_t>(e)]));
  }
  if (c_.shared_experts == 0) return Status::success();
  return mlp(at + "shared_experts.", c_.expert_width * c_.shared_experts, Narrowing::kDense,
             out.shared.emplace());
}

Status MapBuilder::layer(int32_t i, LayerRef& out) const {
  const std::string at = layer_prefix(i);
  const size_t n = static_cast<size_t>(i);
  RETURN_IF_ERROR(hyper(at, "hc_attn", "input_layernorm", out.attention_site));
  RETURN_IF_ERROR(hyper(at, "hc_ffn", "post_attention_layernorm", out.mlp_site));
  if (c_.kinds[n] == LayerKind::kKda) {
    RETURN_IF_ERROR(kda(at + "self_attn.", out.block.kda.emplace()));
  } else {
    RETURN_IF_ERROR(dsa(at + "self_attn.", !c_.shared_indexer[n], out.block.dsa.emplace()));
  }
  if (c_.sparse_mlp[n]) return moe(at + "mlp.", out.block.moe.emplace());
  return mlp(at + "mlp.", c_.dense_width, Narrowing::kDense, out.block.dense.emplace());
}

Status MapBuilder::mtp(const std::string& at, MtpRef& out) const {
  RETURN_IF_ERROR(find_.vector(at + "enorm.weight", c_.hidden, out.enorm));
  RETURN_IF_ERROR(find_.vector(at + "hnorm.weight", c_.hidden, out.hnorm));
  RETURN_IF_ERROR(find_.vector(at + "input_layernorm.weight", c_.hidden, out.input_norm));
  RETURN_IF_ERROR(find_.vector(at + "post_attention_layernorm.weight", c_.hidden, out.post_norm));
  RETURN_IF_ERROR(find_.vector(at + "shared_head.norm.weight", c_.hidden, out.head_norm));
  RETURN_IF_ERROR(find_.matrix(at + "eh_proj", full(c_.hidden, 2 * c_.hidden), out.eh_proj));
  RETURN_IF_ERROR(dsa(at + "self_attn.", true, out.block.dsa.emplace()));
  return moe(at + "mlp.", out.block.moe.emplace());
}

Result<WeightMap> MapBuilder::build() {
  WeightMap map;
  map.placement = p_;
  map.first_id = rank_range(c_.vocab, p_).begin;
  const std::string& prefix = checkpoint_.text_prefix();
  RETURN_IF_ERROR(find_.matrix(prefix + "embed_tokens", plain(c_.vocab, c_.hidden), map.embedding));
  // Its rows are looked up one by one, so a quantized table is decoded at load.
  if (map.embedding.spec.format == MatrixFormat::kExl3) map.embedding.spec.keep = MatrixKeep::kDecoded;
  MatrixWanted head = rows(c_.vocab, c_.hidden, rank_range(c_.vocab, p_));
  head.narrowing = Narrowing::kHead;
  RETURN_IF_ERROR(find_.matrix(c_.tied_head ? prefix + "embed_tokens" : "lm_head", head, map.head));
  RETURN_IF_ERROR(find_.vector(prefix + "norm.weight", c_.hidden, map.final_norm));
  map.layers.resize(static_cast<size_t>(c_.layers));
  for (int32_t i = 0; i < c_.layers; ++i) RETURN_IF_ERROR(layer(i, map.layers[static_cast<size_t>(i)]));
  const std::string mtp_prefix = layer_prefix(c_.layers);
  if (c_.mtp_layers > 0 && checkpoint_.has_prefix(mtp_prefix))
    RETURN_IF_ERROR(mtp(mtp_prefix, map.mtp.emplace()));
  return map;
}

}  // namespace

uint64_t MatrixRef::file_bytes() const {
  const auto n = static_cast<uint64_t>(spec.n), k = static_cast<uint64_t>(spec.k);
  switch (spec.format) {
    case MatrixFormat::kF32:
      return n * k * 4;
    case MatrixFormat::kBf16:
      return n * k * 2;
    case MatrixFormat::kFp8Block:
      return n * k + (n + 127) / 128 * ((k + 127) / 128) * 4;
    case MatrixFormat::kExl3:
      return n * k * spec.bits / 8 + 2 * (n + k);
    case MatrixFormat::kFp8Rows:
    case MatrixFormat::kQ4:
      break;  // never in a file
  }
  return 0;
}

int64_t VectorRef::size() const {
  int64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.count;
  return sum;
}

const char* weight_group_name(WeightGroup group) {
  constexpr const char* kNames[kWeightGroups] = {"experts",   "shared experts", "dense MLP", "attention",
                                                 "embedding", "head",           "MTP layer", "other"};
  return kNames[static_cast<int>(group)];
}

Result<WeightMap> map_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                              const Placement& placement, DenseFormat dense) {
  RETURN_IF_ERROR(check_placement(placement));
  return MapBuilder(checkpoint, config, placement, dense).build();
}

}  // namespace firesteel
