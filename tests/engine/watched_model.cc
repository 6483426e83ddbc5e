#include "watched_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace firesteel {
namespace {

uint64_t combine(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9FB21C651E98DF25ull;
  return (h ^ (h >> 29)) * 0xD6E8FEB86659FD93ull;
}

class OneUlp final : public ForwardHooks {
 public:
  explicit OneUlp(Ops& ops) : ops_(ops) {}
  void mlp_output(int32_t layer, const float* y, int32_t rows) override {
    if (layer != 0 || rows % 2 != 0) return;
    float first = 0;
    ops_.download(&first, y, sizeof first);
    // Where activations are bf16, a sixty-fourth: one unit in fp32 would be rounded away.
    first = ops_.act_size() == sizeof(float) ? std::nextafter(first, std::numeric_limits<float>::infinity())
                                             : first + std::max(std::abs(first), 0x1p-6f) * 0x1p-6f;
    ops_.upload(const_cast<float*>(y), &first, sizeof first);
  }

 private:
  Ops& ops_;
};

}  // namespace

WatchedModel::WatchedModel(Model& model)
    : model_(model),
      prefix_(static_cast<size_t>(model.limits().slots)),
      row_(static_cast<size_t>(model.logit_width())) {}

void WatchedModel::reset_slot(int32_t slot) {
  prefix_[static_cast<size_t>(slot)] = 1;
  model_.reset_slot(slot);
}

Status WatchedModel::forward(const Batch& batch, std::span<const int32_t> logit_rows, ForwardHooks* hooks) {
  OneUlp fault(model_.ops());
  Status status = model_.forward(batch, logit_rows, fault_ ? &fault : hooks);
  if (!status.ok()) return status;
  ++forwards;
  rows += batch.rows;
  size_t next = 0;
  for (const Segment& s : batch.segments) {
    uint64_t& prefix = prefix_[static_cast<size_t>(s.slot)];
    for (int32_t i = 0; i < s.rows; ++i) {
      const int32_t row = s.first_row + i;
      prefix = combine(prefix, static_cast<uint64_t>(batch.tokens[static_cast<size_t>(row)]) + 1);
      if (next == logit_rows.size() || logit_rows[next] != row) continue;
      const float* const from = model_.logits() + next++ * row_.size();
      model_.ops().download(row_.data(), from, row_.size() * sizeof(float));
      uint64_t digest = 7;
      for (const float v : row_) digest = combine(digest, std::bit_cast<uint32_t>(v));
      const auto [at, fresh] = seen_.emplace(prefix, digest);
      if (fresh) continue;
      ++repeated;
      different += at->second != digest;
    }
  }
  return status;
}

}  // namespace firesteel
