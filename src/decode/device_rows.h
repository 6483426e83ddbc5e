// DeviceRows: asks a Drawer about the rows of a round that lie in its memory, and gives the answers the form
// that shard_candidates() has. The GroupSampler's own; engine thread; allocates nothing after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "decode/sample_row.h"

namespace firesteel {

class DeviceRows {
 public:
  /// `drawer` null: no row may be on_device. `alone`: there is one rank, and candidates() draws what it can.
  DeviceRows(Drawer* drawer, bool alone, int32_t first_id, int32_t widest, int32_t max_rows);

  bool takes(const SamplingParams& params) const;

  /// First token of each row on_device, for best(); value −∞ if none is usable.
  Status find_best(std::span<const SampleRow> rows);
  const Candidate& best(size_t row) const { return best_[row]; }

  /// The last stage of candidates(); later ones are the host's.
  static constexpr int32_t kLastStage = 1;
  using Use = std::function<void(size_t row, const ShardCandidates& own)>;  // made of a std::ref
  /// Calls `use` for the rows on_device in [first, last) with what shard_candidates() gives at this stage, in
  /// memory that is valid during the call; `maxima` of all rows, by find_best() over all ranks. Alone (no
  /// maxima): the drawn token as the only candidate, or with top_k the first of the order.
  Status candidates(std::span<const SampleRow> rows, size_t first, size_t last, std::span<const float> maxima,
                    int32_t stage, const Use& use);

  /// The row with its logits on the host, masked; valid until the next call.
  SampleRow fetch(const SampleRow& row);

 private:
  DrawRow question(const SampleRow& row, int32_t stage) const;
  /// Up to max_ rows on_device from `from` on: fills at_ and asked_; returns the row to go on with.
  size_t collect(std::span<const SampleRow> rows, size_t from, size_t last, int32_t stage, bool all);

  Drawer* const drawer_;
  const bool alone_;
  const int32_t first_id_;
  size_t most_ = 0;  // rows of one question
  std::vector<size_t> at_;
  std::vector<DrawRow> asked_;
  std::vector<float> maxima_;
  std::vector<DrawResult> answers_;
  std::vector<Candidate> found_, best_;
  std::vector<float> host_row_;
};

}  // namespace firesteel
