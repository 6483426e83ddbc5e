// When tokens of a round go out.
#include "api/pacer.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/random.h"

namespace firesteel::api {
namespace {

using namespace std::chrono_literals;
using Clock = Pacer::Clock;
const Clock::time_point kStart = Clock::time_point{} + 1h;

TEST(Pacer, ARoundOfOneIsNeverHeldBack) {
  Pacer pacer(400ms);
  for (int i = 0; i < 20; ++i) {
    const auto now = kStart + i * 37ms;
    pacer.round(1, now);
    EXPECT_EQ(pacer.due(1, now), 1u);
  }
}

TEST(Pacer, ABurstIsSpreadOverTheTimeOfARound) {
  Pacer pacer(400ms);
  pacer.round(1, kStart);
  const auto now = kStart + 80ms;
  pacer.round(4, now);
  EXPECT_EQ(pacer.due(4, now), 1u);
  EXPECT_EQ(pacer.next(3), now + 20ms);
  EXPECT_EQ(pacer.due(3, now + 19ms), 0u);
  EXPECT_EQ(pacer.due(3, now + 20ms), 1u);
  EXPECT_EQ(pacer.due(2, now + 70ms), 2u);
}

TEST(Pacer, TheNextRoundSendsWhatIsLeft) {
  Pacer pacer(400ms);
  pacer.round(2, kStart);
  EXPECT_EQ(pacer.due(2, kStart), 2u) << "nothing is known of rounds yet";
  pacer.round(4, kStart + 100ms);
  EXPECT_EQ(pacer.due(4, kStart + 100ms), 1u);
  pacer.round(2, kStart + 110ms);
  EXPECT_EQ(pacer.due(5, kStart + 110ms), 4u) << "three of the round before, one of its own";
  EXPECT_EQ(pacer.next(1), kStart + 115ms);
}

TEST(Pacer, NoRoundIsSpreadOverMoreThanTheLimit) {
  Pacer pacer(400ms);
  pacer.round(1, kStart);
  const auto now = kStart + 60s;
  pacer.round(4, now);
  EXPECT_EQ(pacer.due(4, now + 299ms), 3u);
  EXPECT_EQ(pacer.due(4, now + 300ms), 4u);
}

TEST(Pacer, OffHoldsNothing) {
  Pacer pacer(0ms);
  EXPECT_FALSE(pacer.on());
  pacer.round(1, kStart);
  pacer.round(9, kStart + 1s);
  EXPECT_EQ(pacer.due(9, kStart + 1s), 9u);
}

/// Whatever comes when: an event waits for its round's end at most, and asking at next() always gets one.
TEST(Pacer, EveryEventIsSentInItsTime) {
  test::Random random;
  for (int run = 0; run < 200; ++run) {
    Pacer pacer(400ms);
    auto now = kStart;
    std::vector<Clock::time_point> waiting;  // when each came
    for (int i = 0; i < 50; ++i) {
      const auto next_round = now + std::chrono::microseconds(random.below(600'000));
      const size_t events = random.below(7);
      pacer.round(events, now);
      waiting.insert(waiting.end(), events, now);
      while (true) {
        const size_t due = pacer.due(waiting.size(), now);
        ASSERT_LE(due, waiting.size());
        for (size_t k = 0; k < due; ++k) ASSERT_LE(now - waiting[k], 600ms);
        waiting.erase(waiting.begin(), waiting.begin() + static_cast<long>(due));
        if (waiting.empty()) break;
        const auto next = pacer.next(waiting.size());
        ASSERT_GT(next, now);
        ASSERT_LE(next, waiting.front() + 400ms);
        if (next > next_round) break;
        now = next;
        ASSERT_GE(pacer.due(waiting.size(), now), 1u);
      }
      now = next_round;
    }
  }
}

}  // namespace
}  // namespace firesteel::api
