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

void Ops::moe(Stage stage, const RouterWeights& r, const ExpertWeights& w, const Act* x, int32_t* idx,
              float* weight, float* part) {
  router(stage, r, x, idx, weight);
  experts(stage, w, x, idx, weight, part);
}

}  // namespace firesteel
