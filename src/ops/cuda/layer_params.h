// The parameter structs of the kernels between a layer's products: hyper-connections, router, KDA. As
// params.h.
#pragma once

#include "ops/cuda/params.h"

namespace firesteel::cuda {

inline constexpr int kHyperSumPitch = 32;  // 24 products, the sum of squares, padding

struct HyperMixParams {  // the streams after a sublayer (y != nullptr), and their products with the next
                         // site's fn
  const float* y;        // [rows, hidden]
  const float* post;     // [rows, 4]
  const float* comb;     // [rows, 4, 4]
  Bits16* streams;       // [rows, 4, hidden]
  const uint8_t* fn;     // packed bf16 [24, 4·hidden]
  float* sums;           // [hidden / 64, rows, kHyperSumPitch]
  int32_t rows, hidden;
};

struct HyperOut {
  float* post;
  float* comb;
  int32_t iters;
  float hc_eps;
};

struct HyperFinishParams {
  const float* z;         // sums of hyper_mix; or of a product: [slices · unit_span, rows, 24]
  const Bits16* streams;  // [rows, 4, hidden]
  const float* base;
  const float* scale;
  const float* norm;
  Bits16* x;
  HyperOut out;
  int64_t unit_stride;  // of a product's sums
  int32_t rows, hidden, slices, unit_span;
  float rms_eps;
};

// Prompts in one launch: so many rows go to so many blocks, which share `sums` floats a row and block.
inline constexpr int kHyperManyHidden = 4096, kHyperManyRows = 32, kHyperManyBlocks = 16, kHyperManySums = 32;
inline constexpr int kHyperManyTiles = 2048;  // of rows, at most

struct HyperManyParams {
  HyperMixParams mix;        // sums: scratch [tiles, kHyperManyBlocks, kHyperManyRows, kHyperManySums]
  HyperFinishParams finish;  // z: not used
  float* squares;            // scratch [tiles, kHyperManyRows, kHyperManyBlocks]
};

struct HyperPostParams {
  const float* y;
  const float* post;
  const float* comb;
  Bits16* streams;
  int32_t rows, hidden;
};

inline constexpr int kMostPicks = 64, kPicksSize = kMostPicks + 8;

struct RouterParams {
  const float* logits;  // [units, rows, experts]
  const float* bias;
  int32_t* idx;
  float* weight;
  // For kernels that run beside router_few, or nullptr: of one row, its choice plus one, each as soon as it
  // is made; and behind kMostPicks of those for every row 1 when its idx and weight are there. 0 before.
  int32_t* picks;
  int64_t unit_stride;
  int32_t units, rows, experts, top_k, groups, top_groups, norm_topk;
  float factor;
};

struct RouterFewParams {
  const Bits16* x;        // [rows, k]
  const uint8_t* weight;  // packed bf16 [experts, k]
  float* logits;          // scratch [rows, experts]
  int32_t k;
  int32_t table_bytes;  // what the experts' launches read first: asked for in L2
  const uint8_t* table;
  RouterParams router;
};

struct ExpertsBeginParams {  // experts_begin.cu
  const Bits16* x;           // [rows, k]
  int32_t rows, k, top_k;
  int32_t units;         // of K; at most eight where the shared expert is part of this
  int32_t after_router;  // the launch before is router_few and reads nothing that is written here
  // The first block: what is made of the choice.
  const int32_t* idx;    // [rows, top_k], ascending within a row
  const int32_t* picks;  // after_router: RouterParams
  const MatrixRef* table;
  FewItem* items;     // [rows · top_k], those not needed with count 0; nullptr: not wanted
  int32_t* counters;  // zeroed
  int32_t counter_count;
  // The shared expert, 16 channels and eight rows a block.
  int32_t shared_blocks, shared_q4, width;
  float limit;
  const uint8_t* shared_gate;  // packed bf16 or 4 bits [width, k]
  const uint8_t* shared_up;
  Bits16* shared_act;  // [rows, width]
  // The other blocks rotate the inputs, 1,024 columns each.
  int32_t
      by_pair;  // gate and up have input scales of their own: all pairs' gate inputs, then their up inputs
  const Bits16* suh;  // of all, unless by_pair
  Bits16* rotated;    // [rows, k], or [2 · pairs, k]
};

// KDA prompts: what a row of a head brings to the recurrence, as floats of a record [head, row, kKdaRecord].
// Each array has kKdaWidth entries, zeros from dim on. Records are read up to kKdaAhead rows past the last
// one.
inline constexpr int kKdaWidth = 128;
inline constexpr int kKdaDecay = 0, kKdaKey = kKdaWidth, kKdaQuery = 2 * kKdaWidth;
inline constexpr int kKdaProduct = 3 * kKdaWidth;  // beta · decay · key
inline constexpr int kKdaValue = 4 * kKdaWidth;    // beta · value
inline constexpr int kKdaRecord = 5 * kKdaWidth;
inline constexpr int kKdaAhead = 16;

inline constexpr int kKdaFewRows = 8;  // of a sequence: kda in one launch

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
  float* records;       // scratch [heads, rows, kKdaRecord] and kKdaAhead records more
  float* o;             // scratch [rows, heads, kKdaWidth]
  int32_t first, rows;  // a prompt goes in pieces of the batch: these rows
  int32_t heads, dim, taps;
  int32_t run;  // rows of a warp of kda_prepare, at most 32
  float lower_bound, rms_eps;
};

}  // namespace firesteel::cuda
