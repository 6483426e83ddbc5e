// Attention over selected latents, absorbed form (spec/model.md 2.4).
//
// Per row: q̃_h = W_K,hᵀ q_h; scores q̃_h·c_j·qk_dim^(-1/2); õ_h = Σ p_j c_j; o_h = W_V,h õ_h. Tokens go in the
// row's own order (pools ascending, then the incomplete pool) in blocks of kTokens with a running maximum, so
// the sums depend on the row's selection alone. The scale stays that of the expanded key.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/dot_block.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/tiles.h"

namespace firesteel::cpu {
namespace {

constexpr int32_t kTokens = 64;    // one block of the running softmax: part of the definition
constexpr int32_t kHeads = 8;      // heads of one task
constexpr int32_t kColumns = 64;   // latent columns of one absorption task
constexpr int32_t kKeyRows = 128;  // rows of W_K converted at once

/// out[r, c] = out[r, c] + Σ_i a[r, i]·b_i[c], i ascending, for NR rows and 16 columns (`count` real).
template <int NR>
HWY_INLINE void accumulate_columns(const float* a, int64_t lda, const float* const* b, int32_t n, size_t c,
                                   size_t count, float* out, int64_t ldo) {
  V16 acc[NR];
  for (int r = 0; r < NR; ++r) acc[r] = load16(out + r * ldo + c, count);
  for (int32_t i = 0; i < n; ++i) {
    const V16 bv = load16(b[i] + c, count);
    for (int r = 0; r < NR; ++r) acc[r] = fma(set16(a[r * lda + i]), bv, acc[r]);
  }
  for (int r = 0; r < NR; ++r) store16(acc[r], out + r * ldo + c, count);
}
void accumulate_rows(const float* a, int64_t lda, int32_t rows, const float* const* b, int32_t n,
                     size_t columns, float* out, int64_t ldo) {
  for16(columns, [&](size_t c, size_t count) {
    int32_t r = 0;
    for (; r + 4 <= rows; r += 4) accumulate_columns<4>(a + r * lda, lda, b, n, c, count, out + r * ldo, ldo);
    for (; r < rows; ++r) accumulate_columns<1>(a + r * lda, lda, b, n, c, count, out + r * ldo, ldo);
  });
}

/// The tokens of one row, in order.
class Tokens {
 public:
  Tokens(const int32_t* pools, int32_t count, int32_t position, int32_t kpool)
      : pools_(pools),
        pooled_(int64_t{count} * kpool),
        kpool_(kpool),
        tail_((position + 1) / kpool * kpool),
        total_(pooled_ + position + 1 - tail_) {}
  int64_t size() const { return total_; }
  int32_t operator[](int64_t i) const {
    return i < pooled_ ? pools_[i / kpool_] * kpool_ + static_cast<int32_t>(i % kpool_)
                       : tail_ + static_cast<int32_t>(i - pooled_);
  }

 private:
  const int32_t* pools_;
  int64_t pooled_;
  int32_t kpool_, tail_;
  int64_t total_;
};

/// Softmax of `heads` heads over one block of tokens joined to what came before.
void attend_block(const float* q, int64_t ldq, int32_t heads, const float* const* c, int32_t tokens,
                  int32_t latent, float scale, float* score, float* most, float* total, float* mix) {
  dot_pairs(q, ldq, heads, c, tokens, static_cast<size_t>(latent), score, kTokens);
  const size_t n = static_cast<size_t>(tokens);
  for (int32_t h = 0; h < heads; ++h) {
    float* s = score + h * kTokens;
    float peak = most[h];
    for (size_t i = 0; i < n; ++i) {
      s[i] *= scale;
      peak = s[i] > peak ? s[i] : peak;
    }
    const float keep = exp1(most[h] - peak);
    most[h] = peak;
    for16(n,
          [&](size_t i, size_t some) { store16(exp16(sub(load16(s + i, some), set16(peak))), s + i, some); });
    total[h] = std::fma(total[h], keep, sum(s, n));
    if (keep != 1.0f) {
      float* m = mix + int64_t{h} * latent;
      for16(static_cast<size_t>(latent),
            [&](size_t i, size_t some) { store16(mul(load16(m + i, some), set16(keep)), m + i, some); });
    }
  }
  accumulate_rows(score, kTokens, heads, c, tokens, static_cast<size_t>(latent), mix, latent);
}

}  // namespace

void CpuOps::sparse_attention(Stage, const AttentionWeights& w, const Act* q_act, Plane latents,
                              const Selection& sel, int32_t kpool, Act* out_act) {
  const MatrixView kv = view(w.kv_b);
  CHECK(kv.format != MatrixFormat::kExl3 && kv.k == w.latent);
  const int32_t latent = w.latent, per_head = w.qk_dim + w.v_dim;
  const int64_t q_width = int64_t{w.heads} * w.qk_dim, wide = int64_t{w.heads} * latent;
  const float scale = rsqrt1(static_cast<float>(w.qk_dim));
  const size_t latent_size = static_cast<size_t>(latent);
  const size_t attend_floats = kHeads * (latent_size + kTokens + 2) + kv_room(kTokens, latent);
  const size_t per_worker = std::max({product_floats(), size_t{kKeyRows} * kColumns, attend_floats}) + kLanes;

  for (int32_t first = 0; first < batch_.rows;) {
    Scratch s = scratch();
    float* worker_scratch = s.take<float>(static_cast<size_t>(workers()) * per_worker);
    const int32_t rows = s.rows_that_fit(batch_.rows - first, static_cast<size_t>(wide));
    float* absorbed = s.take<float>(static_cast<size_t>(rows) * static_cast<size_t>(wide));  // q̃, then õ

    const int32_t cuts = (latent + kColumns - 1) / kColumns;
    pool_.parallel_for(int64_t{w.heads} * cuts, [&](int64_t task, int worker) {
      float* key = worker_scratch + static_cast<size_t>(worker) * per_worker;
      const int32_t head = static_cast<int32_t>(task / cuts),
                    c = static_cast<int32_t>(task % cuts) * kColumns;
      const int32_t columns = std::min(kColumns, latent - c);
      float* to = absorbed + int64_t{head} * latent + c;
      for (int32_t r = 0; r < rows; ++r) std::fill_n(to + r * wide, columns, 0.0f);
      for (int32_t i = 0; i < w.qk_dim; i += kKeyRows) {
        const int32_t n = std::min(kKeyRows, w.qk_dim - i);
        const float* row[kKeyRows];
        for (int32_t j = 0; j < n; ++j) {
          kv.row_f32(head * per_head + i + j, c, columns, key + j * kColumns);
          row[j] = key + j * kColumns;
        }
        accumulate_rows(f32(q_act) + first * q_width + int64_t{head} * w.qk_dim + i, q_width, rows, row, n,
                        static_cast<size_t>(columns), to, wide);
      }
    });

    const int32_t head_groups = (w.heads + kHeads - 1) / kHeads;
    pool_.parallel_for(int64_t{rows} * head_groups, [&](int64_t task, int worker) {
      const int32_t r = static_cast<int32_t>(task / head_groups), row = first + r;
      const int32_t head = static_cast<int32_t>(task % head_groups) * kHeads,
                    heads = std::min(kHeads, w.heads - head);
      float* score = worker_scratch + static_cast<size_t>(worker) * per_worker;
      float* most = score + kHeads * kTokens;
      float* total = most + kHeads;
      float* mix = total + kHeads;
      float* room = mix + kHeads * latent_size;
      std::fill_n(most, kHeads, -HUGE_VALF);
      std::fill_n(total, kHeads, 0.0f);
      std::fill_n(mix, static_cast<size_t>(heads) * latent_size, 0.0f);
      float* q = absorbed + r * wide + int64_t{head} * latent;
      const Segment& seg = segment_of(row);
      const Tokens tokens(sel.pools + int64_t{row} * sel.max_pools, sel.count[row], position(row), kpool);
      const float* c[kTokens];
      for (int64_t at = 0; at < tokens.size(); at += kTokens) {
        const int32_t n = static_cast<int32_t>(std::min<int64_t>(kTokens, tokens.size() - at));
        for (int32_t i = 0; i < n; ++i) {
          c[i] = load_kv(plane_row(latents, seg, tokens[at + i], kPageTokens, latent_row_bytes(latent)),
                         latent, room + int64_t{i} * latent);
        }
        attend_block(q, latent, heads, c, n, latent, scale, score, most, total, mix);
      }
      for (int32_t h = 0; h < heads; ++h) {
        const V16 sum_of_weights = set16(total[h]);
        for16(latent_size, [&](size_t i, size_t n) {
          const V16 m = load16(mix + int64_t{h} * latent + i, n);
          store16(map(m, sum_of_weights, [](V a, V b) { return hn::Div(a, b); }), q + int64_t{h} * latent + i,
                  n);
        });
      }
    });

    pool_.parallel_for(int64_t{w.heads} * ((w.v_dim + kTile - 1) / kTile), [&](int64_t task, int worker) {
      const int32_t tiles = (w.v_dim + kTile - 1) / kTile;
      const int32_t head = static_cast<int32_t>(task / tiles), i = static_cast<int32_t>(task % tiles) * kTile;
      const Rows mixed{absorbed + int64_t{head} * latent, wide, nullptr, rows};
      dot_tile(kv, head * per_head + w.qk_dim + i, std::min(kTile, w.v_dim - i), 0, latent, mixed,
               f32(out_act) + (int64_t{first} * w.heads + head) * w.v_dim + i, int64_t{w.heads} * w.v_dim,
               worker_scratch + static_cast<size_t>(worker) * per_worker);
    });
    first += rows;
  }
}

}  // namespace firesteel::cpu
