// Inbox: hands Requests from any thread to the engine thread without a lock.
//
// A stack by compare-and-swap that the engine takes whole and turns round, so requests come out in the order
// in which they were put in. Once closed it takes nothing more. The engine sleeps on the same object while it
// has nothing to do.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/request.h"

namespace firesteel {

class Inbox {
 public:
  /// Any thread. False if closed; the caller keeps the request.
  bool push(Request* request) {
    Request* head = head_.load(std::memory_order_relaxed);
    do {
      if (head == closed()) return false;
      request->next = head;
    } while (
        !head_.compare_exchange_weak(head, request, std::memory_order_release, std::memory_order_relaxed));
    wake();
    return true;
  }
  void wake() {
    signal_.fetch_add(1, std::memory_order_release);
    signal_.notify_one();
  }

  // --- engine thread
  /// All requests since the last call, oldest first, linked by `next`.
  Request* take() { return reversed(head_.exchange(nullptr, std::memory_order_acquire)); }
  /// The same, and nothing can be pushed any more.
  Request* close() { return reversed(head_.exchange(closed(), std::memory_order_acquire)); }
  int32_t signal() const { return signal_.load(std::memory_order_acquire); }
  /// Sleeps until a wake() after signal() gave `seen`.
  void wait(int32_t seen) { signal_.wait(seen, std::memory_order_acquire); }

 private:
  static Request* reversed(Request* list) {
    Request* out = nullptr;
    while (list != nullptr) {
      Request* const next = list->next;
      list->next = out;
      out = list;
      list = next;
    }
    return out;
  }
  Request* closed() { return &closed_; }

  std::atomic<Request*> head_{nullptr};
  std::atomic<int32_t> signal_{0};
  Request closed_;
};

}  // namespace firesteel
