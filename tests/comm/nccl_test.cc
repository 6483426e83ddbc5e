// Loading NCCL, and whether a group uses it. Needs neither a GPU nor NCCL: libnccl.so.2 is the stand-in.
#include "comm/nccl.h"

#include <gtest/gtest.h>

#include <thread>

#include "comm/nccl_choice.h"
#include "comm/rendezvous.h"
#include "nccl_standin/control.h"

namespace firesteel {
namespace {

void expect_one_line(const Result<Nccl>& loaded, const std::string& part) {
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(loaded.error().message.find(part), std::string::npos) << loaded.error().message;
  EXPECT_EQ(loaded.error().message.find('\n'), std::string::npos);
}

TEST(Nccl, WhatCannotBeLoadedIsNamed) {
  expect_one_line(load_nccl_from("libnccl-that-does-not-exist.so.2"),
                  "libnccl-that-does-not-exist.so.2 cannot be opened");
  expect_one_line(load_nccl_from("libc.so.6"), "libc.so.6 lacks ncclGetVersion");
}

TEST(Nccl, VersionsAreRead) {
  standin::Control* const standin = standin::control();
  ASSERT_NE(standin, nullptr);
  standin->version = 21105;
  expect_one_line(load_nccl_from("libnccl.so.2"), "is NCCL 2.11.5; 2.18.0 or later is needed");
  standin->version = 22809;
  const auto loaded = load_nccl_from("libnccl.so.2");
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(nccl_version_text(loaded->version), "2.28.9");
}

NcclOffer offer(uint8_t gpu, int32_t version = 22809, bool demanded = false) {
  NcclOffer out;
  out.gpu.fill(gpu);
  out.version = version;
  out.demanded = demanded;
  return out;
}

TEST(NcclChoice, OneGpuForEachRankAndOneVersion) {
  EXPECT_EQ(why_not_nccl(std::array{offer(1), offer(2)}), "");
  EXPECT_EQ(why_not_nccl(std::array{offer(1), offer(2), offer(3), offer(4)}), "");
  EXPECT_EQ(why_not_nccl(std::array{offer(1), offer(2), offer(3), offer(2)}), "ranks 1 and 3 share a GPU");
  EXPECT_EQ(why_not_nccl(std::array{offer(1), offer(2, 22707)}), "rank 0 has NCCL 2.28.9, rank 1 has 2.27.7");
  NcclOffer without = offer(2, 0);
  std::string_view("libnccl.so.2 cannot be opened").copy(without.why, sizeof without.why);
  EXPECT_EQ(why_not_nccl(std::array{offer(1), without}), "rank 1: libnccl.so.2 cannot be opened");
  std::fill(std::begin(without.why), std::end(without.why), 'x');  // no end: nothing beyond is read
  EXPECT_EQ(why_not_nccl(std::array{offer(1), without}), "rank 1: " + std::string(sizeof without.why, 'x'));
}

TEST(NcclChoice, AGpuIsSharedOnlyWhereAllDemandIt) {
  EXPECT_NE(why_not_nccl(std::array{offer(1, 23007, true), offer(1, 23007, false)}), "");
  EXPECT_EQ(why_not_nccl(std::array{offer(1, 23007, true), offer(1, 23007, true)}), "");
}

TEST(NcclChoice, AnOfferSaysWhy) {
  const NcclOffer host = make_nccl_offer(ExchangeChoice::kHost, {});
  EXPECT_EQ(host.version, 0);
  EXPECT_STREQ(host.why, "host memory is asked for");
  const NcclOffer nccl = make_nccl_offer(ExchangeChoice::kNccl, {});
  EXPECT_EQ(nccl.version, 22809);
  EXPECT_TRUE(nccl.demanded);
}

TEST(NcclChoice, AllHearTheSameAnswer) {
  for (const bool second : {true, false}) {
    auto comms = make_local_group(2);
    Result<bool> heard[2] = {false, false};
    std::thread other([&] { heard[1] = all_agree(*comms[1], second, std::chrono::seconds(5)); });
    heard[0] = all_agree(*comms[0], true, std::chrono::seconds(5));
    other.join();
    for (const auto& answer : heard) {
      ASSERT_TRUE(answer.ok());
      EXPECT_EQ(*answer, second);
    }
  }
}

}  // namespace
}  // namespace firesteel
