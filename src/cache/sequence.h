// Sequence: the page table, the slot and the number of computed rows of one token sequence.
//
// Owned by the engine, one per running stream, made once and used again; engine thread only. Row p of the
// sequence lies in page pages()[p / 256]. Pages that other holders reference too (shared prefixes) are only
// ever full and behind rows(), so no row is written into a shared page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "ops/ops.h"

namespace firesteel {

constexpr int32_t pages_for(int64_t rows) {
  return static_cast<int32_t>((rows + kPageTokens - 1) / kPageTokens);
}

class Sequence {
 public:
  explicit Sequence(int32_t max_pages) { pages_.reserve(static_cast<size_t>(max_pages)); }

  /// Takes a slot and starts empty. The pools must outlive the sequence's use; a slot must be free.
  void start(PagePool& pages, SlotPool& slots);
  /// Takes pages until `rows` rows fit. False (and nothing taken) if the pool has too few.
  bool reserve(int32_t rows);
  /// Notes that rows up to `rows` are computed; they must be reserved.
  void advance_to(int32_t rows);
  /// Gives back pages and slot. Idempotent.
  void release();

  bool active() const { return slots_ != nullptr; }
  int32_t slot() const { return slot_; }
  int32_t rows() const { return rows_; }
  int32_t capacity_rows() const { return static_cast<int32_t>(pages_.size()) * kPageTokens; }
  std::span<const int32_t> pages() const { return pages_; }

 private:
  PagePool* pool_ = nullptr;
  SlotPool* slots_ = nullptr;
  std::vector<int32_t> pages_;
  int32_t slot_ = -1;
  int32_t rows_ = 0;
};

}  // namespace firesteel
