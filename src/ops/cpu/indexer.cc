// The indexer (spec/model.md 2.5): pooled keys, scores, exact selection. And the latent cache's append.
#include <algorithm>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/dot_block.h"
#include "ops/cpu/order.h"
#include "ops/cpu/rows.h"

namespace firesteel::cpu {
namespace {

constexpr int32_t kPoolBlock = 64;  // pools scored by one task
constexpr int32_t kWindow = 16384;  // pools scored before they are merged into the candidates
constexpr float kLayerNormEps = 1e-6f;

/// The pooled key of kpool tail entries (ki, ga): per channel a softmax over the tokens, then the mixture.
void mix_pool(const IndexerWeights& w, const float* tail, float* key) {
  const size_t dim = static_cast<size_t>(w.dim);
  for16(dim, [&](size_t c, size_t n) {
    const auto gate = [&](int32_t j) {
      const size_t at = static_cast<size_t>(j) * dim + c;
      return cpu::add(load16(tail + 2 * static_cast<size_t>(j) * dim + dim + c, n), load16(w.ape + at, n));
    };
    V16 most = gate(0);
    for (int32_t j = 1; j < w.kpool; ++j) {
      most = map(gate(j), most, [](V a, V b) { return hn::IfThenElse(hn::Gt(a, b), a, b); });
    }
    V16 total = zero16(), mix = zero16();
    for (int32_t j = 0; j < w.kpool; ++j) {
      const V16 e = exp16(sub(gate(j), most));
      total = cpu::add(total, e);
      mix = fma(e, load16(tail + 2 * static_cast<size_t>(j) * dim + c, n), mix);
    }
    store16(map(mix, total, [](V a, V b) { return hn::Div(a, b); }), key + c, n);
  });
}

/// The `top` best of a stream of keys, exactly, in bounded memory.
class Best {
 public:
  Best(uint64_t* keys, size_t top) : keys_(keys), top_(top) {}
  void offer(uint64_t key) {
    if (key <= floor_) return;
    keys_[count_++] = key;
    if (count_ == 2 * top_) shrink();
  }
  /// Writes their indexes in ascending order.
  void finish(int32_t* out) {
    if (count_ > top_) shrink();
    for (size_t i = 0; i < count_; ++i) out[i] = static_cast<int32_t>(key_index(keys_[i]));
    std::sort(out, out + count_);
  }
  size_t count() const { return std::min(count_, top_); }

 private:
  void shrink() {
    std::nth_element(keys_, keys_ + top_ - 1, keys_ + count_, [](uint64_t a, uint64_t b) { return a > b; });
    floor_ = keys_[top_ - 1];
    count_ = top_;
  }
  uint64_t* keys_;
  size_t top_, count_ = 0;
  uint64_t floor_ = 0;
};

}  // namespace

void CpuOps::latent_append(Stage, const Act* c, int32_t latent, Plane plane) {
  const size_t bytes = latent_row_bytes(latent);
  for (int32_t r = 0; r < batch_.rows; ++r) {
    store_kv(f32(c) + int64_t{r} * latent, latent,
             plane_row(plane, segment_of(r), position(r), kPageTokens, bytes));
  }
}

void CpuOps::pool_append(Stage, const IndexerWeights& w, const Act* ki, const Act* ga, Plane pools,
                         SlotPlane tail) {
  const size_t dim = static_cast<size_t>(w.dim);
  Scratch s = scratch();
  float* keys = s.take<float>(static_cast<size_t>(workers()) * dim);
  pool_.parallel_for(static_cast<int64_t>(batch_.segments.size()), [&](int64_t i, int worker) {
    float* key = keys + static_cast<size_t>(worker) * dim;
    const Segment& seg = batch_.segments[static_cast<size_t>(i)];
    auto* kept = reinterpret_cast<float*>(tail.base + static_cast<size_t>(seg.slot) * tail.slot_stride);
    for (int32_t t = 0; t < seg.rows; ++t) {
      const int64_t row = int64_t{seg.first_row} + t;
      const int32_t at = seg.start + t, j = at % w.kpool;
      float* entry = kept + 2 * static_cast<size_t>(j) * dim;
      layer_norm_row(w.k_norm_weight, w.k_norm_bias, kLayerNormEps, w.dim, f32(ki) + row * w.dim, entry);
      std::memcpy(entry + dim, f32(ga) + row * w.dim, sizeof(float) * dim);
      if (j + 1 < w.kpool) continue;
      mix_pool(w, kept, key);
      store_kv(key, w.dim, plane_row(pools, seg, at / w.kpool, kPageTokens / w.kpool, pool_row_bytes(w.dim)));
    }
  });
}

void CpuOps::pool_select(Stage, const IndexerWeights& w, const Act* q, const Act* hw, Plane pools,
                         Selection out) {
  CHECK(w.top_pools >= 1 && w.top_pools <= kMaxTopPools && w.top_pools <= out.max_pools);
  const float dot_scale = rsqrt1(static_cast<float>(w.dim)), head_scale = rsqrt1(static_cast<float>(w.heads));
  const auto visible = [&](int32_t row) { return (position(row) + 1) / w.kpool; };
  const size_t per_worker = static_cast<size_t>(w.heads) * kPoolBlock + kLanes + kv_room(kPoolBlock, w.dim);
  const size_t top = static_cast<size_t>(w.top_pools);

  for (int32_t first = 0; first < batch_.rows;) {
    if (visible(first) <= w.top_pools) {  // dense: all pools
      int32_t* ids = out.pools + int64_t{first} * out.max_pools;
      for (int32_t p = 0; p < visible(first); ++p) ids[p] = p;
      out.count[first] = visible(first);
      ++first;
      continue;
    }
    int32_t last = first;
    while (last < batch_.rows && visible(last) > w.top_pools) ++last;
    Scratch s = scratch();
    float* worker_scratch = s.take<float>(static_cast<size_t>(workers()) * per_worker);
    const int32_t rows = s.rows_that_fit(last - first, kWindow + 4 * top + sizeof(Best) / sizeof(float) + 64);
    float* scores = s.take<float>(static_cast<size_t>(rows) * kWindow);
    uint64_t* keys = s.take<uint64_t>(static_cast<size_t>(rows) * 2 * top);
    Best* best = s.take<Best>(static_cast<size_t>(rows));
    int32_t most = 0;
    for (int32_t r = 0; r < rows; ++r) {
      best[r] = Best(keys + static_cast<size_t>(r) * 2 * top, top);
      most = std::max(most, visible(first + r));
    }
    for (int32_t window = 0; window < most; window += kWindow) {
      const int32_t width = std::min(kWindow, most - window), blocks = (width + kPoolBlock - 1) / kPoolBlock;
      pool_.parallel_for(int64_t{rows} * blocks, [&](int64_t task, int worker) {
        const int32_t r = first + static_cast<int32_t>(task % rows);
        const int32_t from = window + static_cast<int32_t>(task / rows) * kPoolBlock;
        const int32_t count = std::min({kPoolBlock, window + width - from, visible(r) - from});
        if (count <= 0) return;
        const Segment& seg = segment_of(r);
        float* dots = worker_scratch + static_cast<size_t>(worker) * per_worker;  // [heads, kPoolBlock]
        float* room = dots + static_cast<size_t>(w.heads) * kPoolBlock + kLanes;
        const float* key[kPoolBlock];
        for (int32_t i = 0; i < count; ++i) {
          key[i] = load_kv(plane_row(pools, seg, from + i, kPageTokens / w.kpool, pool_row_bytes(w.dim)),
                           w.dim, room + int64_t{i} * w.dim);
        }
        const float* qr = f32(q) + int64_t{r} * w.heads * w.dim;
        dot_pairs(qr, w.dim, w.heads, key, count, static_cast<size_t>(w.dim), dots, kPoolBlock);
        float* score = scores + int64_t{r - first} * kWindow + (from - window);
        for16(static_cast<size_t>(count), [&](size_t c, size_t n) {
          V16 acc = zero16();
          for (int32_t h = 0; h < w.heads; ++h) {
            const V16 scaled = mul(load16(dots + int64_t{h} * kPoolBlock + c, n), set16(dot_scale));
            // Not max(): a NaN must stay one on every machine.
            const V16 positive =
                map(scaled, [](V v) { return hn::IfThenElse(hn::Lt(v, hn::Zero(D())), hn::Zero(D()), v); });
            acc = fma(set16(f32(hw)[int64_t{r} * w.heads + h] * head_scale), positive, acc);
          }
          store16(acc, score + c, n);
        });
      });
      pool_.parallel_for(rows, [&](int64_t r, int) {
        const int32_t end = std::min(width, visible(first + static_cast<int32_t>(r)) - window);
        const float* score = scores + r * kWindow;
        for (int32_t p = 0; p < end; ++p)
          best[r].offer(descending_key(score[p], static_cast<uint32_t>(window + p)));
      });
    }
    pool_.parallel_for(rows, [&](int64_t r, int) {
      best[r].finish(out.pools + (first + r) * out.max_pools);
      out.count[first + r] = static_cast<int32_t>(best[r].count());
    });
    first += rows;
  }
}

}  // namespace firesteel::cpu
