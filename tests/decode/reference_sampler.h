// The sampler of spec/decoding.md section 1 as plainly as it can be written: one full sort, no selection, no
// bounds.
#pragma once

#include <cstdint>
#include <span>

#include "decode/sampler.h"

namespace firesteel {

/// Noise of one token, u with `bits` (52 or 53) bits.
double reference_noise(uint64_t seed, int64_t position, int32_t id, int bits);

/// The choice and the size of the kept prefix of the order (masked tokens are never kept).
Choice reference_sample(std::span<const float> logits, const SampleKey& key, int bits = 52);

}  // namespace firesteel
