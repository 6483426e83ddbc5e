#include "comm/communicator.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "faulty_channel.h"

namespace firesteel {
namespace {

using Channels = std::vector<std::vector<std::unique_ptr<ByteChannel>>>;
using PairMaker = std::function<std::pair<std::unique_ptr<ByteChannel>, std::unique_ptr<ByteChannel>>()>;

Channels make_mesh(int ranks, const PairMaker& make_pair) {
  Channels mesh(static_cast<size_t>(ranks));
  for (auto& row : mesh) row.resize(static_cast<size_t>(ranks));
  for (size_t a = 0; a < mesh.size(); ++a)
    for (size_t b = a + 1; b < mesh.size(); ++b) std::tie(mesh[a][b], mesh[b][a]) = make_pair();
  return mesh;
}

std::pair<std::unique_ptr<ByteChannel>, std::unique_ptr<ByteChannel>> local_pair() {
  return make_local_channels(4096);
}
std::pair<std::unique_ptr<ByteChannel>, std::unique_ptr<ByteChannel>> socket_pair() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  return {make_tcp_channel(fds[0]), make_tcp_channel(fds[1])};
}
std::pair<std::unique_ptr<ByteChannel>, std::unique_ptr<ByteChannel>> shm_pair() {
  static int count = 0;
  const std::string name = "/firesteel-test-" + std::to_string(getpid()) + "-" + std::to_string(++count);
  auto a = create_shm_channel(name, 8192);
  auto b = open_shm_channel(name, 8192);
  EXPECT_TRUE(a.ok() && b.ok());
  return {std::move(a).value(), std::move(b).value()};
}

/// The byte that rank `rank` contributes at `at` of round `round`.
std::byte pattern(int round, int rank, size_t at) {
  return static_cast<std::byte>(
      (static_cast<size_t>(round) * 131 + static_cast<size_t>(rank) * 17 + at * 7 + (at >> 8)) & 0xff);
}

/// Runs `rounds` gathers of varied sizes and control records on every rank; returns the number of wrong bytes
/// seen by calls that reported success, and each rank's final status.
struct Outcome {
  size_t wrong = 0;
  size_t succeeded = 0;
  std::vector<Status> status;
};
Outcome run_ranks(Channels mesh, int rounds, CommLimits limits, const std::vector<size_t>& sizes) {
  const int ranks = static_cast<int>(mesh.size());
  Outcome out;
  out.status.resize(mesh.size());
  std::vector<size_t> wrong(mesh.size()), good(mesh.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const size_t me = static_cast<size_t>(r);
      Communicator comm(r, std::move(mesh[me]), limits);
      for (int round = 0; round < rounds; ++round) {
        const size_t n = sizes[static_cast<size_t>(round) % sizes.size()];
        std::vector<std::byte> mine(n), all(n * static_cast<size_t>(ranks), std::byte{0xAA});
        for (size_t i = 0; i < n; ++i) mine[i] = pattern(round, r, i);
        Status s = comm.all_gather(CommOp::kSum, mine, all);
        if (!s.ok()) {
          out.status[me] = s;
          return;
        }
        ++good[me];
        for (int p = 0; p < ranks; ++p)
          for (size_t i = 0; i < n; ++i)
            wrong[me] += all[static_cast<size_t>(p) * n + i] != pattern(round, p, i);
        std::vector<std::byte> record(static_cast<size_t>(round * 37 % 500));
        for (size_t i = 0; i < record.size(); ++i) record[i] = pattern(round, 9, i);
        auto got = comm.control(r == 0 ? std::span<const std::byte>(record) : std::span<const std::byte>(),
                                limits.stall);
        if (!got.ok()) {
          out.status[me] = got.error();
          return;
        }
        wrong[me] +=
            !std::equal(got->begin(), got->end(), record.begin(), record.end());
      }
    });
  }
  for (auto& t : threads) t.join();
  for (size_t w : wrong) out.wrong += w;
  for (size_t g : good) out.succeeded += g;
  return out;
}

const std::vector<size_t> kSizes = {1, 16, 0, 4096, 33, 70000, 8};

class Transports : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(Transports, EveryRankGetsEveryContribution) {
  const auto [ranks, kind] = GetParam();
  const std::string name = kind;
  const PairMaker maker = name == "local" ? local_pair : name == "shm" ? shm_pair : socket_pair;
  const Outcome out = run_ranks(make_mesh(ranks, maker), 60, {}, kSizes);
  EXPECT_EQ(out.wrong, 0u);
  EXPECT_EQ(out.succeeded, static_cast<size_t>(60 * ranks));
  for (const Status& s : out.status) EXPECT_TRUE(s.ok()) << s.error().message;
}
INSTANTIATE_TEST_SUITE_P(
    All, Transports, ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Values("local", "shm", "tcp")),
    [](const auto& info) {
      return std::string(std::get<1>(info.param)) + std::to_string(std::get<0>(info.param));
    });

/// 50 random points of each fault: what succeeds is right, what fails fails within the limit on every rank.
class Faults : public ::testing::TestWithParam<Fault> {};

TEST_P(Faults, NeverWrongNeverStuck) {
  const Fault kind = GetParam();
  const uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 rng(seed);
  CommLimits limits;
  limits.stall = std::chrono::milliseconds(300);
  int failed_runs = 0;
  for (int point = 0; point < 50; ++point) {
    const int ranks = point % 2 == 0 ? 2 : 4;
    Channels mesh = make_mesh(ranks, point % 3 == 0 ? PairMaker(socket_pair) : PairMaker(local_pair));
    FaultPlan plan{kind, rng() % 9000, static_cast<int>(rng() % 60)};
    const size_t from = rng() % static_cast<size_t>(ranks);
    const size_t to = (from + 1 + rng() % static_cast<size_t>(ranks - 1)) % static_cast<size_t>(ranks);
    mesh[from][to] = make_faulty(std::move(mesh[from][to]), plan);
    const auto start = std::chrono::steady_clock::now();
    const Outcome out = run_ranks(std::move(mesh), 12, limits, {64, 900, 5, 2000});
    EXPECT_EQ(out.wrong, 0u) << "seed " << seed << " point " << point;
    // Errors spread from rank to rank, each within one limit; the bound here only catches a hang.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
    bool any = false;
    for (const Status& s : out.status) any = any || !s.ok();
    failed_runs += any;
  }
  if (kind == Fault::kDelay) {
    EXPECT_EQ(failed_runs, 0);
  } else {
    EXPECT_EQ(failed_runs, 50) << "the fault was not felt: the test would prove nothing";
  }
}
INSTANTIATE_TEST_SUITE_P(All, Faults,
                         ::testing::Values(Fault::kDelay, Fault::kDuplicateByte, Fault::kTruncate,
                                           Fault::kFlip, Fault::kCut, Fault::kStop));

TEST(Communicator, OtherOperationAtThePeerIsAnError) {
  auto [a, b] = make_local_channels(4096);
  std::vector<std::unique_ptr<ByteChannel>> pa(2), pb(2);
  pa[1] = std::move(a);
  pb[0] = std::move(b);
  Communicator ca(0, std::move(pa)), cb(1, std::move(pb));
  std::vector<std::byte> one(8), two(16);
  std::thread t([&] { EXPECT_FALSE(cb.all_gather(CommOp::kSettings, one, two).ok()); });
  const Status s = ca.all_gather(CommOp::kSum, one, two);
  t.join();
  EXPECT_FALSE(s.ok());
  EXPECT_TRUE(ca.broken());
  EXPECT_FALSE(ca.all_gather(CommOp::kSum, one, two).ok());
}

TEST(Communicator, AbortEndsAWait) {
  auto [a, b] = make_local_channels(4096);
  std::vector<std::unique_ptr<ByteChannel>> pa(2);
  pa[1] = std::move(a);
  CommLimits limits;
  limits.stall = std::chrono::hours(1);
  Communicator comm(0, std::move(pa), limits);
  std::thread t([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    comm.abort({ErrorCode::kUnavailable, "the watch says rank 1 is dead"});
  });
  std::vector<std::byte> one(8), two(16);
  const Status s = comm.all_gather(CommOp::kSum, one, two);
  t.join();
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.error().message, "the watch says rank 1 is dead");
}

TEST(Communicator, DuplicateFramesAreDropped) {
  // A whole frame written twice by hand: header and payload of the first gather.
  auto [a, b] = make_local_channels(1 << 16);
  std::vector<std::unique_ptr<ByteChannel>> pa(2);
  ByteChannel* raw = a.get();
  pa[1] = std::move(a);
  std::vector<std::byte> one(24, std::byte{7}), two(48);
  Communicator ca(0, std::move(pa));
  std::thread t([&, b = std::move(b)]() mutable {
    std::vector<std::unique_ptr<ByteChannel>> pb(2);
    // Reads rank 0's frame and echoes it twice: valid frames of sequence 0, as rank 1 would have sent them.
    std::vector<std::byte> frame(32 + 24);
    size_t done = 0;
    while (done < frame.size()) done += *b->read_some(std::span(frame).subspan(done));
    for (int i = 0; i < 2; ++i) ASSERT_EQ(*b->write_some(frame), frame.size());
    // The next frame comes from a real second gather.
    done = 0;
    while (done < frame.size()) done += *b->read_some(std::span(frame).subspan(done));
    ASSERT_EQ(*b->write_some(frame), frame.size());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  (void)raw;
  EXPECT_TRUE(ca.all_gather(CommOp::kSum, one, two).ok());
  std::vector<std::byte> next(24, std::byte{9});
  const Status s = ca.all_gather(CommOp::kSum, next, two);
  EXPECT_TRUE(s.ok()) << (s.ok() ? "" : s.error().message);
  EXPECT_EQ(two[24], std::byte{9});
  t.join();
}

}  // namespace
}  // namespace firesteel
