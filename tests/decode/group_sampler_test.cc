// Ranks that hold parts of the vocabulary draw the tokens that one rank with all of it draws.
#include "decode/group_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <thread>

#include "comm/rendezvous.h"
#include "host_drawer.h"

namespace firesteel {
namespace {

struct Rows {
  std::vector<std::vector<float>> logits;
  std::vector<SampleKey> keys;
};

Rows random_rows(std::mt19937_64& rng, int32_t vocab, int32_t count) {
  Rows rows;
  std::normal_distribution<float> normal(0.0f, 1.0f);
  for (int32_t i = 0; i < count; ++i) {
    const float sharp = std::ldexp(1.0f, static_cast<int>(rng() % 7) - 2);
    std::vector<float> row(static_cast<size_t>(vocab));
    for (float& x : row) x = rng() % 50 == 0 ? -INFINITY : std::round(normal(rng) * sharp * 8) / 8;  // ties
    if (rng() % 16 == 0) std::fill(row.begin(), row.end(), -INFINITY);
    SampleKey key;
    key.params.temperature = rng() % 4 == 0 ? 0.0 : 0.3 + static_cast<double>(rng() % 20) / 10;
    if (rng() % 3 == 0) key.params.top_k = 1 + static_cast<int32_t>(rng() % 300);
    if (rng() % 2 == 0) key.params.top_p = 0.5 + static_cast<double>(rng() % 500) / 1000;
    if (rng() % 4 == 0) key.params.min_p = 0.02;
    key.seed = rng();
    key.position = static_cast<int64_t>(rng() % 100'000);
    rows.logits.push_back(std::move(row));
    rows.keys.push_back(key);
  }
  return rows;
}

/// Ends of the parts: even, or as uneven as four ranks with few blocks have them (empty ones too).
std::vector<int32_t> cuts(int32_t vocab, int ranks, bool uneven) {
  std::vector<int32_t> out{0};
  for (int r = 1; r < ranks; ++r)
    out.push_back(uneven ? (r == ranks - 1 ? vocab / 3 : 0) : vocab * r / ranks);
  out.push_back(vocab);
  return out;
}

class GroupSamplers : public ::testing::TestWithParam<std::tuple<int, bool, int32_t>> {};

TEST_P(GroupSamplers, DrawWhatOneRankDraws) {
  const auto [ranks, uneven, vocab] = GetParam();
  const std::vector<int32_t> at = cuts(vocab, ranks, uneven);
  int32_t widest = 0;
  for (int r = 0; r < ranks; ++r)
    widest = std::max(widest, at[static_cast<size_t>(r) + 1] - at[static_cast<size_t>(r)]);
  constexpr int32_t kRows = 8, kRounds = 40;
  auto comms = make_local_group(ranks);
  std::vector<GroupSampler> samplers;
  for (int r = 0; r < ranks; ++r)
    samplers.emplace_back(vocab, ranks, at[static_cast<size_t>(r)], widest, kRows);
  std::mt19937_64 rng(static_cast<uint64_t>(vocab * 10 + ranks));
  int drawn = 0;
  SamplerScratch scratch(vocab);
  for (int round = 0; round < kRounds; ++round) {
    const int32_t count = static_cast<int32_t>(rng() % (kRows + 1));
    const Rows rows = random_rows(rng, vocab, count);
    std::vector<std::vector<int32_t>> ids(static_cast<size_t>(ranks),
                                          std::vector<int32_t>(static_cast<size_t>(count)));
    std::vector<std::thread> threads;
    for (size_t r = 0; r < static_cast<size_t>(ranks); ++r)
      threads.emplace_back([&, r] {
        std::vector<SampleRow> mine;
        for (size_t i = 0; i < rows.keys.size(); ++i)
          mine.push_back({std::span(rows.logits[i])
                              .subspan(static_cast<size_t>(at[r]), static_cast<size_t>(at[r + 1] - at[r])),
                          rows.keys[i]});
        const Status status = samplers[r].draw(comms[r].get(), {7, 9}, mine, ids[r]);
        EXPECT_TRUE(status.ok()) << status.error().message;
      });
    for (auto& t : threads) t.join();
    for (size_t i = 0; i < rows.keys.size(); ++i) {
      const int32_t whole = sample_token(rows.logits[i], rows.keys[i].params, rows.keys[i].seed,
                                         rows.keys[i].position, scratch);
      for (int r = 0; r < ranks; ++r)
        EXPECT_EQ(ids[static_cast<size_t>(r)][i], whole) << "row " << i << " rank " << r;
      drawn += whole >= 0;
    }
  }
  EXPECT_GT(drawn, kRounds);
}

TEST_P(GroupSamplers, ScoreWhatOneRankScores) {
  const auto [ranks, uneven, vocab] = GetParam();
  const std::vector<int32_t> at = cuts(vocab, ranks, uneven);
  int32_t widest = 0;
  for (int r = 0; r < ranks; ++r)
    widest = std::max(widest, at[static_cast<size_t>(r) + 1] - at[static_cast<size_t>(r)]);
  constexpr int32_t kRows = 5;
  auto comms = make_local_group(ranks);
  std::vector<GroupSampler> samplers;
  for (int r = 0; r < ranks; ++r)
    samplers.emplace_back(vocab, ranks, at[static_cast<size_t>(r)], widest, kRows);
  GroupSampler alone(vocab, 1, 0, vocab, kRows);
  std::mt19937_64 rng(static_cast<uint64_t>(vocab + ranks));
  for (int round = 0; round < 20; ++round) {
    const Rows rows = random_rows(rng, vocab, static_cast<int32_t>(rng() % (3 * kRows)));
    const size_t n = rows.logits.size();
    std::vector<std::vector<std::vector<TokenLogprob>>> reports(static_cast<size_t>(ranks) + 1);
    std::vector<int32_t> tokens;
    std::vector<size_t> sizes;
    for (size_t i = 0; i < n; ++i) {
      tokens.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab)));
      sizes.push_back(1 + rng() % (kMaxLogprobs + 1));
    }
    const auto score = [&](GroupSampler& sampler, Communicator* comm, int32_t from, int32_t to,
                           std::vector<std::vector<TokenLogprob>>& out) {
      for (const size_t size : sizes) out.emplace_back(size);
      std::vector<ScoreRow> mine;
      for (size_t i = 0; i < n; ++i)
        mine.push_back({std::span(rows.logits[i]).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)),
                        tokens[i], out[i]});
      const Status status = sampler.score(comm, mine);
      EXPECT_TRUE(status.ok()) << status.error().message;
    };
    score(alone, nullptr, 0, vocab, reports.back());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < static_cast<size_t>(ranks); ++r)
      threads.emplace_back([&, r] { score(samplers[r], comms[r].get(), at[r], at[r + 1], reports[r]); });
    for (auto& t : threads) t.join();
    for (size_t i = 0; i < n; ++i) {
      const std::vector<TokenLogprob>& one = reports.back()[i];
      for (size_t r = 0; r < static_cast<size_t>(ranks); ++r)
        for (size_t k = 0; k < one.size(); ++k) {
          EXPECT_EQ(reports[r][i][k].id, one[k].id);
          EXPECT_EQ(reports[r][i][k].logprob, one[k].logprob);
        }
      // Against sums in double.
      std::vector<int32_t> order;
      double best = -INFINITY, sum = 0;
      for (int32_t id = 0; id < vocab; ++id) {
        const float v = rows.logits[i][static_cast<size_t>(id)];
        if (v > -INFINITY) order.push_back(id), best = std::max<double>(best, v);
      }
      for (const int32_t id : order) sum += std::exp(rows.logits[i][static_cast<size_t>(id)] - best);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return rows.logits[i][static_cast<size_t>(a)] > rows.logits[i][static_cast<size_t>(b)];
      });
      EXPECT_EQ(one[0].id, tokens[i]);
      for (size_t k = 0; k < one.size(); ++k) {
        if (k > 0 && k > order.size()) {
          EXPECT_EQ(one[k].id, -1);
          continue;
        }
        if (k > 0) {
          EXPECT_EQ(one[k].id, order[k - 1]);
        }
        const float v = rows.logits[i][static_cast<size_t>(one[k].id)];
        if (order.empty() || !(v > -INFINITY)) continue;
        EXPECT_NEAR(one[k].logprob, v - best - std::log(sum), 2e-6 * (1 + std::abs(v - best))) << k;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GroupSamplers,
                         ::testing::Combine(::testing::Values(2, 4), ::testing::Values(false, true),
                                            ::testing::Values(640, 20'000)));

/// Draws rounds of rows that lie partly on a device, some of them masked; returns how many ids were not those
/// of one rank that has all of the row on the host.
struct DeviceRun {
  int wrong = 0, drawn = 0, fetched = 0;
};
DeviceRun draw_from_devices(int ranks, bool uneven, int32_t vocab, HostDrawer::Fault fault) {
  const std::vector<int32_t> at = cuts(vocab, ranks, uneven);
  constexpr int32_t kRows = 8, kRounds = 40;
  std::vector<std::unique_ptr<Communicator>> comms(1);
  if (ranks > 1) comms = make_local_group(ranks);
  int32_t widest = 0;
  for (size_t r = 0; r < static_cast<size_t>(ranks); ++r) widest = std::max(widest, at[r + 1] - at[r]);
  std::vector<std::unique_ptr<HostDrawer>> drawers;
  std::vector<GroupSampler> samplers;
  for (size_t r = 0; r < static_cast<size_t>(ranks); ++r) {
    drawers.push_back(std::make_unique<HostDrawer>(vocab, r == 0 ? fault : HostDrawer::Fault::kNone));
    samplers.emplace_back(vocab, ranks, at[r], widest, kRows, drawers.back().get());
  }
  std::mt19937_64 rng(static_cast<uint64_t>(vocab * 10 + ranks));
  SamplerScratch scratch(vocab);
  DeviceRun run;
  for (int round = 0; round < kRounds; ++round) {
    const Rows rows = random_rows(rng, vocab, static_cast<int32_t>(rng() % (kRows + 1)));
    const size_t count = rows.keys.size();
    std::vector<std::vector<uint32_t>> masks(count);
    std::vector<bool> there(count);
    std::vector<std::vector<float>> masked = rows.logits;
    for (size_t i = 0; i < count; ++i) {
      there[i] = rng() % 4 != 0 && samplers[0].draws_on_device(rows.keys[i].params);
      if (rng() % 2 != 0) continue;
      masks[i].resize(mask_words(vocab));
      for (uint32_t& w : masks[i]) w = static_cast<uint32_t>(rng() & rng());
      apply_mask(masks[i], 0, masked[i]);
    }
    std::vector<std::vector<int32_t>> ids(static_cast<size_t>(ranks), std::vector<int32_t>(count));
    std::vector<std::thread> threads;
    for (size_t r = 0; r < static_cast<size_t>(ranks); ++r)
      threads.emplace_back([&, r] {
        const auto first = static_cast<size_t>(at[r]), width = static_cast<size_t>(at[r + 1] - at[r]);
        std::vector<SampleRow> mine;
        for (size_t i = 0; i < count; ++i)
          mine.push_back({std::span(there[i] ? rows.logits[i] : masked[i]).subspan(first, width),
                          rows.keys[i], there[i] && width > 0, masks[i]});
        const Status status = samplers[r].draw(comms[r].get(), {7, 9}, mine, ids[r]);
        EXPECT_TRUE(status.ok()) << status.error().message;
      });
    for (auto& t : threads) t.join();
    for (size_t i = 0; i < count; ++i) {
      const SampleKey& key = rows.keys[i];
      const int32_t whole = sample_token(masked[i], key.params, key.seed, key.position, scratch);
      for (const std::vector<int32_t>& of_rank : ids) run.wrong += of_rank[i] != whole;
      run.drawn += whole >= 0;
    }
  }
  EXPECT_GT(drawers.back()->questions, 0);
  for (const auto& drawer : drawers) {
    run.fetched += drawer->fetched;
  }
  return run;
}

TEST(GroupSampler, DrawsTheSameWhereLogitsStayOnTheDevice) {
  for (const int ranks : {1, 2, 4})
    for (const bool uneven : {false, true})
      for (const int32_t vocab : {640, 20'000}) {
        const DeviceRun run = draw_from_devices(ranks, uneven, vocab, HostDrawer::Fault::kNone);
        EXPECT_EQ(run.wrong, 0) << ranks << " ranks, " << vocab;
        EXPECT_GT(run.drawn, 40);
        // Nuclei past the stages that a device answers.
        EXPECT_EQ(run.fetched > 0, ranks > 1 && vocab == 20'000);
      }
}

TEST(GroupSampler, FaultsOfADeviceAreSeen) {
  for (const HostDrawer::Fault fault :
       {HostDrawer::Fault::kMaskIgnored, HostDrawer::Fault::kNoiseOfAnotherRow})
    EXPECT_GT(draw_from_devices(1, false, 640, fault).wrong, 10);
  EXPECT_GT(draw_from_devices(2, false, 640, HostDrawer::Fault::kMaskIgnored).wrong, 10);
}

TEST(GroupSampler, DriftedRanksAreNoticedByAll) {
  for (const RoundDigest other : {RoundDigest{2, 1}, RoundDigest{1, 2}}) {
    auto comms = make_local_group(2, {std::chrono::milliseconds(500)});
    GroupSampler a(64, 2, 0, 32, 1), b(64, 2, 32, 32, 1);
    Status status_b;
    std::thread peer([&] { status_b = b.draw(comms[1].get(), other, {}, {}); });
    const Status status_a = a.draw(comms[0].get(), {1, 1}, {}, {});
    peer.join();
    ASSERT_FALSE(status_a.ok());
    ASSERT_FALSE(status_b.ok());
    EXPECT_NE(status_a.error().message.find(other.state == 2 ? "states" : "activations"), std::string::npos);
    EXPECT_TRUE(comms[0]->broken());
  }
}

TEST(GroupSampler, ALostRankIsAnError) {
  auto comms = make_local_group(2, {std::chrono::milliseconds(100)});
  comms[1].reset();
  GroupSampler a(64, 2, 0, 32, 1);
  const Status status = a.draw(comms[0].get(), {}, {}, {});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace firesteel
