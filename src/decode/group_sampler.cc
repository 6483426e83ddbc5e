#include "decode/group_sampler.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "base/check.h"
#include "decode/sampler_impl.h"

namespace firesteel {

using namespace sampler_internal;  // NOLINT(google-build-using-namespace)

namespace {

constexpr double kLn2 = 0.693147180559945309417232121458;

/// Before the candidates of a row.
struct RowHeader {
  int64_t mass = 0;
  int32_t count = 0;
  int32_t complete = 0;
};
static_assert(sizeof(RowHeader) == 16 && sizeof(Candidate) == 16 && alignof(Candidate) <= 16);

/// Before the best tokens of a row that is scored.
struct ScoreHeader {
  int64_t mass = 0;
  float value = 0;  // of the reported token, −inf on ranks that do not hold it
  int32_t count = 0;
};
static_assert(sizeof(ScoreHeader) == 16);

// Candidates of the usual settings for a full batch go in one message.
constexpr size_t kUsualCandidates = 64;

}  // namespace

GroupSampler::GroupSampler(int32_t vocab, int32_t ranks, int32_t first_id, int32_t widest, int32_t max_rows,
                           Drawer* drawer)
    : ranks_(ranks),
      first_id_(first_id),
      widest_(widest),
      scratch_(vocab),
      device_(drawer, ranks == 1, first_id, widest, max_rows),
      maxima_(static_cast<size_t>(max_rows)),
      places_(static_cast<size_t>(max_rows)) {
  const size_t rows = static_cast<size_t>(max_rows);
  const size_t bytes = std::max({sizeof(RowHeader) + static_cast<size_t>(widest) * sizeof(Candidate),
                                 rows * (sizeof(ScoreHeader) + kMaxLogprobs * sizeof(Candidate)),
                                 rows * (sizeof(RowHeader) + kUsualCandidates * sizeof(Candidate)),
                                 sizeof(RoundDigest) + rows * sizeof(float)});
  mine_.resize(bytes);
  if (ranks > 1) all_.resize(bytes * static_cast<size_t>(ranks));
}

Status GroupSampler::gather(Communicator& comm, size_t bytes) {
  return comm.all_gather(CommOp::kCandidates, std::span(mine_).first(bytes),
                         std::span(all_).first(bytes * static_cast<size_t>(ranks_)));
}

Status GroupSampler::gather_maxima(Communicator& comm, const RoundDigest& digest,
                                   std::span<const SampleRow> rows) {
  std::memcpy(mine_.data(), &digest, sizeof digest);
  const size_t bytes = sizeof digest + rows.size() * sizeof(float);
  RETURN_IF_ERROR(device_.find_best(rows));
  for (size_t i = 0; i < rows.size(); ++i) {
    const float best = rows[i].on_device ? device_.best(i).value : shard_max(rows[i].logits, scratch_);
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

void GroupSampler::write(const ShardCandidates& own, size_t bytes, std::byte* to) const {
  const RowHeader header{own.mass, static_cast<int32_t>(own.best.size()), own.complete ? 1 : 0};
  CHECK(sizeof header + own.best.size_bytes() <= bytes);
  std::memcpy(to, &header, sizeof header);
  if (!own.best.empty()) std::memcpy(to + sizeof header, own.best.data(), own.best.size_bytes());
  std::memset(to + sizeof header + own.best.size_bytes(), 0, bytes - sizeof header - own.best.size_bytes());
}

/// The first candidates of rows [first, last) to places_.
Status GroupSampler::pack(std::span<const SampleRow> rows, size_t first, size_t last) {
  for (size_t i = first; i < last; ++i) {
    const SampleRow& row = rows[i];
    if (row.on_device) continue;
    if (rows.size() > 1) shard_max(row.logits, scratch_);  // of one row the scratch still knows it
    write(shard_candidates(row.logits, first_id_, row.key, maxima_[i], 0, scratch_), row_bytes(row, 0),
          places_[i]);
  }
  const auto use = [&](size_t i, const ShardCandidates& own) {
    write(own, row_bytes(rows[i], 0), places_[i]);
  };
  return device_.candidates(rows, first, last, maxima_, 0, std::ref(use));
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
Status GroupSampler::more(Communicator& comm, std::span<const SampleRow> rows, size_t at, int32_t* id) {
  SampleRow row = rows[at];
  const float global_max = maxima_[at];
  for (int32_t stage = 1; *id == kNeedMore; ++stage) {
    CHECK(stage < kSamplerStages);
    const size_t bytes = row_bytes(row, stage);
    if (row.on_device && stage > DeviceRows::kLastStage) row = device_.fetch(row);
    if (row.on_device) {
      const auto use = [&](size_t, const ShardCandidates& own) { write(own, bytes, mine_.data()); };
      RETURN_IF_ERROR(device_.candidates(rows, at, at + 1, maxima_, stage, std::ref(use)));
    } else {
      shard_max(row.logits, scratch_);
      (void)shard_candidates(row.logits, first_id_, row.key, global_max, 0, scratch_);
      write(shard_candidates(row.logits, first_id_, row.key, global_max, stage, scratch_), bytes,
            mine_.data());
    }
    RETURN_IF_ERROR(gather(comm, bytes));
    RETURN_IF_ERROR(unpack(comm, row, global_max, stage, bytes, 0, id));
  }
  return {};
}

Status GroupSampler::draw_alone(std::span<const SampleRow> rows, std::span<int32_t> ids) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleRow& row = rows[i];
    if (!row.on_device)
      ids[i] = sample_token(row.logits, row.key.params, row.key.seed, row.key.position, scratch_);
  }
  const auto use = [&](size_t i, const ShardCandidates& own) {
    // What the device has drawn is the only candidate; of the first top_k it drew none.
    if (path_of(rows[i].key.params) == Path::kTopK)
      ids[i] = choose(std::span(&own, 1), rows[i].key, 0, scratch_).id;
    else
      ids[i] = own.best.empty() ? kNoToken : own.best[0].id;
  };
  return device_.candidates(rows, 0, rows.size(), {}, 0, std::ref(use));
}

Status GroupSampler::draw(Communicator* comm, const RoundDigest& digest, std::span<const SampleRow> rows,
                          std::span<int32_t> ids) {
  CHECK(rows.size() <= maxima_.size() && ids.size() == rows.size() && (comm != nullptr || ranks_ == 1));
  if (ranks_ == 1) return draw_alone(rows, ids);
  RETURN_IF_ERROR(gather_maxima(*comm, digest, rows));
  for (size_t first = 0, last = 0; first < rows.size(); first = last) {
    size_t bytes = 0;
    while (last < rows.size() && (last == first || bytes + row_bytes(rows[last], 0) <= mine_.size())) {
      places_[last] = mine_.data() + bytes;
      bytes += row_bytes(rows[last++], 0);
    }
    RETURN_IF_ERROR(pack(rows, first, last));
    RETURN_IF_ERROR(gather(*comm, bytes));
    for (size_t i = first; i < last; ++i) {
      const auto at = static_cast<size_t>(places_[i] - mine_.data());
      RETURN_IF_ERROR(unpack(*comm, rows[i], maxima_[i], 0, bytes, at, &ids[i]));
    }
    for (size_t i = first; i < last; ++i)
      if (ids[i] == kNeedMore) RETURN_IF_ERROR(more(*comm, rows, i, &ids[i]));
  }
  return {};
}

// ---------------------------------------------------------------------------------------------- scores

Status GroupSampler::score(Communicator* comm, std::span<const ScoreRow> rows) {
  while (!rows.empty()) {
    const size_t some = std::min(rows.size(), maxima_.size());
    RETURN_IF_ERROR(score_some(comm, rows.first(some)));
    rows = rows.subspan(some);
  }
  return {};
}

Status GroupSampler::score_maxima(Communicator* comm, std::span<const ScoreRow> rows) {
  for (size_t i = 0; i < rows.size(); ++i) maxima_[i] = shard_max(rows[i].logits, scratch_);
  if (ranks_ == 1) return {};
  const size_t bytes = rows.size() * sizeof(float);
  std::memcpy(mine_.data(), maxima_.data(), bytes);
  RETURN_IF_ERROR(gather(*comm, bytes));
  for (size_t r = 0; r < static_cast<size_t>(ranks_); ++r)
    for (size_t i = 0; i < rows.size(); ++i) {
      float best;
      std::memcpy(&best, all_.data() + r * bytes + i * sizeof best, sizeof best);
      maxima_[i] = std::max(maxima_[i], best);
    }
  return {};
}

// The sum of exp(logit − maximum) is taken in integers of 2^-40 (decode/sampler.h), so that it is the same for
// every way to cut the vocabulary; what it leaves out is below 1e-6 of the whole.
Status GroupSampler::score_some(Communicator* comm, std::span<const ScoreRow> rows) {
  RETURN_IF_ERROR(score_maxima(comm, rows));
  const auto row_bytes = [](const ScoreRow& row) {
    CHECK(!row.report.empty() && row.report.size() <= static_cast<size_t>(kMaxLogprobs) + 1);
    return sizeof(ScoreHeader) + (row.report.size() - 1) * sizeof(Candidate);
  };
  size_t bytes = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ScoreRow& row = rows[i];
    if (rows.size() > 1) shard_max(row.logits, scratch_);
    ScoreHeader header;
    if (maxima_[i] > kMasked) header.mass = shard_mass(row.logits, 1.0, maxima_[i], scratch_);
    const int32_t at = row.token - first_id_;
    const bool here = at >= 0 && at < static_cast<int32_t>(row.logits.size());
    header.value = here ? row.logits[static_cast<size_t>(at)] : kMasked;
    const auto best = static_cast<int32_t>(std::min(row.report.size() - 1, row.logits.size()));
    header.count = collect_best(row.logits, first_id_, best, scratch_);
    std::memset(mine_.data() + bytes, 0, row_bytes(row));
    std::memcpy(mine_.data() + bytes, &header, sizeof header);
    std::memcpy(mine_.data() + bytes + sizeof header, scratch_.candidates.data(),
                static_cast<size_t>(header.count) * sizeof(Candidate));
    bytes += row_bytes(row);
  }
  const std::byte* from = mine_.data();
  if (ranks_ > 1) {
    RETURN_IF_ERROR(gather(*comm, bytes));
    from = all_.data();
  }
  size_t at = 0;
  for (size_t i = 0; i < rows.size(); at += row_bytes(rows[i]), ++i) {
    const std::span<TokenLogprob> report = rows[i].report;
    std::array<ShardCandidates, kMaxRanks> shards;
    int64_t mass = 0;
    float value = kMasked;
    for (size_t r = 0; r < static_cast<size_t>(ranks_); ++r) {
      ScoreHeader header;
      std::memcpy(&header, from + r * bytes + at, sizeof header);
      if (header.count < 0 || header.count > static_cast<int32_t>(report.size()) - 1) {
        const Error error{ErrorCode::kInternal, "rank " + std::to_string(r) + " sent scores out of bounds"};
        comm->abort(error);
        return error;
      }
      mass += header.mass;
      value = std::max(value, header.value);
      shards[r] = {{reinterpret_cast<const Candidate*>(from + r * bytes + at + sizeof header),
                    static_cast<size_t>(header.count)},
                   0,
                   true};
    }
    const double rest = mass > 0 ? log64(static_cast<double>(mass)) - 40 * kLn2 + finite(maxima_[i]) : 0;
    const auto logprob = [&](float v) { return static_cast<float>(static_cast<double>(v) - rest); };
    report[0] = {rows[i].token, logprob(finite(value))};
    Merge merge(std::span<const ShardCandidates>(shards).first(static_cast<size_t>(ranks_)));
    for (size_t k = 1; k < report.size(); ++k) {
      const Candidate* const c = merge.next();
      report[k] = c == nullptr ? TokenLogprob{} : TokenLogprob{c->id, logprob(c->value)};
    }
  }
  return {};
}

}  // namespace firesteel
