#include "decode/group_sampler.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>

#include "base/check.h"

namespace firesteel {
namespace {

/// Before the candidates of a row.
struct RowHeader {
  int64_t mass = 0;
  int32_t count = 0;
  int32_t complete = 0;
};
static_assert(sizeof(RowHeader) == 16 && sizeof(Candidate) == 16 && alignof(Candidate) <= 16);

// Candidates of the usual settings for a full batch go in one message.
constexpr size_t kUsualCandidates = 64;

}  // namespace

GroupSampler::GroupSampler(int32_t vocab, int32_t ranks, int32_t first_id, int32_t widest, int32_t max_rows)
    : ranks_(ranks),
      first_id_(first_id),
      widest_(widest),
      scratch_(vocab),
      maxima_(static_cast<size_t>(max_rows)) {
  if (ranks == 1) return;
  const size_t rows = static_cast<size_t>(max_rows);
  const size_t bytes = std::max({sizeof(RowHeader) + static_cast<size_t>(widest) * sizeof(Candidate),
                                 rows * (sizeof(RowHeader) + kUsualCandidates * sizeof(Candidate)),
                                 sizeof(RoundDigest) + rows * sizeof(float)});
  mine_.resize(bytes);
  all_.resize(bytes * static_cast<size_t>(ranks));
}

Status GroupSampler::gather(Communicator& comm, size_t bytes) {
  return comm.all_gather(CommOp::kCandidates, std::span(mine_).first(bytes),
                         std::span(all_).first(bytes * static_cast<size_t>(ranks_)));
}

Status GroupSampler::gather_maxima(Communicator& comm, const RoundDigest& digest,
                                   std::span<const SampleRow> rows) {
  std::memcpy(mine_.data(), &digest, sizeof digest);
  const size_t bytes = sizeof digest + rows.size() * sizeof(float);
  for (size_t i = 0; i < rows.size(); ++i) {
    const float best = shard_max(rows[i].logits, scratch_);
    std::memcpy(mine_.data() + sizeof digest + i * sizeof best, &best, sizeof best);
  }
  RETURN_IF_ERROR(gather(comm, bytes));
  std::fill_n(maxima_.begin(), rows.size(), -std::numeric_limits<float>::infinity());
  for (size_t r = 0; r < static_cast<size_t>(ranks_); ++r) {
    const std::byte* const from = all_.data() + r * bytes;
    RoundDigest other;
    std::memcpy(&other, from, sizeof other);
    if (other.state != digest.state || other.streams != digest.streams) {
      const Error error{ErrorCode::kInternal, "ranks " + std::to_string(comm.rank()) + " and " +
                                                  std::to_string(r) + " computed different " +
                                                  (other.state != digest.state ? "states" : "activations")};
      comm.abort(error);
      return error;
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      float best;
      std::memcpy(&best, from + sizeof other + i * sizeof best, sizeof best);
      maxima_[i] = std::max(maxima_[i], best);
    }
  }
  return {};
}

size_t GroupSampler::row_bytes(const SampleRow& row, int32_t stage) const {
  const auto capacity = static_cast<size_t>(shard_capacity(row.key.params, widest_, stage));
  return sizeof(RowHeader) + capacity * sizeof(Candidate);
}

size_t GroupSampler::pack(const SampleRow& row, float global_max, int32_t stage, std::byte* to) {
  const ShardCandidates own = shard_candidates(row.logits, first_id_, row.key, global_max, stage, scratch_);
  const size_t bytes = row_bytes(row, stage);
  const RowHeader header{own.mass, static_cast<int32_t>(own.best.size()), own.complete ? 1 : 0};
  CHECK(sizeof header + own.best.size_bytes() <= bytes);
  std::memcpy(to, &header, sizeof header);
  std::memcpy(to + sizeof header, own.best.data(), own.best.size_bytes());
  std::memset(to + sizeof header + own.best.size_bytes(), 0, bytes - sizeof header - own.best.size_bytes());
  return bytes;
}

Status GroupSampler::unpack(Communicator& comm, const SampleRow& row, float global_max, int32_t stage,
                            size_t message, size_t at, int32_t* id) {
  const int32_t capacity = shard_capacity(row.key.params, widest_, stage);
  std::array<ShardCandidates, kMaxRanks> shards;
  for (size_t r = 0; r < static_cast<size_t>(ranks_); ++r) {
    const std::byte* const from = all_.data() + r * message + at;
    RowHeader header;
    std::memcpy(&header, from, sizeof header);
    if (header.count < 0 || header.count > capacity) {
      const Error error{ErrorCode::kInternal, "rank " + std::to_string(r) + " sent candidates out of bounds"};
      comm.abort(error);
      return error;
    }
    shards[r] = {
        {reinterpret_cast<const Candidate*>(from + sizeof header), static_cast<size_t>(header.count)},
        header.mass,
        header.complete != 0};
  }
  *id = choose(std::span(shards).first(static_cast<size_t>(ranks_)), row.key, global_max, scratch_).id;
  return {};
}

/// A nucleus that reaches past the first candidates: the later stages, for this row alone.
Status GroupSampler::more(Communicator& comm, const SampleRow& row, float global_max, int32_t* id) {
  shard_max(row.logits, scratch_);
  (void)shard_candidates(row.logits, first_id_, row.key, global_max, 0, scratch_);
  for (int32_t stage = 1; *id == kNeedMore; ++stage) {
    CHECK(stage < kSamplerStages);
    const size_t bytes = pack(row, global_max, stage, mine_.data());
    RETURN_IF_ERROR(gather(comm, bytes));
    RETURN_IF_ERROR(unpack(comm, row, global_max, stage, bytes, 0, id));
  }
  return {};
}

Status GroupSampler::draw(Communicator* comm, const RoundDigest& digest, std::span<const SampleRow> rows,
                          std::span<int32_t> ids) {
  CHECK(rows.size() <= maxima_.size() && ids.size() == rows.size() && (comm != nullptr || ranks_ == 1));
  if (ranks_ == 1) {
    for (size_t i = 0; i < rows.size(); ++i)
      ids[i] =
          sample_token(rows[i].logits, rows[i].key.params, rows[i].key.seed, rows[i].key.position, scratch_);
    return {};
  }
  RETURN_IF_ERROR(gather_maxima(*comm, digest, rows));
  for (size_t first = 0, last = 0; first < rows.size(); first = last) {
    size_t bytes = 0;
    while (last < rows.size() && (last == first || bytes + row_bytes(rows[last], 0) <= mine_.size())) {
      if (rows.size() > 1) shard_max(rows[last].logits, scratch_);  // of one row the scratch still knows it
      bytes += pack(rows[last], maxima_[last], 0, mine_.data() + bytes);
      ++last;
    }
    RETURN_IF_ERROR(gather(*comm, bytes));
    size_t at = 0;
    for (size_t i = first; i < last; ++i) {
      RETURN_IF_ERROR(unpack(*comm, rows[i], maxima_[i], 0, bytes, at, &ids[i]));
      at += row_bytes(rows[i], 0);
    }
    for (size_t i = first; i < last; ++i)
      if (ids[i] == kNeedMore) RETURN_IF_ERROR(more(*comm, rows[i], maxima_[i], &ids[i]));
  }
  return {};
}

}  // namespace firesteel
