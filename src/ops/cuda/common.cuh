// Device helpers shared by all kernels: conversions, warp sums in a fixed order, tensor-core products, async
// copies.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/params.h"

namespace firesteel::cuda {

__device__ __forceinline__ float from_bf16(Bits16 v) {
  return __uint_as_float(static_cast<uint32_t>(v) << 16);
}
__device__ __forceinline__ Bits16 to_bf16(float v) { return __bfloat16_as_ushort(__float2bfloat16_rn(v)); }
__device__ __forceinline__ float bf16_low(uint32_t v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float bf16_high(uint32_t v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
  return static_cast<uint32_t>(to_bf16(lo)) | static_cast<uint32_t>(to_bf16(hi)) << 16;
}
__device__ __forceinline__ float from_f16(Bits16 v) { return __half2float(__ushort_as_half(v)); }
/// Pairs of bf16, one rounding each; subnormal operands count.
__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  const __nv_bfloat162 v =
      __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
/// Saturates: a rotated activation beyond fp16 must not become infinite.
__device__ __forceinline__ Bits16 to_f16(float v) {
  return __half_as_ushort(__float2half_rn(fminf(fmaxf(v, -65504.0f), 65504.0f)));
}

/// Every kernel's first act: waits until the kernels before have ended and their writes are seen (gpu::Device
/// launches kernels to overlap where the GPU can). Short kernels let the next one be brought in at once; long
/// ones do so at their end (end_kernel), for blocks that wait take room.
template <bool kShort = true>
__device__ __forceinline__ void begin_kernel() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kShort) asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void end_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Brings a cache line to L2.
__device__ __forceinline__ void prefetch_l2(const uint8_t* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// Not fminf and fmaxf: a NaN must stay one.
__device__ __forceinline__ float at_most(float v, float limit) { return v > limit ? limit : v; }
__device__ __forceinline__ float at_least(float v, float limit) { return v < limit ? limit : v; }

__device__ __forceinline__ float sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }
__device__ __forceinline__ float silu(float v) { return v / (1.0f + expf(-v)); }

/// An expert's activation: SiLU(min(g, limit)) · clamp(u).
__device__ __forceinline__ float expert_glu(float g, float u, float limit) {
  return silu(at_most(g, limit)) * at_least(at_most(u, limit), -limit);
}

/// Sum over the warp, the same tree on every lane.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(0xffffffffu, v, mask);
  return v;
}

/// Sum over a block of `kThreads` threads; `shared` has 32 floats. All threads get the result.
template <int kThreads>
__device__ __forceinline__ float block_sum(float v, float* shared) {
  v = warp_sum(v);
  const int warp = threadIdx.x >> 5;
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[warp] = v;
  __syncthreads();
  float total = shared[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) total += shared[i];
  return total;
}

/// d += a·b for one 16×8×16 tile; bf16 or fp16 operands, fp32 sums.
template <bool kHalf>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kHalf) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Transposes an 8×8 tile of 16-bit elements held as a fragment.
__device__ __forceinline__ uint32_t transpose8(uint32_t v) {
  uint32_t r;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}

__device__ __forceinline__ void copy_async16(void* shared, const void* global, bool valid) {
  const uint32_t dst = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;  // the rest is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(global), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_async4(void* shared, const void* global) {
  const uint32_t dst = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Weights are read once: not kept in L1.
__device__ __forceinline__ uint4 load_stream16(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_stream8(const void* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
__device__ __forceinline__ uint32_t load_stream4(const void* p) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

struct Segment {
  int first_row, rows, start, slot, page_begin;
};
__device__ __forceinline__ Segment segment_at(const BatchView& b, int i) {
  const int32_t* s = b.segments + 5 * i;
  return Segment{s[0], s[1], s[2], s[3], s[4]};
}

/// Normalised Hadamard over 128 values, four per lane (lane t holds 4t..4t+3).
__device__ __forceinline__ void hadamard128(float (&v)[4]) {
  const int lane = threadIdx.x & 31;
  float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
  v[0] = a + c;
  v[1] = b + d;
  v[2] = a - c;
  v[3] = b - d;
#pragma unroll
  for (int mask = 1; mask < 32; mask <<= 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = __shfl_xor_sync(0xffffffffu, v[i], mask);
      v[i] = (lane & mask) ? other - v[i] : v[i] + other;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= 0.08838834764831845f;
}

/// Where column c of an EXL3 input lies: inside 32 columns, lane t of a quad holds the 8 values of its two
/// k-steps side by side, so that one 16-byte read feeds two tensor-core products.
__device__ __forceinline__ int exl3_slot(int c) {
  const int step = (c >> 4) & 1, r = c & 15;
  const int t = (r & 7) >> 1, i = (r & 1) | ((r >> 3) << 1);
  return (c & ~31) + 8 * t + 4 * step + i;
}

/// 128 values of a row: signs and scales, Hadamard, fp16 in tensor-core order. One warp.
__device__ __forceinline__ void rotate_128(const Bits16* x, const Bits16* suh, Bits16* y, int block) {
  const int c = block * 128 + 4 * (threadIdx.x & 31);
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = from_bf16(x[c + i]) * from_f16(suh[c + i]);
  hadamard128(v);
#pragma unroll
  for (int i = 0; i < 4; ++i) y[exl3_slot(c + i)] = to_f16(v[i]);
}

}  // namespace firesteel::cuda
