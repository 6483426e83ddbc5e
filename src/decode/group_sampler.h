// GroupSampler: draws the next tokens of a round from logits that lie in shards on 1, 2 or 4 ranks.
//
// Every rank calls draw() with its own shard of the same rows and gets the same ids: maxima travel first,
// then the candidates of each shard (decode/sampler.h), all as integers and floats that are compared, never
// summed. A digest of what each rank believes travels with the maxima, so ranks that drifted apart are
// noticed in the round where it happens. Engine thread; allocates nothing after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "comm/communicator.h"
#include "decode/device_rows.h"
#include "decode/sample_row.h"
#include "decode/sampler.h"

namespace firesteel {

/// What must be equal on all ranks after a forward; any hash will do.
struct RoundDigest {
  uint64_t state = 0;    // of scheduler, pages and slots
  uint64_t streams = 0;  // of the residual streams
};

inline constexpr int32_t kMaxLogprobs = 20;

/// Log-probability of a token: its logit less the logarithm of the sum of all exp(logit), at temperature 1.
struct TokenLogprob {
  int32_t id = -1;
  float logprob = 0;
};

/// A row whose log-probabilities are wanted.
struct ScoreRow {
  std::span<const float> logits;  // this rank's part of the vocabulary, as the model gave it
  int32_t token = 0;              // reported first
  std::span<TokenLogprob> report;  // then the best, report.size() − 1 ≤ kMaxLogprobs of them; id −1 where there
                                   // are fewer
};

class GroupSampler {
 public:
  /// This rank has ids [first_id, first_id + width) of `vocab`; `widest` is the largest width of any rank.
  /// `drawer`, which must outlive the sampler, has the rows that are on_device; null: all are on the host.
  GroupSampler(int32_t vocab, int32_t ranks, int32_t first_id, int32_t widest, int32_t max_rows,
               Drawer* drawer = nullptr);

  /// Rows with these settings may stay on the device.
  bool draws_on_device(const SamplingParams& params) const { return device_.takes(params); }

  /// ids[i] is the token drawn for rows[i], kNoToken where every logit is masked. `comm` is null where there is one
  /// rank. kInternal: the ranks' digests differ (the communicator is broken by it); else the communicator's error.
  Status draw(Communicator* comm, const RoundDigest& digest, std::span<const SampleRow> rows,
              std::span<int32_t> ids);

  /// Fills the reports of all rows, the same on every rank and for every number of ranks. Errors as of draw().
  Status score(Communicator* comm, std::span<const ScoreRow> rows);

 private:
  Status score_some(Communicator* comm, std::span<const ScoreRow> rows);
  Status score_maxima(Communicator* comm, std::span<const ScoreRow> rows);
  Status gather_maxima(Communicator& comm, const RoundDigest& digest, std::span<const SampleRow> rows);
  size_t row_bytes(const SampleRow& row, int32_t stage) const;
  Status pack(std::span<const SampleRow> rows, size_t first, size_t last);
  void write(const ShardCandidates& own, size_t bytes, std::byte* to) const;
  Status unpack(Communicator& comm, const SampleRow& row, float global_max, int32_t stage, size_t message, size_t at,
                int32_t* id);
  Status gather(Communicator& comm, size_t bytes);
  Status more(Communicator& comm, std::span<const SampleRow> rows, size_t at, int32_t* id);
  Status draw_alone(std::span<const SampleRow> rows, std::span<int32_t> ids);

  const int32_t ranks_, first_id_, widest_;
  SamplerScratch scratch_;
  DeviceRows device_;
  std::vector<float> maxima_;              // [rows]
  std::vector<std::byte*> places_;         // of the rows of a message in mine_
  std::vector<std::byte> mine_, all_;      // a message, and the messages of all ranks
};

}  // namespace firesteel
