// A forward on the CUDA backend: the bound batch and recorded forwards.
#include <algorithm>
#include <utility>

#include "base/word_hash.h"
#include "ops/cuda/cuda_ops_impl.h"
#include "ops/cuda/launch.h"

namespace firesteel::cuda {

namespace {

// Recorded forwards. A decode step of some streams takes one for each power of two of the longest context.
constexpr size_t kMaxRecordings = 256;
constexpr int32_t kLeastSpan = 2048;  // positions

/// Launches of few rows are sized for the next power of two of the longest position, so that a recording
/// serves until the context has doubled.
int32_t launch_position(int32_t position) {
  int64_t span = kLeastSpan;
  while (span <= position) span *= 2;
  return static_cast<int32_t>(std::min<int64_t>(span - 1, INT32_MAX - 1));
}

}  // namespace

void CudaOps::bind(const Batch& batch) {
  check(device_->make_current());
  rows_ = batch.rows;
  segments_ = static_cast<int32_t>(batch.segments.size());
  max_position_ = 0;
  max_segment_rows_ = 0;
  WordHash shape;
  // tokens, row → segment, segments, pages: one block, one copy.
  const size_t rows = static_cast<size_t>(rows_), segments = batch.segments.size(),
               pages = batch.page_table.size();
  const size_t fixed = 2 * rows + 5 * segments;
  const size_t bytes = (fixed + pages) * sizeof(int32_t);
  if (bytes > bound_.size()) {
    check(stream_.synchronize());
    auto grown = device_->allocate(2 * bytes, "the batch tables");
    if (!grown.ok()) return check(grown.error());
    replace(bound_, std::move(grown).value());
  }
  if (bytes > staging_.size()) return unsupported("a page table of more than 8 million pages");
  check(bound_copied_.synchronize());  // the staging memory is free again
  auto* host = reinterpret_cast<int32_t*>(staging_.data());
  auto* dev = reinterpret_cast<int32_t*>(bound_.data());
  view_ = BatchView{dev, dev + rows, dev + 2 * rows, dev + fixed, rows_, segments_};
  std::copy(batch.tokens.begin(), batch.tokens.end(), host);
  shape.add(static_cast<uint64_t>(rows_));
  for (size_t i = 0; i < segments; ++i) {
    const Segment& s = batch.segments[i];
    const int32_t fields[5] = {s.first_row, s.rows, s.start, s.slot, s.page_begin};
    std::copy_n(fields, 5, host + 2 * rows + 5 * i);
    std::fill_n(host + rows + s.first_row, s.rows, static_cast<int32_t>(i));
    max_position_ = std::max(max_position_, s.start + s.rows - 1);
    max_segment_rows_ = std::max(max_segment_rows_, s.rows);
    shape.add(static_cast<uint64_t>(s.rows));
  }
  std::copy(batch.page_table.begin(), batch.page_table.end(), host + fixed);
  if (rows_ <= kFewRows) max_position_ = launch_position(max_position_);
  shape.add(static_cast<uint64_t>(max_position_));
  shape.add(alone_ ? 1 : 0);
  shape_key_ = shape.value();
  // Launches of a prompt are long: nothing is gained by overlapping them.
  device_->set_overlap(rows_ <= kFewRows);
  check(device_->to_device(stream_, dev, host, bytes));
  check(bound_copied_.record(stream_));
  check(lost_);
  if (exchange_ != nullptr) exchange_->begin(rows_);
}

void CudaOps::replace(gpu::Buffer& buffer, gpu::Buffer with) {
  old_buffers_.push_back(std::exchange(buffer, std::move(with)));
  old_recordings_.push_back(std::exchange(recordings_, {}));
}

bool CudaOps::begin(uint64_t key) {
  if (rows_ > kFewRows || !status_.ok()) return true;
  const std::pair<uint64_t, uint64_t> shape{key, shape_key_};
  if (const auto found = recordings_.find(shape); found != recordings_.end()) {
    gpu::Graph& graph = found->second.graph;
    found->second.used = ++forwards_;
    if (graph.valid()) {
      check(graph.replay(stream_));
      return false;
    }
    // The first time ran as it was issued, which settled scratch and tables; now it is recorded.
    check(device_->capture_begin(stream_));
    recording_ = &graph;
    return true;
  }
  recordings_.emplace(shape, Recording{{}, ++forwards_});
  return true;
}

Status CudaOps::finish() {
  if (gpu::Graph* const recorded = std::exchange(recording_, nullptr); recorded != nullptr) {
    auto graph = device_->capture_end(stream_);
    if (!graph.ok()) check(graph.error());
    if (status_.ok()) {
      *recorded = std::move(graph).value();
      check(recorded->replay(stream_));
    }
  }
  check(stream_.synchronize());
  if (exchange_ != nullptr) {
    // Why the sums failed says more than what failed because of it.
    if (Status sums = exchange_->finish(); !sums.ok()) status_ = std::move(sums);
  }
  old_buffers_.clear();
  old_recordings_.clear();
  if (recordings_.size() > kMaxRecordings) {
    recordings_.erase(
        std::min_element(recordings_.begin(), recordings_.end(),
                         [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
  }
  return std::exchange(status_, Status());
}

}  // namespace firesteel::cuda
