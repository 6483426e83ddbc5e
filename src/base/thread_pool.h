// A fixed set of threads for data-parallel loops inside one forward pass.
//
// Owned by whoever computes (ops/cpu, loaders). parallel_for() is called by one thread at a time; the calling
// thread works too. No allocation after construction. Which thread runs which index never influences a
// result: every body writes only what its index owns.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace firesteel {

class ThreadPool {
 public:
  /// `threads` counts the caller: 1 starts no thread. Values below 1 mean one per hardware thread.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(index, worker) for every index in [0, count); worker in [0, size()). Returns when all are
  /// done.
  template <typename Body>
  void parallel_for(int64_t count, Body&& body) {
    using B = std::remove_reference_t<Body>;
    run(
        count, [](void* ctx, int64_t i, int w) { (*static_cast<B*>(ctx))(i, w); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void*, int64_t, int);
  void run(int64_t count, Call call, void* ctx);
  void work(int worker);
  void drain(int worker);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  uint64_t epoch_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  Call call_ = nullptr;
  void* ctx_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
};

}  // namespace firesteel
