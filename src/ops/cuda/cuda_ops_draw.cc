// Drawing tokens on the CUDA backend: one upload, up to four launches (draw.cu), one download.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>

#include "base/check.h"
#include "ops/cuda/cuda_ops_impl.h"

namespace firesteel::cuda {

namespace {

constexpr int32_t kMostRows = 32;
constexpr size_t kListBytes = size_t{40} << 20;  // of scratch: an entry for each logit, should all be alike
// Estimates in fp32 hold for these temperatures.
constexpr double kLeastTemperature = 1e-30, kGreatestTemperature = 1e30;

static_assert(sizeof(DrawToken) == sizeof(Candidate) && offsetof(DrawToken, id) == offsetof(Candidate, id) &&
              offsetof(DrawToken, mass) == offsetof(Candidate, mass) && kMaxDrawn == kMaxDrawCandidates &&
              kMaxDrawWidth < (1 << kDrawIndexBits));
// The largest question: masks of all rows; the largest answer: the candidates of all rows.
static_assert(kDrawStagingBytes >= kMostRows * (sizeof(DrawSpec) + kMaxDrawWidth / 8 + 8) &&
              kDrawStagingBytes >= kMostRows * (sizeof(DrawHeader) + kMaxDrawn * sizeof(DrawToken)));

DrawOf kind_of_draw(DrawKind kind) {
  switch (kind) {
    case DrawKind::kWinner:
      return DrawOf::kWinner;
    case DrawKind::kNucleus:
      return DrawOf::kNucleus;
    case DrawKind::kCandidates:
      return DrawOf::kCandidates;
    case DrawKind::kBest:
      break;
  }
  return DrawOf::kBest;
}

/// The inverse of the kernels' order_key.
Candidate token_of_key(uint64_t key, int32_t first_id) {
  if (key == 0) return {-std::numeric_limits<float>::infinity(), -1, 0};
  const auto ordered = static_cast<uint32_t>(key >> 32), index = ~static_cast<uint32_t>(key);
  const uint32_t value = (ordered & 0x80000000u) ? ordered & 0x7fffffffu : ~ordered;
  return {std::bit_cast<float>(value), first_id + static_cast<int32_t>(index), 0};
}

}  // namespace

int32_t CudaOps::max_draw_rows(int32_t width) const {
  if (width < 1 || width > kMaxDrawWidth) return 0;
  const size_t row = static_cast<size_t>(width) * sizeof(uint64_t);
  return static_cast<int32_t>(std::min<size_t>(kMostRows, kListBytes / row));
}

bool CudaOps::draw_begin(const DrawShard& shard, std::span<const DrawRow> rows, std::span<const float> maxima,
                         DrawParams& p) {
  CHECK(!rows.empty() && static_cast<int32_t>(rows.size()) <= max_draw_rows(shard.width));
  CHECK(maxima.empty() || maxima.size() == rows.size());
  check(device_->make_current());
  p.rows = static_cast<int32_t>(rows.size());
  p.width = shard.width;
  p.first_id = shard.first_id;
  p.blocks = (shard.width + kDrawChunk - 1) / kDrawChunk;
  const int32_t first_word = shard.first_id / 32;
  p.mask_shift = shard.first_id % 32;
  p.mask_words = (p.mask_shift + shard.width + 31) / 32;
  p.given = maxima.empty() ? 0 : 1;
  p.stride = 1;

  auto* const specs = reinterpret_cast<DrawSpec*>(draw_staging_.data());
  auto* const masks = reinterpret_cast<uint32_t*>(specs + rows.size());
  const auto mask_words = static_cast<size_t>(p.mask_words);
  int32_t masked = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const DrawRow& row = rows[i];
    DrawSpec& spec = specs[i];
    spec = {};
    spec.logits = row.logits;
    spec.temperature = row.temperature;
    spec.log_min_p = row.log_min_p;
    spec.top_p = row.top_p;
    spec.noise = row.noise;
    spec.inverse = row.temperature > kLeastTemperature && row.temperature < kGreatestTemperature
                       ? static_cast<float>(1.0 / row.temperature)
                       : std::numeric_limits<float>::quiet_NaN();
    spec.maximum = maxima.empty() ? 0 : maxima[i];
    spec.kind = kind_of_draw(row.kind);
    spec.mask = -1;
    spec.count = row.count;
    spec.masses = row.masses ? 1 : 0;
    if (row.kind == DrawKind::kCandidates) {
      CHECK(row.count >= 1 && row.count <= kMaxDrawCandidates);
      p.stride = std::max(p.stride, row.count);
    }
    if (row.mask.empty()) continue;
    const std::span<const uint32_t> words = row.mask.subspan(static_cast<size_t>(first_word), mask_words);
    std::copy(words.begin(), words.end(), masks + static_cast<size_t>(masked) * mask_words);
    spec.mask = masked++;
  }
  const size_t asked =
      rows.size() * sizeof(DrawSpec) + static_cast<size_t>(masked) * mask_words * sizeof(uint32_t);

  const size_t n = rows.size(), blocks = n * static_cast<size_t>(p.blocks),
               answer = n * (sizeof(DrawHeader) + static_cast<size_t>(p.stride) * sizeof(DrawToken));
  const size_t bytes = padded(asked) + padded(blocks * 8) + padded(n * kDrawBins * 8) + padded(n * 8) +
                       padded(n * 8) + padded(blocks * sizeof(DrawWinner)) + padded(n * sizeof(DrawCut)) +
                       padded(n * static_cast<size_t>(p.width) * 8) + padded(n * kMaxDrawn * 8) +
                       padded(answer);
  if (!begin_scratch(bytes)) return false;
  std::byte* const question = take<std::byte>(asked);
  p.specs = reinterpret_cast<const DrawSpec*>(question);
  p.masks = reinterpret_cast<const uint32_t*>(question + n * sizeof(DrawSpec));
  p.best = take<uint64_t>(blocks);
  p.bins = take<uint64_t>(n * kDrawBins);
  p.mass = take<uint64_t>(n);
  p.counts = take<uint32_t>(2 * n);
  p.winners = take<DrawWinner>(blocks);
  p.cuts = take<DrawCut>(n);
  p.listed = take<uint64_t>(n * static_cast<size_t>(p.width));
  p.chosen = take<uint64_t>(n * kMaxDrawn);
  std::byte* const said = take<std::byte>(answer);
  p.headers = reinterpret_cast<DrawHeader*>(said);
  p.tokens = reinterpret_cast<DrawToken*>(said + n * sizeof(DrawHeader));
  check(device_->to_device(stream_, question, draw_staging_.data(), asked));
  run(kernels_.draw_best, {{static_cast<unsigned>(p.blocks), static_cast<unsigned>(p.rows)}, kDrawThreads},
      p);
  return status_.ok();
}

Status CudaOps::draw_best(const DrawShard& shard, std::span<const DrawRow> rows, std::span<Candidate> best) {
  CHECK(best.size() == rows.size());
  DrawParams p{};
  if (!draw_begin(shard, rows, {}, p)) return finish();
  const auto blocks = static_cast<size_t>(p.blocks);
  const auto* const keys = reinterpret_cast<const uint64_t*>(draw_staging_.data());
  check(device_->to_host(stream_, draw_staging_.data(), p.best, rows.size() * blocks * sizeof(uint64_t)));
  RETURN_IF_ERROR(finish());
  for (size_t i = 0; i < rows.size(); ++i)
    best[i] = token_of_key(*std::max_element(keys + i * blocks, keys + (i + 1) * blocks), shard.first_id);
  return {};
}

Status CudaOps::draw(const DrawShard& shard, std::span<const DrawRow> rows, std::span<const float> maxima,
                     std::span<DrawResult> results) {
  CHECK(results.size() == rows.size());
  DrawParams p{};
  if (!draw_begin(shard, rows, maxima, p)) return finish();
  const auto any = [&](auto... kinds) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const DrawRow& r) { return ((r.kind == kinds) || ...); });
  };
  const gpu::LaunchShape shape{{static_cast<unsigned>(p.blocks), static_cast<unsigned>(p.rows)},
                               kDrawThreads};
  if (any(DrawKind::kWinner, DrawKind::kNucleus, DrawKind::kCandidates)) run(kernels_.draw_weigh, shape, p);
  if (any(DrawKind::kNucleus, DrawKind::kCandidates)) run(kernels_.draw_cut, shape, p);
  run(kernels_.draw_finish, {{static_cast<unsigned>(p.rows)}, kDrawFinishThreads}, p);

  const size_t n = rows.size(), stride = static_cast<size_t>(p.stride);
  const auto* const headers = reinterpret_cast<const DrawHeader*>(draw_staging_.data());
  const auto* const tokens = reinterpret_cast<const Candidate*>(headers + n);
  check(device_->to_host(stream_, draw_staging_.data(), p.headers,
                         n * (sizeof(DrawHeader) + stride * sizeof(DrawToken))));
  RETURN_IF_ERROR(finish());
  for (size_t i = 0; i < n; ++i)
    results[i] = {{tokens + i * stride, static_cast<size_t>(headers[i].count)}, headers[i].mass};
  return {};
}

}  // namespace firesteel::cuda
