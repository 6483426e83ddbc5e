// The attention sublayers: KDA (spec/model.md 2.3) and DSA with its indexer (2.4 to 2.6).
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
  ops_.linear(kMain, layer.qkv, b_.x, b_.qkv);
  ops_.linear(kMain, {&layer.f_a, 1}, b_.x, b_.low);
  ops_.linear(kMain, {&layer.f_b, 1}, b_.low, b_.f);
  ops_.linear(kMain, {&layer.g_a, 1}, b_.x, b_.low);
  ops_.linear(kMain, {&layer.g_b, 1}, b_.low, b_.g);
  ops_.linear(kMain, {&layer.beta, 1}, b_.x, b_.beta);
  ops_.kda(kMain, layer.w, b_.qkv, b_.f, b_.beta, b_.g, layer.state, b_.kda_out);
  ops_.linear_sliced(kMain, layer.out, b_.kda_out, b_.part);
}

void TextModel::dsa(int32_t layer, const DsaLayer& dsa, const Batch& batch, ForwardHooks* hooks) {
  constexpr Stage kMain = Stage::kMain;
  const int32_t lda = config_.q_lora + config_.kv_lora;
  ops_.linear(kMain, dsa.q_kv_a, b_.x, b_.qkv_a);
  ops_.rms_norm(kMain, dsa.q_norm, config_.rms_eps, config_.q_lora, b_.qkv_a, lda, b_.q_latent);
  ops_.rms_norm(kMain, dsa.kv_norm, config_.rms_eps, config_.kv_lora, at(b_.qkv_a, config_.q_lora), lda,
                b_.latent);
  ops_.latent_append(kMain, b_.latent, config_.kv_lora, dsa.latents);
  if (dsa.indexer) select(layer, *dsa.indexer, batch, hooks);
  ops_.linear(kMain, {&dsa.q_b, 1}, b_.q_latent, b_.q);
  ops_.sparse_attention(kMain, dsa.w, b_.q, dsa.latents, b_.selection, config_.kpool, b_.attention);
  ops_.linear_sliced(kMain, dsa.out, b_.attention, b_.part);
}

void TextModel::select(int32_t layer, const IndexerLayer& indexer, const Batch& batch, ForwardHooks* hooks) {
  constexpr Stage kMain = Stage::kMain;
  ops_.linear(kMain, {&indexer.k, 1}, b_.x, b_.index_k);
  ops_.linear(kMain, {&indexer.gate, 1}, b_.x, b_.index_gate);
  ops_.pool_append(kMain, indexer.w, b_.index_k, b_.index_gate, indexer.pools, indexer.tail);
  ops_.linear(kMain, {&indexer.q, 1}, b_.q_latent, b_.index_q);
  ops_.linear(kMain, {&indexer.weights, 1}, b_.x, b_.index_weight);
  ops_.pool_select(kMain, indexer.w, b_.index_q, b_.index_weight, indexer.pools, b_.selection);
  if (hooks != nullptr) hooks->selection(layer, b_.selection, batch);
}

}  // namespace firesteel
