// The bytes of a round's record as rank 0 sends them to the other ranks, and what the others make of them.
//
// A request travels whole when it is first admitted; after a preemption its id is enough. Between ranks of
// one build only (the rendezvous refuses others), little-endian; lengths are checked all the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/round.h"

namespace firesteel {

enum class RecordKind : uint8_t { kRound = 1, kStop = 2 };

/// Appends nothing to what `out` held: it is replaced. Marks the requests that it carried.
void encode_round(const RoundRecord& record, std::vector<std::byte>& out);
void encode_stop(std::vector<std::byte>& out);

/// The requests that a rank above 0 knows: those that run and those that were preempted.
using KnownRequests = std::map<uint64_t, std::unique_ptr<Request>>;

/// Makes a record of bytes; new requests are added to `known`, forgotten ones removed. Streams must exist and
/// be free or taken as the record says. kInternal: not what encode_round wrote.
Result<RecordKind> decode_record(std::span<const std::byte> bytes, const EngineState& state,
                                 KnownRequests& known, RoundRecord& record);

}  // namespace firesteel
