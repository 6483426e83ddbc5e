// The attention sublayers: KDA (spec/model.md 2.3) and DSA with its indexer (2.4 to 2.6).
#include <array>

#include "model/text_model.h"

namespace firesteel {

void TextModel::attention(int32_t layer, const Block& block, const Batch& batch, ForwardHooks* hooks) {
  if (block.kda) {
    kda(*block.kda);
  } else {
    dsa(layer, *block.dsa, batch, hooks);
  }
  exchange();
  if (hooks != nullptr) hooks->attention_output(layer, b_.part, batch.rows);
}

void TextModel::kda(const KdaLayer& layer) {
  constexpr Stage kMain = Stage::kMain;
  const LinearJob of_x[] = {{layer.qkv, b_.x, b_.qkv},
                            {{&layer.f_a, 1}, b_.x, b_.f_low},
                            {{&layer.g_a, 1}, b_.x, b_.g_low},
                            {{&layer.beta, 1}, b_.x, b_.beta}};
  ops_.linears(kMain, of_x);
  const LinearJob of_low[] = {{{&layer.f_b, 1}, b_.f_low, b_.f}, {{&layer.g_b, 1}, b_.g_low, b_.g}};
  ops_.linears(kMain, of_low);
  ops_.kda(kMain, layer.w, b_.qkv, b_.f, b_.beta, b_.g, layer.state, b_.kda_out);
  ops_.linear_sliced(kMain, layer.out, b_.kda_out, b_.part);
}

void TextModel::dsa(int32_t layer, const DsaLayer& dsa, const Batch& batch, ForwardHooks* hooks) {
  constexpr Stage kMain = Stage::kMain;
  const int32_t lda = config_.q_lora + config_.kv_lora;
  const IndexerLayer* indexer = dsa.indexer ? &*dsa.indexer : nullptr;
  // Without an indexer the previous layer's selection holds, and the products of its own are left out.
  std::array<LinearJob, 4> of_x{{{dsa.q_kv_a, b_.x, b_.qkv_a}}};
  std::array<LinearJob, 2> of_latent{{{{&dsa.q_b, 1}, b_.q_latent, b_.q}}};
  if (indexer != nullptr) {
    of_x[1] = {{&indexer->k, 1}, b_.x, b_.index_k};
    of_x[2] = {{&indexer->gate, 1}, b_.x, b_.index_gate};
    of_x[3] = {{&indexer->weights, 1}, b_.x, b_.index_weight};
    of_latent[1] = {{&indexer->q, 1}, b_.q_latent, b_.index_q};
  }
  ops_.linears(kMain, std::span(of_x).first(indexer != nullptr ? 4 : 1));
  ops_.rms_norm(kMain, dsa.q_norm, config_.rms_eps, config_.q_lora, b_.qkv_a, lda, b_.q_latent);
  ops_.rms_norm(kMain, dsa.kv_norm, config_.rms_eps, config_.kv_lora, at(b_.qkv_a, config_.q_lora), lda,
                b_.latent);
  ops_.latent_append(kMain, b_.latent, config_.kv_lora, dsa.latents);
  ops_.linears(kMain, std::span(of_latent).first(indexer != nullptr ? 2 : 1));
  if (indexer != nullptr) {
    ops_.pool_append(kMain, indexer->w, b_.index_k, b_.index_gate, indexer->pools, indexer->tail);
    ops_.pool_select(kMain, indexer->w, b_.index_q, b_.index_weight, indexer->pools, b_.selection);
    if (hooks != nullptr) hooks->selection(layer, b_.selection, batch);
  }
  ops_.sparse_attention(kMain, dsa.w, b_.q, dsa.latents, b_.selection, config_.kpool, b_.attention);
  ops_.linear_sliced(kMain, dsa.out, b_.attention, b_.part);
}

}  // namespace firesteel
