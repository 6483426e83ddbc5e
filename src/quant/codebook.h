// The three EXL3 codebooks: fixed hashes from a 16-bit state to an fp16 number. Any thread.
#pragma once

#include <cstdint>
#include <span>

namespace firesteel {

/// Chosen per tensor by its marker (exl3_group.h): none, `mcg` or `mul1`.
enum class Codebook : uint8_t { k3Inst, kMcg, kMul1 };

/// The fp16 bit pattern of every state; made at first use, lives for the whole program. No value is a NaN, an
/// infinity or a subnormal.
std::span<const uint16_t, 65536> codebook_table(Codebook codebook);

}  // namespace firesteel
