// The stand-in's all-gather: one block that moves the parts piece by piece through memory of the host.
#include "shared.h"

namespace firesteel::standin {

namespace {

__device__ uint32_t load(const uint32_t* p) {
  uint32_t value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

/// Spins until `done`, or the rank's group is given up; false then.
template <typename Done>
__device__ bool await(const RankState& mine, const Done& done) {
  while (!done())
    if (load(&mine.aborted) != 0) return false;
  return true;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(1024) standin_gather(const __grid_constant__ GatherParams p) {
  RankState& mine = p.shared->ranks[p.rank];
  uint32_t turn = load(&mine.posted);
  for (uint64_t at = 0; at < p.words; at += kPieceBytes / 4) {
    const uint64_t words = min(p.words - at, uint64_t{kPieceBytes / 4});
    ++turn;
    auto* const pieces = reinterpret_cast<volatile uint32_t*>(p.shared->pieces[turn % 2]);
    for (uint64_t i = threadIdx.x; i < words; i += blockDim.x)
      pieces[p.rank * (kPieceBytes / 4) + i] = p.part[at + i];
    __threadfence_system();
    bool good =
        __syncthreads_and(threadIdx.x != 0 || await(mine, [&] { return turn < load(&mine.stall_at); }));
    if (!good) return;
    if (threadIdx.x == 0)
      asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(&mine.posted), "r"(turn) : "memory");
    const RankState* const peer = &p.shared->ranks[threadIdx.x % kMaxRanks];
    good =
        __syncthreads_and(threadIdx.x >= p.ranks || await(mine, [&] { return load(&peer->posted) >= turn; }));
    if (!good) return;
    __threadfence_system();
    for (uint64_t i = threadIdx.x; i < words * p.ranks; i += blockDim.x)
      p.all[i / words * p.words + at + i % words] = pieces[i / words * (kPieceBytes / 4) + i % words];
    __syncthreads();
  }
}

}  // namespace firesteel::standin
