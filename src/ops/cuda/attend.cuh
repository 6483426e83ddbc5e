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

/// Scores and their exponentials are in powers of two: the scale has log2 e in it.
__device__ __forceinline__ float exp2_fast(float v) {
  float r;
  asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

}  // namespace firesteel::cuda
