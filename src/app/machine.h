// What this machine has: memory that a plan may use. Any thread.
#pragma once

#include <cstdint>

namespace firesteel {

/// MemAvailable, or what the control group still allows if that is less, minus a reserve for the rest of the
/// system (a sixteenth, at least 512 MiB). 0 when nothing can be read.
uint64_t usable_memory();

}  // namespace firesteel
