// Weights on their way to L2 while small kernels leave the memory idle.
#pragma once

#include "ops/cuda/common.cuh"

namespace firesteel::cuda {

/// Asks for the part of block `block` of `blocks`. Nothing is waited for: not the kernels before (weights are
/// older than any of them), nor what was asked for.
__device__ __forceinline__ void prefetch_weights(const PrefetchParams& p, int block, int blocks) {
  constexpr int kPiece = 4096;  // bytes of one request
  const int threads = blocks * blockDim.x;
  int at = block * blockDim.x + threadIdx.x;  // piece, counted from this matrix's first
  for (int m = 0; m < kMaxPrefetch && p.bytes[m] > 0; ++m) {
    const int pieces = static_cast<int>((p.bytes[m] + kPiece - 1) / kPiece);
    for (; at < pieces; at += threads) {
      const int64_t first = static_cast<int64_t>(at) * kPiece;
      const uint32_t bytes = static_cast<uint32_t>(min(p.bytes[m] - first, static_cast<int64_t>(kPiece)));
#if __CUDA_ARCH__ >= 900
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p.data[m] + first), "r"(bytes));
#else
      for (uint32_t line = 0; line < bytes; line += 128) prefetch_l2(p.data[m] + first + line);
#endif
    }
    at -= pieces;
  }
}

}  // namespace firesteel::cuda
