// Ops that are made of others; a backend may do better.
#include "ops/ops.h"

namespace firesteel {

void Ops::hyper_next(Stage stage, const HyperSite& w, const float* y, Act* streams, Act* x, float* post,
                     float* comb) {
  hyper_post(stage, y, post, comb, w.fn.spec.k / 4, streams);
  hyper_pre(stage, w, streams, x, post, comb);
}

void Ops::linears(Stage stage, std::span<const LinearJob> jobs) {
  for (const LinearJob& job : jobs) linear(stage, job.ws, job.x, job.y);
}

void Ops::kda_gated(Stage stage, const KdaWeights& w, const Matrix& f_b, const Matrix& g_b, const Act* qkv,
                    const Act* f_low, const Act* b, const Act* g_low, SlotPlane state, Act* f, Act* g,
                    Act* out) {
  const LinearJob gates[] = {{{&f_b, 1}, f_low, f}, {{&g_b, 1}, g_low, g}};
  linears(stage, gates);
  kda(stage, w, qkv, f, b, g, state, out);
}

}  // namespace firesteel
