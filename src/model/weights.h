// The loaded weights of the text model and its MTP layer, in the forms that the ops take. Memory belongs to
// the backend; the structs are plain values.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ops/ops.h"

namespace firesteel {

struct KdaLayer {
  Matrix qkv[3];    // side by side: [3·heads·dim, H]
  Matrix f_a, f_b;  // [dim, H], [heads·dim, dim]
  Matrix g_a, g_b;
  Matrix beta;  // [heads, H]
  Matrix out;   // [H, heads·dim], sliced
  KdaWeights w;
  SlotPlane state;
};

struct IndexerLayer {
  Matrix q;        // [index_heads·index_dim, q_lora]
  Matrix k, gate;  // [index_dim, H]
  Matrix weights;  // [index_heads, H]
  IndexerWeights w;
  Plane pools;
  SlotPlane tail;
};

struct DsaLayer {
  Matrix q_kv_a[2];  // side by side: [q_lora + kv_lora, H]
  Matrix q_b;        // [heads·qk, q_lora]
  Matrix out;        // [H, heads·v], sliced
  const float* q_norm = nullptr;
  const float* kv_norm = nullptr;
  AttentionWeights w;
  std::optional<IndexerLayer> indexer;  // absent: the previous layer's selection
  Plane latents;
};

struct DenseMlp {
  int32_t width = 0;
  Matrix gate_up[2];  // side by side: [2·width, H]
  Matrix down;        // [H, width], sliced
};

struct MoeLayer {
  RouterWeights router;
  std::vector<Matrix> gate, up, down;  // [experts], what `w` points at
  ExpertWeights w;
};

struct Block {
  std::optional<KdaLayer> kda;
  std::optional<DsaLayer> dsa;
  std::optional<DenseMlp> dense;
  std::optional<MoeLayer> moe;
};

struct Layer {
  HyperSite attention_site, mlp_site;
  Block block;
};

struct MtpLayer {
  const float *enorm = nullptr, *hnorm = nullptr, *input_norm = nullptr, *post_norm = nullptr,
              *head_norm = nullptr;
  Matrix eh_proj;  // [H, 2H]
  Block block;
};

struct Weights {
  Matrix embedding, head;
  const float* final_norm = nullptr;
  std::vector<Layer> layers;
  std::unique_ptr<MtpLayer> mtp;
};

}  // namespace firesteel
