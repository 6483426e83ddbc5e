// The parameter structs of the kernels between a layer's products: hyper-connections, router, KDA. As
// params.h.
#pragma once

#include "ops/cuda/params.h"

namespace firesteel::cuda {

inline constexpr int kHyperCluster = 8;
inline constexpr int kHyperThreads = 256;

struct HyperOut {
  float* post;
  float* comb;
  int32_t iters;
  float hc_eps;
};

struct HyperSiteParams {
  const float* y;     // [rows, hidden], or nullptr: the streams stay
  Bits16* streams;    // [rows, 4, hidden]
  const uint8_t* fn;  // packed bf16 [24, 4·hidden]
  const float* base;
  const float* scale;
  const float* norm;
  Bits16* x;
  HyperOut out;  // holds the ended site's post and comb before, the next one's after
  int32_t rows, hidden;
  float rms_eps;
};

struct HyperFinishParams {
  const float* z;         // of a product: [slices · unit_span, rows, 24]
  const Bits16* streams;  // [rows, 4, hidden]
  const float* base;
  const float* scale;
  const float* norm;
  Bits16* x;
  HyperOut out;
  int64_t unit_stride;
  int32_t rows, hidden, slices, unit_span;
  float rms_eps;
};

struct HyperPostParams {
  const float* y;
  const float* post;
  const float* comb;
  Bits16* streams;
  int32_t rows, hidden;
};

struct RouterParams {
  const float* logits;  // [units, rows, experts]
  const float* bias;
  int32_t* idx;
  float* weight;
  int64_t unit_stride;
  int32_t units, rows, experts, top_k, groups, top_groups, norm_topk;
  float factor;
};

struct RouterFewParams {
  const Bits16* x;        // [rows, k]
  const uint8_t* weight;  // packed bf16 [experts, k]
  float* logits;          // scratch [rows, experts]
  int32_t k;
  RouterParams router;
};

inline constexpr int kKdaFewRows = 8;  // of a sequence, in one launch
inline constexpr unsigned kKdaGateBytes =
    2 * 128 * 128 * 2;  // shared memory for a head's rows of f_b and g_b

struct KdaParams {
  BatchView batch;
  const Bits16* qkv;  // [rows, 3·heads·dim]
  const Bits16* f;
  const Bits16* b;
  const Bits16* g;
  Bits16* out;
  const float* conv;
  const float* a_log;
  const float* dt_bias;
  const float* o_norm;
  uint8_t* state;
  int64_t slot_stride;
  // Few rows: the gates' products too (else f_b = nullptr).
  const uint8_t* f_b;  // packed bf16 [heads·dim, dim]
  const uint8_t* g_b;
  const Bits16* f_low;  // [rows, dim]
  const Bits16* g_low;
  float* q;  // scratch [rows, heads·dim]: normalised query
  float* k;
  float* v;
  float* decay;
  float* beta;  // [rows, heads]
  float* o;     // [rows, heads·dim]
  int32_t heads, dim, taps;
  float lower_bound, rms_eps;
};

}  // namespace firesteel::cuda
