// The sum over ranks against the order that DESIGN section 4 defines, bit for bit, for every way to move it.
#include "comm/sum_exchange.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "comm/rendezvous.h"

namespace firesteel {
namespace {

class Sums : public ::testing::TestWithParam<std::tuple<int, size_t>> {};

TEST_P(Sums, HaveTheFixedOrderOnEveryRank) {
  const auto [ranks, count] = GetParam();
  std::mt19937_64 rng(count * 8 + static_cast<size_t>(ranks));
  std::vector<std::vector<float>> parts(static_cast<size_t>(ranks), std::vector<float>(count));
  for (auto& part : parts)
    for (float& x : part)
      x = std::ldexp(static_cast<float>(rng() % 2000) - 1000.0f, static_cast<int>(rng() % 20) - 10);
  std::vector<float> expected(count), other(count);
  for (size_t i = 0; i < count; ++i) {
    if (ranks == 2) {
      expected[i] = parts[0][i] + parts[1][i];
      continue;
    }
    expected[i] = (parts[0][i] + parts[1][i]) + (parts[2][i] + parts[3][i]);
    other[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + parts[3][i];
  }
  if (ranks == 4 && count > 100) {
    EXPECT_NE(std::memcmp(expected.data(), other.data(), count * 4), 0)
        << "the test could not tell another order";
  }
  auto comms = make_local_group(ranks);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < parts.size(); ++r)
    threads.emplace_back([&, r] {
      std::vector<std::byte> buffer(SumExchange::buffer_bytes(ranks, count));
      SumExchange exchange;
      for (int round = 0; round < 3; ++round) {
        std::vector<float> x = parts[r];
        ASSERT_TRUE(exchange.begin(*comms[r], x, buffer).ok());
        ASSERT_TRUE(exchange.end().ok());
        EXPECT_EQ(std::memcmp(x.data(), expected.data(), count * 4), 0) << "rank " << r << " round " << round;
      }
    });
  for (auto& t : threads) t.join();
}

INSTANTIATE_TEST_SUITE_P(All, Sums,
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::Values(1, 3, 1000, 16383, 16384, 16385, 300'001)));

TEST(SumExchange, ALostRankIsAnErrorForTheOthers) {
  auto comms = make_local_group(4, {std::chrono::milliseconds(200)});
  comms[3].reset();
  std::vector<float> x(70'000, 1.0f);
  std::vector<std::byte> buffer(SumExchange::buffer_bytes(4, x.size()));
  SumExchange exchange;
  Status status = exchange.begin(*comms[0], x, buffer);
  if (status.ok()) status = exchange.end();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace firesteel
