// FaultyChannel: a channel that, at one chosen byte of what it writes, delays, duplicates, truncates, flips
// or cuts.
#pragma once

#include <memory>

#include "comm/channel.h"

namespace firesteel {

enum class Fault { kNone, kDelay, kDuplicateByte, kTruncate, kFlip, kCut, kStop };

struct FaultPlan {
  Fault kind = Fault::kNone;
  size_t at_byte = 0;  // of the stream written through this channel
  int delay_ms = 0;    // kDelay
};

std::unique_ptr<ByteChannel> make_faulty(std::unique_ptr<ByteChannel> inner, FaultPlan plan);

}  // namespace firesteel
