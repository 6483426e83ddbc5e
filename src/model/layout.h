// Where everything that lives at run time lies: the planes of a page, the parts of a slot, the buffers of a
// forward.
//
// The plan measures with it and the model carves with it, so the two cannot disagree. One page holds the
// latents and pooled keys of the same kPageTokens tokens for every DSA layer and the MTP layer, contiguous;
// one slot holds the recurrent state of every KDA layer and the index tail of every layer with an indexer.
// Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/model.h"
#include "model/weight_map.h"
#include "ops/ops.h"

namespace firesteel {

inline constexpr size_t kAlign = 256;
inline size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// This rank's share of the widths that are cut.
struct LocalWidths {
  int32_t kda_heads = 0, heads = 0, dense = 0, vocab = 0;
  int32_t first_id = 0;  // of this rank's part of the vocabulary
  int32_t ranks = 1;     // that share the model
};
LocalWidths local_widths(const WeightMap& map);

/// Byte offsets inside a page; indexed by DSA layer in order, the MTP layer last.
struct PageLayout {
  size_t bytes = 0;
  std::vector<size_t> latents;
  std::vector<size_t> pools;  // kNone for a layer that shares a selection
};
/// Byte offsets inside a slot; `kda` by KDA layer in order, `tails` by DSA layer like PageLayout.
struct SlotLayout {
  size_t bytes = 0;
  std::vector<size_t> kda;
  std::vector<size_t> tails;
};
inline constexpr size_t kNone = SIZE_MAX;

PageLayout page_layout(const ModelConfig& config, bool mtp, const Ops& ops);
SlotLayout slot_layout(const ModelConfig& config, bool mtp, const LocalWidths& local, const Ops& ops);

/// KDA and indexer sizes as the ops want them, without weights.
KdaWeights kda_sizes(const ModelConfig& config, int32_t local_heads);
IndexerWeights indexer_sizes(const ModelConfig& config);

/// The buffers of one forward of up to max_rows rows T. Buffers that are never alive together share memory.
struct RowBuffers {
  // Whole forward.
  Act* streams = nullptr;    // [T, 4, H]
  Act* x = nullptr;          // [T, H] a sublayer's normed input
  float* post = nullptr;     // [T, 4]
  float* comb = nullptr;     // [T, 4, 4]
  float* part = nullptr;     // [T, H] a sublayer's output
  Selection selection;       // kept for a layer that shares it
  Act* hidden = nullptr;     // [T, H]
  Act* head_rows = nullptr;  // [max_logit_rows, H]
  float* logits = nullptr;   // [max_logit_rows, local vocab]
  std::byte* exchange = nullptr;
  size_t exchange_bytes = 0;
  // KDA.
  Act *qkv = nullptr, *f_low = nullptr, *g_low = nullptr, *f = nullptr, *g = nullptr, *beta = nullptr,
      *kda_out = nullptr;
  // DSA.
  Act *qkv_a = nullptr, *q_latent = nullptr, *latent = nullptr, *q = nullptr, *attention = nullptr;
  Act *index_q = nullptr, *index_k = nullptr, *index_gate = nullptr, *index_weight = nullptr;
  // Feed-forward.
  Act *gate_up = nullptr, *glu = nullptr;
  int32_t* expert_ids = nullptr;
  float* expert_weights = nullptr;
  // MTP.
  Act *mtp_cat = nullptr, *mtp_x = nullptr, *mtp_hidden = nullptr;

  size_t bytes = 0;
};

/// Carves the buffers out of `base`; with base null only `bytes` means anything.
RowBuffers row_buffers(const ModelConfig& config, bool mtp, const LocalWidths& local, const Ops& ops,
                       int32_t max_rows, int32_t max_logit_rows, std::byte* base);

}  // namespace firesteel
