// What a test asks of the stand-in library, through the object `firesteel_nccl_standin` that it exports.
// Counts and wishes of this process; wishes hold for groups that are formed later.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstdint>

namespace firesteel::standin {

struct Control {
  std::atomic<int> version{22809};
  std::atomic<int> formed{0}, aborted{0};         // groups, counted by each of their ranks
  std::atomic<int> gathers{0};                    // issued
  std::atomic<int> refuse_rank{-1};               // whose group is not formed
  std::atomic<int> rank{-1};                      // of what follows
  std::atomic<uint32_t> stall_at{0}, fail_at{0};  // turns, 0: never
};

/// Null where libnccl.so.2 is not the stand-in.
inline Control* control() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : static_cast<Control*>(dlsym(library, "firesteel_nccl_standin"));
}

}  // namespace firesteel::standin
