// The memory that the ranks of one group of the stand-in share: host memory that all their GPUs see.
#pragma once

#include <cstdint>

namespace firesteel::standin {

inline constexpr int kMaxRanks = 4;
inline constexpr uint32_t kPieceBytes = 64u << 10;  // of a part, per turn
inline constexpr uint32_t kNever = 0xffffffff;

/// Turns are counted from 1 and never wrap in a test.
struct alignas(128) RankState {
  uint32_t joined;
  uint32_t posted;    // the last turn whose piece is in `pieces`
  uint32_t aborted;   // gathers of this rank end at once
  uint32_t stall_at;  // from this turn on the rank posts nothing
  uint32_t fail_at;   // from this turn on the rank's group reports a broken connection
};

struct Shared {
  RankState ranks[kMaxRanks];
  // Two turns: who posts turn t + 2 has seen all ranks post t + 1, so all have read t.
  uint8_t pieces[2][kMaxRanks][kPieceBytes];
};

struct GatherParams {
  Shared* shared;
  const uint32_t* part;
  uint32_t* all;
  uint64_t words;  // of a part
  uint32_t rank, ranks;
};

}  // namespace firesteel::standin
