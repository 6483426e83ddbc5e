// The feed-forward sublayers: dense MLP (spec/model.md 2.7) and mixture of experts (2.8).
#include "model/text_model.h"

namespace firesteel {

void TextModel::feed_forward(int32_t layer, const Block& block, int32_t rows, ForwardHooks* hooks) {
  constexpr Stage kMain = Stage::kMain;
  if (block.dense) {
    const DenseMlp& w = *block.dense;
    ops_.linear(kMain, w.gate_up, b_.x, b_.gate_up);
    ops_.glu(kMain, b_.gate_up, w.width, config_.swiglu_limit, b_.glu);
    ops_.linear_sliced(kMain, w.down, b_.glu, b_.part);
  } else {
    const MoeLayer& w = *block.moe;
    if (hooks == nullptr) {
      ops_.moe(kMain, w.router, w.w, b_.x, b_.expert_ids, b_.expert_weights, b_.part);
    } else {
      ops_.router(kMain, w.router, b_.x, b_.expert_ids, b_.expert_weights);
      hooks->experts(layer, b_.expert_ids, b_.expert_weights, rows);
      ops_.experts(kMain, w.w, b_.x, b_.expert_ids, b_.expert_weights, b_.part);
    }
  }
  exchange();
  if (hooks != nullptr) hooks->mlp_output(layer, b_.part, rows);
}

}  // namespace firesteel
