#include "model/layout.h"

#include <algorithm>

namespace firesteel {
namespace {

// A caller that reuses a selection while drafting extends it by the pools that have completed since.
constexpr int32_t kSpareSelectedPools = 16;

class Carver {
 public:
  Carver(std::byte* base, size_t at) : base_(base), at_(at) {}
  template <typename T>
  T* take(size_t bytes) {
    std::byte* p = base_ == nullptr ? nullptr : base_ + at_;
    at_ += aligned(bytes);
    return reinterpret_cast<T*>(p);
  }
  size_t at() const { return at_; }

 private:
  std::byte* base_;
  size_t at_;
};

/// Calls fn(layer's own indexer?) for every DSA layer in cache order.
template <typename Fn>
void for_dsa_layers(const ModelConfig& c, bool mtp, Fn&& fn) {
  for (size_t i = 0; i < c.kinds.size(); ++i) {
    if (c.kinds[i] == LayerKind::kDsa) fn(!c.shared_indexer[i]);
  }
  if (mtp) fn(true);
}

}  // namespace

LocalWidths local_widths(const WeightMap& map) {
  LocalWidths w;
  w.vocab = map.head.spec.n;
  w.first_id = map.first_id;
  w.ranks = map.placement.ranks;
  const auto add = [&](const BlockRef& b) {
    if (b.kda) w.kda_heads = b.kda->heads;
    if (b.dsa) w.heads = b.dsa->heads;
    if (b.dense) w.dense = b.dense->width;
  };
  for (const LayerRef& layer : map.layers) add(layer.block);
  if (map.mtp) add(map.mtp->block);
  return w;
}

KdaWeights kda_sizes(const ModelConfig& config, int32_t local_heads) {
  KdaWeights w;
  w.heads = local_heads;
  w.dim = config.kda_dim;
  w.taps = config.kda_taps;
  w.lower_bound = config.kda_lower_bound;
  w.rms_eps = config.rms_eps;
  return w;
}

IndexerWeights indexer_sizes(const ModelConfig& config) {
  IndexerWeights w;
  w.heads = config.index_heads;
  w.dim = config.index_dim;
  w.kpool = config.kpool;
  w.top_pools = top_pools(config);
  return w;
}

PageLayout page_layout(const ModelConfig& config, bool mtp, const Ops& ops) {
  PageLayout layout;
  for_dsa_layers(config, mtp, [&](bool has_indexer) {
    layout.latents.push_back(layout.bytes);
    layout.bytes += aligned(ops.latent_row_bytes(config.kv_lora) * kPageTokens);
    layout.pools.push_back(has_indexer ? layout.bytes : kNone);
    if (has_indexer) {
      layout.bytes +=
          aligned(ops.pool_row_bytes(config.index_dim) * static_cast<size_t>(kPageTokens / config.kpool));
    }
  });
  return layout;
}

SlotLayout slot_layout(const ModelConfig& config, bool mtp, const LocalWidths& local, const Ops& ops) {
  SlotLayout layout;
  for (const LayerKind kind : config.kinds) {
    if (kind != LayerKind::kKda) continue;
    layout.kda.push_back(layout.bytes);
    layout.bytes += aligned(ops.kda_slot_bytes(kda_sizes(config, local.kda_heads)));
  }
  for_dsa_layers(config, mtp, [&](bool has_indexer) {
    layout.tails.push_back(has_indexer ? layout.bytes : kNone);
    if (has_indexer) layout.bytes += aligned(ops.tail_slot_bytes(indexer_sizes(config)));
  });
  return layout;
}

RowBuffers row_buffers(const ModelConfig& c, bool mtp, const LocalWidths& local, const Ops& ops,
                       int32_t max_rows, int32_t max_logit_rows, std::byte* base) {
  RowBuffers b;
  const auto rows = static_cast<size_t>(max_rows), logit_rows = static_cast<size_t>(max_logit_rows);
  const size_t act = ops.act_size();
  const auto acts = [&](int32_t width) { return rows * static_cast<size_t>(width) * act; };
  const auto words = [&](int32_t width) { return rows * static_cast<size_t>(width) * 4; };

  Carver whole(base, 0);
  b.streams = whole.take<Act>(acts(c.hc_mult * c.hidden));
  b.x = whole.take<Act>(acts(c.hidden));
  b.post = whole.take<float>(words(c.hc_mult));
  b.comb = whole.take<float>(words(c.hc_mult * c.hc_mult));
  b.part = whole.take<float>(words(c.hidden));
  b.hidden = whole.take<Act>(acts(c.hidden));
  b.head_rows = whole.take<Act>(logit_rows * static_cast<size_t>(c.hidden) * act);
  b.logits = whole.take<float>(logit_rows * static_cast<size_t>(local.vocab) * 4);
  b.exchange_bytes = ops.exchange_bytes(local.ranks, max_rows, c.hidden);
  b.exchange = whole.take<std::byte>(b.exchange_bytes);
  if (c.kpool > 0) {
    b.selection.max_pools = top_pools(c) + kSpareSelectedPools;
    b.selection.pools = whole.take<int32_t>(words(b.selection.max_pools));
    b.selection.count = whole.take<int32_t>(words(1));
  }
  if (mtp) {
    b.mtp_x = whole.take<Act>(acts(c.hidden));
    b.mtp_hidden = whole.take<Act>(acts(c.hidden));
  }
  b.bytes = whole.at();

  const auto overlay = [&](auto&& carve) {
    Carver part(base, whole.at());
    carve(part);
    b.bytes = std::max(b.bytes, part.at());
  };
  overlay([&](Carver& k) {
    const int32_t inner = local.kda_heads * c.kda_dim;
    b.qkv = k.take<Act>(acts(3 * inner));
    b.f_low = k.take<Act>(acts(c.kda_dim));
    b.g_low = k.take<Act>(acts(c.kda_dim));
    b.f = k.take<Act>(acts(inner));
    b.g = k.take<Act>(acts(inner));
    b.beta = k.take<Act>(acts(local.kda_heads));
    b.kda_out = k.take<Act>(acts(inner));
  });
  overlay([&](Carver& d) {
    b.qkv_a = d.take<Act>(acts(c.q_lora + c.kv_lora));
    b.q_latent = d.take<Act>(acts(c.q_lora));
    b.latent = d.take<Act>(acts(c.kv_lora));
    b.q = d.take<Act>(acts(local.heads * c.qk_dim));
    b.attention = d.take<Act>(acts(local.heads * c.v_dim));
    b.index_q = d.take<Act>(acts(c.index_heads * c.index_dim));
    b.index_k = d.take<Act>(acts(c.index_dim));
    b.index_gate = d.take<Act>(acts(c.index_dim));
    b.index_weight = d.take<Act>(acts(c.index_heads));
  });
  overlay([&](Carver& m) {
    b.gate_up = m.take<Act>(acts(2 * local.dense));
    b.glu = m.take<Act>(acts(local.dense));
    b.expert_ids = m.take<int32_t>(words(c.experts_per_token));
    b.expert_weights = m.take<float>(words(c.experts_per_token));
  });
  if (mtp) overlay([&](Carver& m) { b.mtp_cat = m.take<Act>(acts(2 * c.hidden)); });
  return b;
}

}  // namespace firesteel
