// The CUDA backend's indexer and attention: KV rows appended, pools chosen, selections attended to.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/cuda/cuda_ops_impl.h"
#include "quant/kv_row.h"

namespace firesteel::cuda {

namespace {

constexpr size_t kScoreBytes = size_t{64} << 20;    // pool scores of the rows chosen together
constexpr unsigned kScoreBlocks = 512;              // thread blocks that scoring should have at least
constexpr size_t kPartialBytes = size_t{64} << 20;  // attention partials of the rows attended together
constexpr int32_t kWholeRows = 48;                  // beyond, a thread block takes a whole row

}  // namespace

size_t CudaOps::kv_bytes(int32_t n) const {
  return kv_ == KvFormat::kFp8 ? kv_row_bytes(n) : sizeof(Bits16) * static_cast<size_t>(n);
}

void CudaOps::latent_append(Stage, const Act* c, int32_t latent, Plane plane) {
  if (rows_ == 0) return;
  AppendParams p{view_,
                 bits(c),
                 reinterpret_cast<uint8_t*>(plane.base),
                 static_cast<int64_t>(plane.page_stride),
                 latent,
                 static_cast<int32_t>(kv_bytes(latent)),
                 kv_ == KvFormat::kFp8};
  run(kernels_.latent_append, {{static_cast<unsigned>(rows_)}, 128}, p);
}

void CudaOps::pool_append(Stage, const IndexerWeights& w, const Act* ki, const Act* ga, Plane pools,
                          SlotPlane tail) {
  if (rows_ == 0) return;
  if (w.dim > 128 || kPageTokens % w.kpool != 0) return unsupported("such index pools");
  PoolAppendParams p{};
  p.batch = view_;
  p.ki = bits(ki);
  p.ga = bits(ga);
  p.norm_weight = w.k_norm_weight;
  p.norm_bias = w.k_norm_bias;
  p.ape = w.ape;
  p.pools = reinterpret_cast<uint8_t*>(pools.base);
  p.page_stride = static_cast<int64_t>(pools.page_stride);
  p.tail = reinterpret_cast<uint8_t*>(tail.base);
  p.tail_stride = static_cast<int64_t>(tail.slot_stride);
  p.dim = w.dim;
  p.kpool = w.kpool;
  p.row_bytes = static_cast<int32_t>(kv_bytes(w.dim));
  p.fp8 = kv_ == KvFormat::kFp8;
  const unsigned most = static_cast<unsigned>(max_segment_rows_ / w.kpool + 2);
  run(kernels_.pool_append, {{most, static_cast<unsigned>(segments_)}, 128}, p);
}

void CudaOps::pool_select(Stage, const IndexerWeights& w, const Act* q, const Act* hw, Plane pools,
                          Selection out) {
  if (rows_ == 0) return;
  CHECK(w.top_pools >= 1 && w.top_pools <= out.max_pools);
  const int32_t visible = (max_position_ + 1) / w.kpool;
  const bool choose = visible > w.top_pools;
  const int32_t stretches = std::max(1, (visible + kPickStretch - 1) / kPickStretch);
  const bool large = w.top_pools >= kPickStretch || stretches * w.top_pools > kPickAgain;
  const auto top = static_cast<size_t>(w.top_pools);
  const size_t candidates = choose && !large && stretches > 1 ? static_cast<size_t>(stretches) * top : 0;
  const size_t row_bytes = static_cast<size_t>(visible) * 4 + candidates * 8;
  const int32_t at_once =
      !choose
          ? rows_
          : static_cast<int32_t>(std::clamp<size_t>(kScoreBytes / row_bytes, 1, static_cast<size_t>(rows_)));
  if (!begin_scratch(choose ? static_cast<size_t>(at_once) * row_bytes + 768 : 0)) return;
  PoolScoreParams s{};
  s.batch = view_;
  s.q = bits(q);
  s.hw = bits(hw);
  s.pools = reinterpret_cast<const uint8_t*>(pools.base);
  s.page_stride = static_cast<int64_t>(pools.page_stride);
  s.heads = w.heads;
  s.dim = w.dim;
  s.kpool = w.kpool;
  s.row_bytes = static_cast<int32_t>(kv_bytes(w.dim));
  s.fp8 = kv_ == KvFormat::kFp8;
  s.max_pools = visible;
  s.scores = choose ? take<float>(static_cast<size_t>(at_once) * static_cast<size_t>(visible)) : nullptr;
  PoolPickParams k{};
  k.batch = view_;
  k.scores = s.scores;
  k.pools = out.pools;
  k.count = out.count;
  k.max_pools = visible;
  k.out_stride = out.max_pools;
  k.top_pools = w.top_pools;
  k.kpool = w.kpool;
  k.stretches = stretches;
  if (candidates > 0) {
    k.candidate_keys = take<uint32_t>(static_cast<size_t>(at_once) * candidates);
    k.candidates = take<int32_t>(static_cast<size_t>(at_once) * candidates);
  }
  for (int32_t first = 0; first < rows_; first += at_once) {
    s.first_row = k.first_row = first;
    s.row_count = k.row_count = std::min(at_once, rows_ - first);
    const auto count = static_cast<unsigned>(s.row_count);
    if (choose && w.dim == kKeyDim && w.heads % 8 == 0) {
      // As many rows together as leave enough blocks.
      const unsigned blocks = blocks_of(visible, 256);
      s.rows_each = static_cast<int32_t>(std::clamp(blocks * count / kScoreBlocks, 1u, 16u));
      run(kernels_.pool_score, {{blocks_of(count, s.rows_each), blocks}, 256}, s);
    } else if (choose) {
      run(kernels_.pool_score_plain, {{blocks_of(visible, 256), count}, 256}, s);
    }
    if (large) {
      run(kernels_.pool_pick_large, {{count}, 1024}, k);
      continue;
    }
    run(kernels_.pool_pick, {{static_cast<unsigned>(stretches), count}, 1024}, k);
    if (candidates > 0) run(kernels_.pool_pick_again, {{count}, 1024}, k);
  }
}

void CudaOps::sparse_attention(Stage, const AttentionWeights& w, const Act* q, Plane latents,
                               const Selection& sel, int32_t kpool, Act* out) {
  if (rows_ == 0) return;
  const MatrixFormat format = w.kv_b.spec.format;
  if (format != MatrixFormat::kBf16 && format != MatrixFormat::kF32)
    return unsupported("kv_b in such a format");
  const float scale = 1.0f / std::sqrt(static_cast<float>(w.qk_dim));
  if (format != MatrixFormat::kBf16 || w.latent != 512 || w.qk_dim % 16 != 0 || w.v_dim % 16 != 0) {
    PlainAttentionParams p{view_,
                           bits(q),
                           static_cast<const uint8_t*>(w.kv_b.data),
                           reinterpret_cast<const uint8_t*>(latents.base),
                           static_cast<int64_t>(latents.page_stride),
                           sel.pools,
                           sel.count,
                           bits(out),
                           sel.max_pools,
                           kpool,
                           w.heads,
                           w.qk_dim,
                           w.v_dim,
                           w.latent,
                           format == MatrixFormat::kF32,
                           static_cast<int32_t>(kv_bytes(w.latent)),
                           kv_ == KvFormat::kFp8,
                           scale};
    run(kernels_.attend_plain,
        {{static_cast<unsigned>(w.heads), static_cast<unsigned>(rows_)},
         128,
         (2 * static_cast<unsigned>(w.latent) + 128) * 4},
        p);
    return;
  }
  // A thread block a chunk while rows alone would leave most of the GPU idle.
  const int32_t head_blocks = (w.heads + 31) / 32;
  const bool whole = rows_ * head_blocks > kWholeRows;
  // Listed tokens of a row, at most.
  const int32_t most = std::min(sel.max_pools, (max_position_ + 1) / kpool) * kpool + kpool - 1;
  const int32_t chunks = (most + kAttendChunk - 1) / kAttendChunk;
  const auto heads = static_cast<size_t>(w.heads), latent = static_cast<size_t>(w.latent);
  const size_t row_bytes = whole ? 0 : static_cast<size_t>(chunks) * heads * (latent + 2) * sizeof(float);
  const int32_t at_once = whole ? rows_
                                : static_cast<int32_t>(std::clamp<size_t>(kPartialBytes / row_bytes, 1,
                                                                          static_cast<size_t>(rows_)));
  const size_t absorbed_count = static_cast<size_t>(rows_) * heads * latent;
  if (!begin_scratch(padded(absorbed_count * 2) + static_cast<size_t>(at_once) * row_bytes + 512)) return;
  Bits16* absorbed = take<Bits16>(absorbed_count);
  const bool few = rows_ <= 32;
  const auto head_count = static_cast<unsigned>(w.heads);

  AbsorbParams a{static_cast<const uint8_t*>(w.kv_b.data),
                 bits(q),
                 absorbed,
                 rows_,
                 w.heads,
                 w.qk_dim,
                 w.v_dim,
                 w.latent};
  run(few ? kernels_.absorb_few : kernels_.absorb_many,
      {{head_count, blocks_of(w.latent, few ? 64 : 256), blocks_of(rows_, few ? 8 : 64)}, 128}, a);

  AttentionParams p{};
  p.batch = view_;
  p.q = absorbed;
  p.latents = reinterpret_cast<const uint8_t*>(latents.base);
  p.page_stride = static_cast<int64_t>(latents.page_stride);
  p.pools = sel.pools;
  p.count = sel.count;
  p.sel_stride = sel.max_pools;
  p.kpool = kpool;
  p.row_bytes = static_cast<int32_t>(kv_bytes(w.latent));
  const bool fp8 = kv_ == KvFormat::kFp8;
  if (!whole) {
    const size_t parts = static_cast<size_t>(at_once) * static_cast<size_t>(chunks) * heads;
    p.part_o = take<float>(parts * latent);
    p.part_ml = take<float>(parts * 2);
  }
  p.out = absorbed;  // a row's mix replaces its query, which nothing reads any more
  p.heads = w.heads;
  p.latent = w.latent;
  p.chunks = chunks;
  p.scale = scale * 1.4426950408889634f;  // the kernels' exponentials are powers of two
  for (int32_t first = 0; first < rows_; first += at_once) {
    p.first_row = first;
    p.row_count = std::min(at_once, rows_ - first);
    const auto count = static_cast<unsigned>(p.row_count), groups = static_cast<unsigned>(head_blocks);
    if (whole) {
      run(fp8 ? kernels_.attend_row_fp8 : kernels_.attend_row, {{count, groups}, 384, kAttendShared}, p);
      continue;
    }
    run(fp8 ? kernels_.attend_chunk_fp8 : kernels_.attend_chunk,
        {{count, groups, static_cast<unsigned>(chunks)}, 384, kAttendShared}, p);
    run(kernels_.attend_merge, {{head_count, count}, 128}, p);
  }

  a.x = absorbed;
  a.y = bits(out);
  run(few ? kernels_.expand_few : kernels_.expand_many,
      {{head_count, blocks_of(w.v_dim, few ? 64 : 128), blocks_of(rows_, few ? 8 : 64)}, 128}, a);
}

}  // namespace firesteel::cuda
