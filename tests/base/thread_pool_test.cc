#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace firesteel {
namespace {

TEST(ThreadPool, EveryIndexRunsOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int64_t count : {0, 1, 3, 1000}) {
      for (int round = 0; round < 50; ++round) {
        std::vector<int> hits(static_cast<size_t>(count));
        pool.parallel_for(count, [&](int64_t i, int worker) {
          ASSERT_LT(worker, threads);
          ++hits[static_cast<size_t>(i)];
        });
        for (int h : hits) ASSERT_EQ(h, 1);
      }
    }
  }
}

}  // namespace
}  // namespace firesteel
