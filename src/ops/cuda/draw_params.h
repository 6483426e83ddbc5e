// The parameter structs of the kernels that draw tokens (draw.cu). As params.h.
#pragma once

#include <cstdint>

namespace firesteel::cuda {

inline constexpr int kDrawThreads = 256, kDrawItems = 8;
inline constexpr int kDrawChunk = kDrawThreads * kDrawItems;  // logits of a block
inline constexpr int kDrawFinishThreads = 512;
inline constexpr int kDrawBins = 896;          // of distances from the maximum (bin_of)
inline constexpr int kMaxDrawWidth = 1 << 20;  // logits of a row
inline constexpr int kDrawIndexBits = 23;      // of an entry of `listed`; the mass has the other 41
inline constexpr int kMaxDrawn = 1024;         // candidates of a row
inline constexpr unsigned long kDrawStagingBytes = 5ul << 20;

enum class DrawOf : int32_t { kBest, kWinner, kNucleus, kCandidates };

struct DrawSpec {  // of a row, in device memory
  const float* logits;
  double temperature, log_min_p, top_p;
  uint64_t noise;
  float inverse;  // 1 / temperature for estimates in fp32; NaN where they would not hold
  float maximum;  // over all ranks, if params.given
  DrawOf kind;
  int32_t mask;   // row of masks, −1: none
  int32_t count;  // candidates wanted
  int32_t masses;
};

struct DrawWinner {
  double score;
  uint64_t key;  // 0: none
};

struct DrawCut {   // where the kept tokens end
  int64_t before;  // weight of all bins before `bin`
  int64_t target;  // weight at which it ends
  int32_t bin;     // kDrawBins: beyond all of them
  int32_t pad;
};

struct DrawHeader {
  int64_t mass;
  int32_t count, pad;
};

struct DrawToken {  // ops/draw.h: Candidate
  float value;
  int32_t id;
  int64_t mass;
};

struct DrawParams {
  const DrawSpec* specs;  // [rows]
  const uint32_t* masks;  // [, mask_words], of this shard's ids; bit 0 is id first_id − mask_shift
  uint64_t* best;         // [rows, blocks] greatest order keys
  uint64_t* bins;         // [rows, kDrawBins] masses or counts
  uint64_t* mass;         // [rows]
  uint32_t* counts;       // [rows, 2] entries of listed, of chosen
  DrawWinner* winners;    // [rows, blocks]
  DrawCut* cuts;          // [rows]
  uint64_t* listed;       // [rows, width] tokens of the bin where the kept ones end: mass · 2^23 + index
  uint64_t* chosen;       // [rows, kMaxDrawn] order keys of candidates before that bin
  DrawHeader* headers;    // [rows]
  DrawToken* tokens;      // [rows, stride]
  int32_t rows, width, first_id, blocks, mask_words, mask_shift, stride;
  int32_t given;  // the maxima over all ranks are
};

}  // namespace firesteel::cuda
