// KV pages and recurrent-state slots as numbers: who holds them, never what is in them.
//
// A page stands for all planes of the same 256 tokens of one sequence; a slot for one sequence's recurrent
// state. Both pools are part of the engine's replicated state: their answers depend on the order of calls
// alone, so that every rank hands out the same numbers. Engine thread only. Everything is allocated in the
// constructor; every call is O(1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace firesteel {

/// Pages with reference counts; a page returns to the pool with its last reference.
class PagePool {
 public:
  explicit PagePool(int32_t pages);
  /// A page with one reference, or −1 when all are taken.
  int32_t acquire();
  void retain(int32_t page);
  void release(int32_t page);
  /// Back to how it was made: later answers do not depend on earlier calls. Every page must be free.
  void reset();

  int32_t size() const { return static_cast<int32_t>(references_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t references(int32_t page) const { return references_[static_cast<size_t>(page)]; }
  /// CHECKs that free list and counts agree. O(size); for tests and debug builds.
  void verify() const;

 private:
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;  // a stack; the top is handed out next
};

class SlotPool {
 public:
  explicit SlotPool(int32_t slots);
  /// A slot, or −1 when all are taken. Its state is whatever the last holder left: reset before use.
  int32_t acquire();
  void release(int32_t slot);
  void reset();  // as of PagePool

  int32_t size() const { return static_cast<int32_t>(taken_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  bool taken(int32_t slot) const { return taken_[static_cast<size_t>(slot)] != 0; }
  void verify() const;

 private:
  std::vector<uint8_t> taken_;
  std::vector<int32_t> free_;
};

}  // namespace firesteel
