// Threads that run handlers: parsing, rendering, tokenizing; never where bytes are moved. push() from any
// thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace firesteel::http {

class WorkerQueue {
 public:
  explicit WorkerQueue(int threads);
  ~WorkerQueue();
  WorkerQueue(const WorkerQueue&) = delete;
  WorkerQueue& operator=(const WorkerQueue&) = delete;

  /// False once stop() was called; the task is dropped then.
  bool push(std::function<void()> task);
  /// Lets the tasks that run end, drops the others, joins. Idempotent; not from a task.
  void stop();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace firesteel::http
