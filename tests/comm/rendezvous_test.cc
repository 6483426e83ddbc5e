#include "comm/rendezvous.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <thread>

#include "comm/watch.h"

namespace firesteel {
namespace {

GroupOptions options_for(int rank, int ranks, LinkKind link) {
  GroupOptions o;
  o.rank = rank;
  o.ranks = ranks;
  o.link = link;
  o.leader_port = 0;
  o.timeout = std::chrono::seconds(20);
  o.facts = {{"build", "1.0"}, {"weights", "abc"}, {"context", "8192"}};
  return o;
}

class Forming : public ::testing::TestWithParam<std::tuple<int, LinkKind>> {};

TEST_P(Forming, AGroupGathersAndFormsAgain) {
  const auto [ranks, link] = GetParam();
  auto leader = Leader::listen(options_for(0, ranks, link));
  ASSERT_TRUE(leader.ok()) << leader.error().message;
  uint64_t last_session = 0;
  for (int round = 0; round < 2; ++round) {
    std::vector<std::thread> others;
    for (int r = 1; r < ranks; ++r) {
      others.emplace_back([&, r] {
        GroupOptions o = options_for(r, ranks, link);
        o.leader_port = leader->port();
        auto group = join_group(o);
        ASSERT_TRUE(group.ok()) << group.error().message;
        std::vector<std::byte> mine(1000, static_cast<std::byte>(r)), all(1000 * static_cast<size_t>(ranks));
        ASSERT_TRUE(group->comm->all_gather(CommOp::kSum, mine, all).ok());
        for (int p = 0; p < ranks; ++p)
          ASSERT_EQ(all[static_cast<size_t>(p) * 1000 + 999], static_cast<std::byte>(p));
      });
    }
    auto group = leader->form();
    ASSERT_TRUE(group.ok()) << group.error().message;
    EXPECT_EQ(group->watch.size(), static_cast<size_t>(ranks - 1));
    EXPECT_NE(group->session, last_session);
    last_session = group->session;
    std::vector<std::byte> mine(1000, std::byte{0}), all(1000 * static_cast<size_t>(ranks));
    EXPECT_TRUE(group->comm->all_gather(CommOp::kSum, mine, all).ok());
    for (auto& t : others) t.join();
  }
}
INSTANTIATE_TEST_SUITE_P(All, Forming,
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::Values(LinkKind::kTcp, LinkKind::kShm)));

TEST(Rendezvous, DifferencesAreNamedOnBothSides) {
  auto leader = Leader::listen(options_for(0, 2, LinkKind::kTcp));
  ASSERT_TRUE(leader.ok());
  auto other = std::async(std::launch::async, [&] {
    GroupOptions o = options_for(1, 2, LinkKind::kTcp);
    o.leader_port = leader->port();
    o.facts["weights"] = "xyz";
    o.facts.erase("context");
    o.facts["extra"] = "1";
    return join_group(o);
  });
  auto group = leader->form();
  ASSERT_FALSE(group.ok());
  const auto refused = other.get();
  ASSERT_FALSE(refused.ok());
  for (const std::string& text : {group.error().message, refused.error().message}) {
    EXPECT_NE(text.find("weights is abc on rank 0 and xyz on rank 1"), std::string::npos) << text;
    EXPECT_NE(text.find("context is 8192 on rank 0 and absent on rank 1"), std::string::npos) << text;
    EXPECT_NE(text.find("extra is absent on rank 0 and 1 on rank 1"), std::string::npos) << text;
    EXPECT_EQ(text.find("build"), std::string::npos) << text;
  }
}

TEST(Rendezvous, StrangersAndWrongSizesAreSurvived) {
  auto leader = Leader::listen(options_for(0, 2, LinkKind::kTcp));
  ASSERT_TRUE(leader.ok());
  auto forming = std::async(std::launch::async, [&] { return leader->form(); });
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(5); };
  {
    auto s = connect_until("127.0.0.1", leader->port(), soon());
    ASSERT_TRUE(s.ok());
    ASSERT_TRUE(send_message(*s, "GET / HTTP/1.1", soon()).ok());
  }
  {
    auto s = connect_until("127.0.0.1", leader->port(), soon());
    ASSERT_TRUE(s.ok());
    ASSERT_EQ(write(s->fd(), "\xff\xff\xff\xff", 4), 4);  // a length of 4 GiB
  }
  GroupOptions o = options_for(1, 2, LinkKind::kTcp);
  o.leader_port = leader->port();
  auto group = join_group(o);
  EXPECT_TRUE(group.ok()) << group.error().message;
  EXPECT_TRUE(forming.get().ok());
}

TEST(Rendezvous, NobodyComes) {
  GroupOptions o = options_for(0, 2, LinkKind::kTcp);
  o.timeout = std::chrono::milliseconds(50);
  auto leader = Leader::listen(o);
  ASSERT_TRUE(leader.ok());
  const auto group = leader->form();
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.error().message, "rank 1 did not come in time");
}

TEST(Rendezvous, Addresses) {
  EXPECT_EQ((parse_address("10.0.0.1", 7).value()), (std::pair<std::string, uint16_t>("10.0.0.1", 7)));
  EXPECT_EQ((parse_address("host:80", 7).value()), (std::pair<std::string, uint16_t>("host", 80)));
  EXPECT_EQ((parse_address("[::1]:80", 7).value()), (std::pair<std::string, uint16_t>("::1", 80)));
  EXPECT_EQ((parse_address("::1", 7).value()), (std::pair<std::string, uint16_t>("::1", 7)));
  for (const char* bad : {"", ":80", "host:", "host:x", "host:0", "host:70000", "[::1", "[::1]x"})
    EXPECT_FALSE(parse_address(bad, 7).ok()) << bad;
}

/// A child process with a watch at the other end of a socket.
struct Child {
  pid_t pid;
  Socket socket;
};
Child child_with_watch(WatchLimits limits) {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    close(fds[0]);
    std::vector<Socket> s;
    s.emplace_back(fds[1]);
    Watch watch(std::move(s), {"rank 0"}, limits, [](const std::string&) { _exit(3); });
    pause();
    _exit(0);
  }
  close(fds[1]);
  return {pid, Socket(fds[0])};
}

class Losing : public ::testing::TestWithParam<int> {};

TEST_P(Losing, AKilledOrStoppedPeerIsNoticed) {
  WatchLimits limits{std::chrono::milliseconds(20), std::chrono::milliseconds(400)};
  Child child = child_with_watch(limits);
  std::promise<std::string> lost;
  std::vector<Socket> s;
  s.push_back(std::move(child.socket));
  Watch watch(std::move(s), {"rank 1"}, limits, [&](const std::string& why) { lost.set_value(why); });
  auto future = lost.get_future();
  // Healthy for more than the limit: nobody is called lost.
  ASSERT_EQ(future.wait_for(std::chrono::milliseconds(1200)), std::future_status::timeout);
  kill(child.pid, GetParam());
  ASSERT_EQ(future.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  const std::string why = future.get();
  EXPECT_EQ(why.rfind("rank 1 ", 0), 0u) << why;
  kill(child.pid, SIGKILL);
  waitpid(child.pid, nullptr, 0);
}
INSTANTIATE_TEST_SUITE_P(Signals, Losing, ::testing::Values(SIGKILL, SIGSTOP));

TEST(Watch, AGoodbyeIsNoLoss) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  WatchLimits limits{std::chrono::milliseconds(20), std::chrono::milliseconds(300)};
  std::atomic<int> lost{0};
  std::vector<Socket> a, b;
  a.emplace_back(fds[0]);
  b.emplace_back(fds[1]);
  Watch stays(std::move(a), {"rank 1"}, limits, [&](const std::string&) { ++lost; });
  {
    Watch leaves(std::move(b), {"rank 0"}, limits, [&](const std::string&) { ++lost; });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  EXPECT_EQ(lost, 0);
}

}  // namespace
}  // namespace firesteel
