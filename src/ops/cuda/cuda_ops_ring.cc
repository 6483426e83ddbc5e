// Launches of the products of up to eight rows (matmul_ring.cuh).
#include <algorithm>

#include "ops/cuda/cuda_ops_impl.h"

namespace firesteel::cuda {

void CudaOps::run_ring(const MatmulKernels& k, MatmulParams& q, int32_t tiles, int32_t units,
                       unsigned parts) {
  // Two blocks a multiprocessor, but no warp without a unit.
  const int64_t most = std::max(1u, 2 * static_cast<unsigned>(device_->info().multiprocessors) / parts);
  const int64_t blocks =
      std::min({most, int64_t{tiles}, (int64_t{tiles} * units + kRingWarps - 1) / kRingWarps});
  const int64_t tiles_a_block = (tiles + blocks - 1) / blocks;
  const int64_t chunks = (tiles_a_block * units + kRingWarps - 1) / kRingWarps *
                         ((kUnit / kGroupK + k.ring_groups - 1) / k.ring_groups);
  // Sums of a block's tiles at once, or of some twice.
  const int64_t tile_sums = int64_t{units} * q.rows * kTileN * 4;
  int64_t sums = tiles_a_block * tile_sums;
  q.round_tiles = static_cast<int32_t>(tiles_a_block);
  if (sums > kRingSums) {
    q.round_tiles = static_cast<int32_t>(std::max<int64_t>(1, kRingSums / 2 / tile_sums));
    sums = 2 * q.round_tiles * tile_sums;
  }
  const int64_t warps_chunk = kRingWarps * int64_t{k.ring_chunk};
  // Room for both blocks: a GB10's multiprocessor has 100 KB.
  const int64_t room = device_->info().shared_per_block >= static_cast<int>(2 * kRingMostShared)
                           ? kRingMostShared
                           : kRingMostShared / 2 - 1024;
  q.tiles = tiles;
  q.ring_stages = static_cast<int32_t>(
      std::clamp((room - sums) / warps_chunk, int64_t{1}, std::min(int64_t{kRingStages}, chunks)));
  run(k.ring,
      {{static_cast<unsigned>(blocks), 1, parts},
       kRingWarps * 32,
       static_cast<unsigned>(q.ring_stages * warps_chunk + sums)},
      q);
}

}  // namespace firesteel::cuda
