// How blocks meet through memory: they count themselves, and the last goes on with what all have stored, or
// others wait for them. Waits are only for blocks that are running or have ended.
#pragma once

#include "ops/cuda/common.cuh"

namespace firesteel::cuda {

/// Counts one more arrival and says whether it was the last of `all`. What the thread, and threads that it
/// met at a barrier, stored before is seen by the last: it must read past L1, after see_others().
__device__ __forceinline__ bool arrives_last(int32_t* counter, int all) {
  int before;
  asm volatile("atom.add.release.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before == all - 1;
}
__device__ __forceinline__ void arrives(int32_t* counter) {
  asm volatile("red.add.release.gpu.global.s32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ void see_others() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ __forceinline__ float4 load_others(const float* p) {
  return __ldcg(reinterpret_cast<const float4*>(p));
}

__device__ __forceinline__ int load_acquire(const int32_t* p) {
  int v;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
/// Waits until `all` have arrived and sees what they stored before.
__device__ __forceinline__ void wait_for(const int32_t* counter, int all) {
  while (load_acquire(counter) < all) __nanosleep(20);
}

/// Stores v, and lets who reads it see what the thread, and threads that it met at a barrier, stored before.
__device__ __forceinline__ void publish(int32_t* p, int v) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void store_relaxed(int32_t* p, int v) {
  asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/// An expert that the router has chosen, published as one more than its number. It says nothing of weights.
__device__ __forceinline__ int wait_for_pick(const int32_t* pick) {
  for (;;) {
    int v;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(pick) : "memory");
    if (v != 0) return v - 1;
    __nanosleep(20);
  }
}

}  // namespace firesteel::cuda
