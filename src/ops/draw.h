// Drawer: draws tokens where a backend keeps its logits, so that a round fetches a few candidates and not
// whole rows of logits.
//
// decode/sampler.h defines the order of tokens, noise, masses and the choice. A Drawer computes the same
// numbers with the same rounding, so what it says about a row is what the host would say, bit for bit, in any
// batch of rows. The thread that issues ops calls it; calls wait for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "base/result.h"

namespace firesteel {

/// A token that may be chosen. `mass` = ⌊exp(s − M) · 2^40⌋ where a nucleus is asked for without top_k, else
/// 0.
struct Candidate {
  float value = 0;
  int32_t id = 0;
  int64_t mass = 0;
};

/// What is asked about a row. s is a logit divided by the temperature, M the s of the maximum.
enum class DrawKind : uint8_t {
  kBest,        // the first token in the order
  kWinner,      // the token with the largest s + noise among those with s ≥ M + log_min_p
  kNucleus,     // the same among the first tokens whose masses reach top_p of the whole; one rank only
  kCandidates,  // the first `count` tokens in the order, and the mass of the shard if `masses`
};

inline constexpr int32_t kMaxDrawCandidates = 1024;

struct DrawRow {
  DrawKind kind = DrawKind::kBest;
  bool masses = false;
  int32_t count = 0;               // of candidates, at most kMaxDrawCandidates
  const float* logits = nullptr;   // [width], the backend's memory
  std::span<const uint32_t> mask;  // host memory; bit i % 32 of word i / 32: id i may come; empty: all
  double temperature = 1;          // > 0
  double log_min_p = -std::numeric_limits<double>::infinity();  // ≤ 0
  double top_p = 1;                                             // in (0, 1)
  uint64_t noise = 0;  // the part of the noise's hash that the row shares
};

struct DrawResult {
  std::span<const Candidate> best;  // in the order, valid until the next call; empty: no usable logit
  int64_t mass = 0;
};

/// The part of the vocabulary that the rows hold: ids [first_id, first_id + width).
struct DrawShard {
  int32_t first_id = 0, width = 0;
};

class Drawer {
 public:
  virtual ~Drawer() = default;
  /// Rows of one call; 0: it does not take rows of this width.
  virtual int32_t max_draw_rows(int32_t width) const = 0;
  /// The first token of each row in the order (mass 0), whatever its kind; value −inf: no usable logit.
  virtual Status draw_best(const DrawShard& shard, std::span<const DrawRow> rows,
                           std::span<Candidate> best) = 0;
  /// Answers of all rows. `maxima`: the maximum of each row over all ranks, or empty where there is one rank.
  virtual Status draw(const DrawShard& shard, std::span<const DrawRow> rows, std::span<const float> maxima,
                      std::span<DrawResult> results) = 0;
  /// Copies from the backend's memory.
  virtual void download(void* host, const void* src, size_t bytes) = 0;
};

}  // namespace firesteel
