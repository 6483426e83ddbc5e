#include "cache/page_pool.h"

#include "base/check.h"

namespace firesteel {

namespace {

/// Numbers 0 to n-1 as a stack with 0 on top.
void stack_up(std::vector<int32_t>& stack, int32_t n) {
  stack.clear();
  for (int32_t i = n - 1; i >= 0; --i) stack.push_back(i);
}

}  // namespace

PagePool::PagePool(int32_t pages) : references_(static_cast<size_t>(pages)) {
  free_.reserve(static_cast<size_t>(pages));
  stack_up(free_, pages);
}

void PagePool::reset() {
  CHECK(free() == size());
  stack_up(free_, size());
}

int32_t PagePool::acquire() {
  if (free_.empty()) return -1;
  const int32_t page = free_.back();
  free_.pop_back();
  CHECK(references_[static_cast<size_t>(page)] == 0);
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::retain(int32_t page) {
  CHECK(page >= 0 && page < size() && references_[static_cast<size_t>(page)] > 0);
  ++references_[static_cast<size_t>(page)];
}

void PagePool::release(int32_t page) {
  CHECK(page >= 0 && page < size() && references_[static_cast<size_t>(page)] > 0);
  if (--references_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

void PagePool::verify() const {
  std::vector<uint8_t> seen(references_.size());
  for (const int32_t page : free_) {
    CHECK(page >= 0 && page < size());
    CHECK(seen[static_cast<size_t>(page)] == 0 && references_[static_cast<size_t>(page)] == 0);
    seen[static_cast<size_t>(page)] = 1;
  }
  for (size_t page = 0; page < references_.size(); ++page)
    CHECK((references_[page] == 0) == (seen[page] != 0));
}

SlotPool::SlotPool(int32_t slots) : taken_(static_cast<size_t>(slots)) {
  free_.reserve(static_cast<size_t>(slots));
  stack_up(free_, slots);
}

void SlotPool::reset() {
  CHECK(free() == size());
  stack_up(free_, size());
}

int32_t SlotPool::acquire() {
  if (free_.empty()) return -1;
  const int32_t slot = free_.back();
  free_.pop_back();
  CHECK(taken_[static_cast<size_t>(slot)] == 0);
  taken_[static_cast<size_t>(slot)] = 1;
  return slot;
}

void SlotPool::release(int32_t slot) {
  CHECK(slot >= 0 && slot < size() && taken_[static_cast<size_t>(slot)] != 0);
  taken_[static_cast<size_t>(slot)] = 0;
  free_.push_back(slot);
}

void SlotPool::verify() const {
  std::vector<uint8_t> seen(taken_.size());
  for (const int32_t slot : free_) {
    CHECK(slot >= 0 && slot < size());
    CHECK(seen[static_cast<size_t>(slot)] == 0 && taken_[static_cast<size_t>(slot)] == 0);
    seen[static_cast<size_t>(slot)] = 1;
  }
  for (size_t slot = 0; slot < taken_.size(); ++slot) CHECK((taken_[slot] == 0) == (seen[slot] != 0));
}

}  // namespace firesteel
