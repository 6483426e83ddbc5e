// Two processes on one GPU that exchange through NCCL's interface, as on two machines: the bits of one rank,
// and what is left of a group when one of them is killed.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "comm/watch.h"
#include "ranks.h"

extern char** environ;

namespace firesteel::test {
namespace {

constexpr const char* kPort = "FIRESTEEL_TEST_PORT";  // of rank 0, for the child
constexpr const char* kEnd = "FIRESTEEL_TEST_FORWARDS";

struct Member {
  std::shared_ptr<Communicator> comm;
  std::unique_ptr<Watch> watch;
};

Member member(Result<Group> group, const char* other) {
  EXPECT_TRUE(group.ok()) << group.error().message;
  if (!group.ok()) return {};
  Member out;
  out.comm = std::move(group->comm);
  out.watch = std::make_unique<Watch>(std::move(group->watch), std::vector<std::string>{other}, WatchLimits{},
                                      [comm = out.comm](const std::string& lost) {
                                        comm->abort({ErrorCode::kUnavailable, lost});
                                      });
  return out;
}

GroupOptions options(int rank, uint16_t port) {
  GroupOptions out;
  out.ranks = 2;
  out.rank = rank;
  out.leader_port = port;
  out.timeout = std::chrono::seconds(30);
  return out;
}

/// A child that is rank 1 and runs `forwards`; it kills itself after less than all of them.
pid_t start_child(uint16_t port, int32_t forwards) {
  setenv(kPort, std::to_string(port).c_str(), 1);
  setenv(kEnd, std::to_string(forwards).c_str(), 1);
  const char* const arguments[] = {"child", "--gtest_filter=CudaRankProcesses.DISABLED_RankOne",
                                   "--gtest_also_run_disabled_tests", nullptr};
  pid_t child = -1;
  posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char**>(arguments), environ);
  unsetenv(kPort);
  unsetenv(kEnd);
  return child;
}

void run_rank_one() {
  const char* const port = std::getenv(kPort);
  const char* const end = std::getenv(kEnd);
  if (port == nullptr || end == nullptr) GTEST_SKIP() << "started by the other tests";
  const int32_t forwards = std::atoi(end);
  const Whole whole = run_alone("tiny");
  Rank rank(model_dir("tiny"), {1, 2}, ExchangeChoice::kNccl);
  ASSERT_TRUE(rank.ready());
  const Member mine = member(join_group(options(1, static_cast<uint16_t>(std::atoi(port)))), "rank 0");
  ASSERT_NE(mine.comm, nullptr);
  rank.ops().connect(mine.comm.get());
  const Pass got = rank.run(prompt_of("tiny", kTokens), forwards);
  if (forwards < kForwards) raise(SIGKILL);
  rank.ops().connect(nullptr);
  expect_bits(rank.model(), got, whole.pass, whole.width);
}
TEST(CudaRankProcesses, DISABLED_RankOne) { run_rank_one(); }

/// What rank 0 gave; `status`: how the child ended.
Pass run_rank_zero(Rank& rank, int32_t forwards_of_the_other, int* status, double* seconds) {
  auto leader = Leader::listen(options(0, 0));
  EXPECT_TRUE(leader.ok());
  const pid_t child = start_child(leader->port(), forwards_of_the_other);
  Pass out;
  const Member mine = member(leader->form(), "rank 1");
  if (mine.comm != nullptr) {
    rank.ops().connect(mine.comm.get());
    const auto start = Clock::now();
    out = rank.run(prompt_of("tiny", kTokens), kForwards);
    *seconds = seconds_since(start);
    rank.ops().connect(nullptr);
  }
  waitpid(child, status, 0);
  return out;
}

TEST(CudaRankProcesses, HaveTheBitsOfOneAndOutliveTheOther) {
  NEEDS_GPU();
  if (!load_nccl().ok()) GTEST_SKIP() << load_nccl().error().message;
  const Whole whole = run_alone("tiny");
  Rank rank(model_dir("tiny"), {0, 2}, ExchangeChoice::kNccl);
  ASSERT_TRUE(rank.ready());
  int status = 0;
  double seconds = 0;
  expect_bits(rank.model(), run_rank_zero(rank, kForwards, &status, &seconds), whole.pass, whole.width);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::printf("two processes: %.1f s\n", seconds);
  // The other is killed before its prompt, and where this one replays.
  for (const int32_t forwards : {0, 7}) {
    const Pass got = run_rank_zero(rank, forwards, &status, &seconds);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ASSERT_FALSE(got.status.ok());
    EXPECT_EQ(got.status.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(got.forwards, forwards);
    EXPECT_LT(seconds, 5.0);
    std::printf("killed after %d forwards: %s, %.2f s after the first began\n", forwards,
                got.status.error().message.c_str(), seconds);
  }
  expect_bits(rank.model(), run_rank_zero(rank, kForwards, &status, &seconds), whole.pass, whole.width);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace firesteel::test
