// What a thread needs to load weights: a queue of its own and page-locked memory. Any number of threads; each
// holds one lease at a time.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "gpu/device.h"

namespace firesteel::cuda {

struct Loading {
  gpu::Stream stream;
  gpu::Buffer staging;  // page-locked
  std::vector<std::byte> raw;
};

class LoadingPool {
 public:
  /// Gives it back when it goes; the stream must be idle then.
  class Lease {
   public:
    Lease(LoadingPool& pool, std::unique_ptr<Loading> loading) : pool_(&pool), loading_(std::move(loading)) {}
    Lease(Lease&&) noexcept = default;
    ~Lease() {
      if (loading_ != nullptr) pool_->give_back(std::move(loading_));
    }
    Loading& operator*() const { return *loading_; }

   private:
    LoadingPool* pool_;
    std::unique_ptr<Loading> loading_;
  };

  Result<Lease> take(const gpu::Device& device);
  /// Frees what is not leased.
  void clear();

 private:
  void give_back(std::unique_ptr<Loading> loading);
  std::mutex mutex_;
  std::vector<std::unique_ptr<Loading>> idle_;
};

}  // namespace firesteel::cuda
