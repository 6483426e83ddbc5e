// What the attention kernels share: the tokens a row lists, and powers of two.
//
// What defines a row's bits: its listed tokens go in blocks with a running softmax, kChunk of them from a
// fresh start; chunks are merged in ascending order, M' = max(M, m), O' = O·2^(M - M') + o·2^(m - M').
#pragma once

#include "ops/cuda/kv_row.cuh"

namespace firesteel::cuda {

constexpr int kPage = 256;
constexpr int kChunk = 128;   // listed tokens of a chunk
constexpr int kHeads = 32;    // heads of a thread block
constexpr int kLatent = 512;  // latent columns of the attend kernels

/// Four 8×8 tiles of 16-bit elements; each lane gives the address of one of their rows.
__device__ __forceinline__ void load_matrix4(uint32_t (&r)[4], const void* row) {
  const uint32_t a = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a));
}
__device__ __forceinline__ void load_matrix4_t(uint32_t (&r)[4], const void* row) {
  const uint32_t a = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a));
}

/// The listed tokens of a row.
struct TokenList {
  const int32_t* pools;
  const int32_t* pages;
  int pooled, tail, total, kpool;
  uint32_t reciprocal;

  __device__ TokenList(const AttentionParams& p, int row) {
    const Segment s = segment_at(p.batch, p.batch.row_segment[row]);
    const int position = s.start + row - s.first_row;
    pools = p.pools + static_cast<int64_t>(row) * p.sel_stride;
    pages = p.batch.page_table + s.page_begin;
    kpool = p.kpool;
    reciprocal = 0xffffffffu / kpool;
    pooled = p.count[row] * kpool;
    tail = (position + 1) / kpool * kpool;
    total = pooled + position + 1 - tail;
  }
  // at / kpool: exact while (at + 1) · kpool < 2^32.
  __device__ int pool_index(int at) const { return static_cast<int>(__umulhi(at + 1, reciprocal)); }
  __device__ int pool(int at) const { return at < pooled ? pools[pool_index(at)] : 0; }
  __device__ int token(int at, int pool) const {
    return at < pooled ? (pool - pool_index(at)) * kpool + at : tail + at - pooled;
  }
};

/// Scores and their exponentials are in powers of two: the scale has log2 e in it. Below 2^-126: 0.
__device__ __forceinline__ float exp2_fast(float v) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

constexpr int kMixWarps = 8, kScoreWarps = 4, kSlots = 4;
constexpr int kMixThreads = 32 * kMixWarps, kScoreThreads = 32 * kScoreWarps;
constexpr int kAllThreads = kMixThreads + kScoreThreads;
constexpr float kSlack = 8.0f;  // M moves on when a score passes it by more

template <bool kFp8>
constexpr int kBlock = kFp8 ? 32 : 16;  // tokens staged together
template <bool kFp8>
constexpr int kSliceBytes = kFp8 ? 128 : 256;
template <bool kFp8>  // of a token in shared memory: eight tokens fall into distinct banks
constexpr int kPitch = 4 * kSliceBytes<kFp8> + 16;

template <bool kFp8>
struct AttendShared {
  uint8_t latents[kSlots][kBlock<kFp8>][kPitch<kFp8>];
  uint32_t scale[kSlots][32];             // FP8: the tokens' scale bytes
  float score[4][kHeads * kBlock<kFp8>];  // of each slice
  // Of even and odd blocks:
  Bits16 weight[2][kHeads * kBlock<kFp8>];
  float rescale[2][kHeads], merge_old[2][kHeads], merge_new[2][kHeads];
  uint64_t rescales[2];  // a byte a warp: some head's M has moved on
  float total[kHeads];
  uint32_t query_exponent[4][kHeads];
};
static_assert(sizeof(AttendShared<true>) <= kAttendShared && sizeof(AttendShared<false>) <= kAttendShared);
static_assert(kAttendShared <= 99 * 1024);

/// Where a head's token lies, so that what a warp reads or writes together falls into distinct banks.
template <bool kFp8>
__device__ __forceinline__ int weight_at(int head, int token) {
  return head * kBlock<kFp8> + (token ^ 8 * (kFp8 ? (head >> 1) & 3 : (head >> 2) & 1));
}
template <bool kFp8>
__device__ __forceinline__ int score_at(int head, int token) {
  return head * kBlock<kFp8> + (token ^ (8 * ((head >> 1) & 1) + (kFp8 ? 16 * (head & 1) : 0)));
}

// Barriers; 0 is __syncthreads.
enum Barrier {
  kScored = 1,   // a block's slices are there
  kRead = 2,     // and have been read
  kMixed = 3,    // two, of even and odd blocks: its latents have been mixed
  kWeights = 5,  // of the mixing warps: weights are there
  kQueries = 6   // of the scoring warps: queries' exponents are there
};
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Without a branch, which would keep what stands before it from running beside what follows.
__device__ __forceinline__ void barrier_arrive_if(bool wanted, int id, int threads) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p bar.arrive %1, %2;\n}" ::"r"(
                   static_cast<uint32_t>(wanted)),
               "r"(id), "r"(threads)
               : "memory");
}

/// The tokens of a thread block, from a multiple of kChunk on.
struct Work {
  int row, head0, heads, begin, end;
};
template <bool kFp8>
__device__ __forceinline__ unsigned slot_of(int block) {
  static_assert(kChunk % (kSlots * kBlock<kFp8>) == 0);
  return static_cast<unsigned>(block) / kBlock<kFp8> % kSlots;
}

}  // namespace firesteel::cuda
