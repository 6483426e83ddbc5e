#include "cache/sequence.h"

#include "base/check.h"

namespace firesteel {

void Sequence::start(PagePool& pages, SlotPool& slots) {
  CHECK(!active());
  slot_ = slots.acquire();
  CHECK(slot_ >= 0);
  pool_ = &pages;
  slots_ = &slots;
  rows_ = 0;
}

bool Sequence::reserve(int32_t rows) {
  const int32_t missing = pages_for(rows) - static_cast<int32_t>(pages_.size());
  if (missing <= 0) return true;
  CHECK(active() && pages_.size() + static_cast<size_t>(missing) <= pages_.capacity());
  if (pool_->free() < missing) return false;
  for (int32_t i = 0; i < missing; ++i) pages_.push_back(pool_->acquire());
  return true;
}

void Sequence::advance_to(int32_t rows) {
  CHECK(active() && rows >= rows_ && rows <= capacity_rows());
  rows_ = rows;
}

void Sequence::release() {
  if (!active()) return;
  // Last page first, so that the next sequence finds them in ascending order again.
  for (size_t i = pages_.size(); i-- > 0;) pool_->release(pages_[i]);
  pages_.clear();
  slots_->release(slot_);
  pool_ = nullptr;
  slots_ = nullptr;
  slot_ = -1;
  rows_ = 0;
}

}  // namespace firesteel
