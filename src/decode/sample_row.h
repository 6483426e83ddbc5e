// SampleRow: a row of logits and what its token is drawn with.
#pragma once

#include <cstdint>
#include <span>

#include "decode/sampler.h"

namespace firesteel {

/// A row to draw from.
struct SampleRow {
  std::span<const float> logits;  // this rank's part of the vocabulary
  SampleKey key;
  bool on_device = false;               // logits is memory of the Drawer, which only it reads
  std::span<const uint32_t> mask = {};  // of such a row: bits of the tokens that may come; empty: all
};

}  // namespace firesteel
