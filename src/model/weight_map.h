// WeightMap: every tensor that the text model and its MTP layer need, found in the checkpoint's headers and
// checked (presence, dtype, shape), cut to one rank's part. Nothing is read but headers.
//
// The memory plan sums over it and the loader walks it, so the two cannot disagree. Plain values that point
// into the Checkpoint, which must outlive them. Matrices are [n, k], y = W x.
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/slicing.h"
#include "ops/ops.h"

namespace firesteel {

/// How the dense matrices that a checkpoint stores plain (bf16, fp32) are kept: everything but the routed
/// experts, kv_b, the embedding, routers and hyper-connections, which stay as they are, as do EXL3 and FP8
/// matrices.
enum class DenseFormat : uint8_t {
  kStored,  // exact
  kFp8,
  kQ4,  // 4 bits; the head, and widths without whole groups of 64, in FP8
};

/// One matrix: what this rank holds of it (spec), where in the whole it lies, and its parts on disk.
struct MatrixRef {
  MatrixSpec spec;
  Range rows, cols;                // of the whole matrix
  int32_t full_n = 0, full_k = 0;  // the whole matrix
  TensorRef weight;                // plain weight or trellis
  TensorRef scale;                 // kFp8Block
  TensorRef suh, svh;              // kExl3; I16 when the signs are packed
  bool empty() const { return spec.n == 0 || spec.k == 0; }
  uint64_t file_bytes() const;  // of this rank's part
};

/// Consecutive runs of elements, widened to fp32 one after the other.
struct VectorRef {
  struct Piece {
    TensorRef tensor;
    int64_t first = 0, count = 0;
  };
  std::vector<Piece> pieces;
  int64_t size() const;
};

struct HyperRef {
  MatrixRef fn;                 // [24, 4H]
  VectorRef base, scale, norm;  // [24], [3], [H]
};

struct KdaRef {
  int32_t heads = 0;   // of this rank
  MatrixRef q, k, v;   // [heads·dim, H]
  MatrixRef f_a, g_a;  // [dim, H]
  MatrixRef f_b, g_b;  // [heads·dim, dim]
  MatrixRef b;         // [heads, H]
  MatrixRef o;         // [H, heads·dim], sliced
  VectorRef conv;      // [3·heads·dim, taps]
  VectorRef a_log, dt_bias, o_norm;
};

struct IndexerRef {
  MatrixRef q;        // [index_heads·index_dim, q_lora]
  MatrixRef k, gate;  // [index_dim, H]
  MatrixRef weights;  // [index_heads, H]
  VectorRef k_norm_weight, k_norm_bias, ape;
};

struct DsaRef {
  int32_t heads = 0;    // of this rank
  MatrixRef q_a, kv_a;  // [q_lora, H], [kv_lora, H]
  MatrixRef q_b, kv_b;  // [heads·qk, q_lora], [heads·(qk+v), kv_lora]
  MatrixRef o;          // [H, heads·v], sliced
  VectorRef q_norm, kv_norm;
  std::optional<IndexerRef> indexer;  // absent: reuses the previous layer's selection
};

struct MlpRef {
  int32_t width = 0;   // of this rank
  MatrixRef gate, up;  // [width, H]
  MatrixRef down;      // [H, width], sliced
};

struct MoeRef {
  MatrixRef router;  // [experts, H]
  VectorRef bias;    // [experts]
  std::vector<MlpRef> experts;
  std::optional<MlpRef> shared;
};

/// Attention and feed-forward of one layer; exactly one of kda and dsa, one of dense and moe.
struct BlockRef {
  std::optional<KdaRef> kda;
  std::optional<DsaRef> dsa;
  std::optional<MlpRef> dense;
  std::optional<MoeRef> moe;
};

struct LayerRef {
  HyperRef attention_site, mlp_site;
  BlockRef block;
};

struct MtpRef {
  VectorRef enorm, hnorm, input_norm, post_norm, head_norm;  // [H]
  MatrixRef eh_proj;                                         // [H, 2H]
  BlockRef block;
};

struct WeightMap {
  Placement placement;
  int32_t first_id = 0;  // of this rank's part of the vocabulary
  MatrixRef embedding;   // [vocab, H], whole on every rank
  MatrixRef head;        // [this rank's vocab, H]
  VectorRef final_norm;
  std::vector<LayerRef> layers;
  std::optional<MtpRef> mtp;
};

/// Errors are one line naming tensor and file. An MTP layer that the config announces but of which the
/// checkpoint has no tensor at all is left out; a part of one is an error.
Result<WeightMap> map_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                              const Placement& placement, DenseFormat dense = DenseFormat::kStored);

/// What `info` and the plan report by.
enum class WeightGroup : uint8_t { kExperts, kShared, kDense, kAttention, kEmbedding, kHead, kMtp, kOther };
inline constexpr int kWeightGroups = 8;
const char* weight_group_name(WeightGroup group);

/// Calls on_matrix(group, const MatrixRef&) and on_vector(group, const VectorRef&) for everything in the map.
template <typename OnMatrix, typename OnVector>
void walk_weights(const WeightMap& map, OnMatrix&& on_matrix, OnVector&& on_vector) {
  const auto mlp = [&](WeightGroup g, const MlpRef& m) {
    for (const MatrixRef* matrix : {&m.gate, &m.up, &m.down}) on_matrix(g, *matrix);
  };
  // In the MTP layer everything counts as kMtp.
  const auto block = [&](const BlockRef& b, bool mtp) {
    const auto group = [&](WeightGroup g) { return mtp ? WeightGroup::kMtp : g; };
    const WeightGroup attention = group(WeightGroup::kAttention);
    if (b.kda) {
      const KdaRef& w = *b.kda;
      for (const MatrixRef* m : {&w.q, &w.k, &w.v, &w.f_a, &w.g_a, &w.f_b, &w.g_b, &w.b, &w.o})
        on_matrix(attention, *m);
      for (const VectorRef* v : {&w.conv, &w.a_log, &w.dt_bias, &w.o_norm}) on_vector(attention, *v);
    }
    if (b.dsa) {
      const DsaRef& w = *b.dsa;
      for (const MatrixRef* m : {&w.q_a, &w.kv_a, &w.q_b, &w.kv_b, &w.o}) on_matrix(attention, *m);
      for (const VectorRef* v : {&w.q_norm, &w.kv_norm}) on_vector(attention, *v);
      if (w.indexer) {
        for (const MatrixRef* m : {&w.indexer->q, &w.indexer->k, &w.indexer->gate, &w.indexer->weights}) {
          on_matrix(attention, *m);
        }
        for (const VectorRef* v : {&w.indexer->k_norm_weight, &w.indexer->k_norm_bias, &w.indexer->ape}) {
          on_vector(attention, *v);
        }
      }
    }
    if (b.dense) mlp(group(WeightGroup::kDense), *b.dense);
    if (b.moe) {
      on_matrix(group(WeightGroup::kOther), b.moe->router);
      on_vector(group(WeightGroup::kOther), b.moe->bias);
      for (const MlpRef& e : b.moe->experts) mlp(group(WeightGroup::kExperts), e);
      if (b.moe->shared) mlp(group(WeightGroup::kShared), *b.moe->shared);
    }
  };
  on_matrix(WeightGroup::kEmbedding, map.embedding);
  on_matrix(WeightGroup::kHead, map.head);
  on_vector(WeightGroup::kOther, map.final_norm);
  for (const LayerRef& layer : map.layers) {
    for (const HyperRef* site : {&layer.attention_site, &layer.mlp_site}) {
      on_matrix(WeightGroup::kOther, site->fn);
      for (const VectorRef* v : {&site->base, &site->scale, &site->norm}) on_vector(WeightGroup::kOther, *v);
    }
    block(layer.block, false);
  }
  if (map.mtp) {
    const MtpRef& w = *map.mtp;
    on_matrix(WeightGroup::kMtp, w.eh_proj);
    for (const VectorRef* v : {&w.enorm, &w.hnorm, &w.input_norm, &w.post_norm, &w.head_norm}) {
      on_vector(WeightGroup::kMtp, *v);
    }
    block(w.block, true);
  }
}

}  // namespace firesteel
