// The fixed set of requests of the exactness tests: the same on every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"

namespace firesteel {

/// Requests `first` to `first + count` of an endless fixed list: prompts of 1 to 700 random ids, replies of
/// 32 to 128, greedy, top_k, nucleus, min_p and plain sampling in turn; every seed is given. The first few
/// prompts lie around page ends.
std::vector<GenerationRequest> request_set(int32_t vocab, int32_t first, int32_t count);

/// FNV-1a over ids.
uint64_t ids_hash(const std::vector<int32_t>& ids);

}  // namespace firesteel
