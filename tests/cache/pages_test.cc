// Pages, slots and sequences against a naive model, under random operations.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <set>

#include "cache/page_pool.h"
#include "cache/sequence.h"

namespace firesteel {
namespace {

TEST(PagePool, HandsOutEveryPageOnce) {
  PagePool pool(5);
  std::set<int32_t> pages;
  for (int i = 0; i < 5; ++i) pages.insert(pool.acquire());
  EXPECT_EQ(pages, (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.acquire(), -1);
  pool.retain(3);
  pool.release(3);
  EXPECT_EQ(pool.free(), 0);
  pool.release(3);
  EXPECT_EQ(pool.free(), 1);
  EXPECT_EQ(pool.acquire(), 3);
}

TEST(PagePoolDeathTest, MisuseIsCaught) {
  EXPECT_DEATH({ PagePool(2).release(0); }, "");
  EXPECT_DEATH({ PagePool(2).retain(1); }, "");
  EXPECT_DEATH({ SlotPool(2).release(1); }, "");
}

TEST(Sequence, TakesPagesAsNeeded) {
  PagePool pages(3);
  SlotPool slots(1);
  Sequence sequence(8);
  sequence.start(pages, slots);
  EXPECT_TRUE(sequence.reserve(1));
  EXPECT_TRUE(sequence.reserve(256));
  EXPECT_EQ(pages.free(), 2);
  EXPECT_TRUE(sequence.reserve(257));
  EXPECT_EQ(pages.free(), 1);
  EXPECT_FALSE(sequence.reserve(1025));  // needs two more, one is free: nothing is taken
  EXPECT_EQ(pages.free(), 1);
  sequence.advance_to(300);
  EXPECT_EQ(sequence.rows(), 300);
  sequence.release();
  sequence.release();
  EXPECT_EQ(pages.free(), 3);
  EXPECT_EQ(slots.free(), 1);
}

/// Sequences that start, grow, share full pages with a holder, and end, in any order; the naive model knows
/// who holds which page.
TEST(Sequence, ModelBased) {
  const bool ok = rc::check("sequences, holders and pools agree with the model", [] {
    const int32_t page_count = *rc::gen::inRange(1, 20);
    const int32_t slot_count = *rc::gen::inRange(1, 6);
    PagePool pages(page_count);
    SlotPool slots(slot_count);
    std::vector<Sequence> sequences;
    for (int i = 0; i < 6; ++i) sequences.emplace_back(page_count);
    std::vector<std::vector<int32_t>> kept;  // references of kept prefixes
    const auto steps = *rc::gen::container<std::vector<std::pair<int, int>>>(
        400, rc::gen::pair(rc::gen::inRange(0, 6), rc::gen::inRange(0, 6000)));
    for (const auto& [op, argument] : steps) {
      Sequence& s = sequences[static_cast<size_t>(argument) % sequences.size()];
      switch (op) {
        case 0:
          if (!s.active() && slots.free() > 0) s.start(pages, slots);
          break;
        case 1:
        case 2: {
          if (!s.active()) break;
          const int32_t rows = std::min(s.rows() + argument % 700, page_count * kPageTokens);
          const int32_t missing = std::max(0, pages_for(rows) - static_cast<int32_t>(s.pages().size()));
          const bool fits = missing <= pages.free();
          const size_t before = s.pages().size();
          RC_ASSERT(s.reserve(rows) == fits);
          if (fits)
            s.advance_to(rows);
          else
            RC_ASSERT(s.pages().size() == before);
          break;
        }
        case 3:
          s.release();
          break;
        case 4: {
          if (!s.active()) break;
          std::vector<int32_t> full(s.pages().begin(), s.pages().begin() + s.rows() / kPageTokens);
          for (const int32_t page : full) pages.retain(page);
          kept.push_back(std::move(full));
          break;
        }
        default:
          if (kept.empty()) break;
          for (const int32_t page : kept.back()) pages.release(page);
          kept.pop_back();
      }
      std::map<int32_t, int32_t> references;
      std::set<int32_t> taken_slots;
      for (const Sequence& q : sequences) {
        std::set<int32_t> own;
        for (const int32_t page : q.pages()) ++references[page], own.insert(page);
        RC_ASSERT(own.size() == q.pages().size());
        if (!q.active()) continue;
        const bool fresh = taken_slots.insert(q.slot()).second;
        RC_ASSERT(fresh);
      }
      for (const auto& prefix : kept)
        for (const int32_t page : prefix) ++references[page];
      for (int32_t page = 0; page < page_count; ++page) RC_ASSERT(pages.references(page) == references[page]);
      int32_t held = 0;
      for (const auto& [page, count] : references) held += count > 0;
      RC_ASSERT(pages.free() == page_count - held);
      RC_ASSERT(slots.free() == slot_count - static_cast<int32_t>(taken_slots.size()));
      pages.verify();
      slots.verify();
    }
  });
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace firesteel
