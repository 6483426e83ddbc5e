// The golden models on 2 and 4 ranks: every rank's part of the logits has the bits that one rank computes,
// and so is within the goldens' limits; hidden rows and the MTP layer's rows are equal on all ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "comm/rendezvous.h"
#include "harness.h"
#include "random_model.h"
#include "support/golden.h"
#include "support/random.h"

namespace firesteel {
namespace {

using test::Golden;

struct Pass {
  std::vector<float> logits;      // [rows, this rank's ids]
  std::vector<float> hidden;      // [rows, H]
  std::vector<float> mtp_logits;  // [rows - 1, this rank's ids]
  int32_t first_id = 0, width = 0;
  Status status;
};

/// One prompt in one pass, then the MTP layer over the tokens that follow.
Pass run_rank(const std::string& dir, Placement placement, Communicator* comm,
              const std::vector<int32_t>& ids, DenseFormat dense = DenseFormat::kStored) {
  Pass out;
  const auto rows = static_cast<int32_t>(ids.size());
  const std::unique_ptr<Ops> ops = make_cpu_ops(1);
  const auto files = open_model_files(dir, placement, dense);
  ModelLimits limits;
  limits.max_rows = limits.max_logit_rows = rows;
  limits.pages = (rows + kPageTokens - 1) / kPageTokens;
  limits.slots = 1;
  auto loaded = files.ok() ? load_model(*files, *ops, limits, nullptr) : files.error();
  if (!loaded.ok()) {
    out.status = loaded.error();
    return out;
  }
  Model& model = **loaded;
  if (comm != nullptr) ops->connect(comm);
  std::vector<int32_t> pages, all;
  for (int32_t p = 0; p < limits.pages; ++p) pages.push_back(p);
  for (int32_t r = 0; r < rows; ++r) all.push_back(r);
  const std::vector<Segment> segments = {{0, rows, 0, 0, 0}};
  model.reset_slot(0);
  out.status = model.forward({rows, ids, segments, pages}, all);
  if (!out.status.ok()) return out;
  out.first_id = model.first_logit_id();
  out.width = model.logit_width();
  const auto width = static_cast<size_t>(out.width), h = static_cast<size_t>(model.config().hidden);
  out.logits.resize(ids.size() * width);
  ops->download(out.logits.data(), model.logits(), out.logits.size() * sizeof(float));
  out.hidden.resize(ids.size() * h);
  ops->download_act(out.hidden.data(), model.hidden(), out.hidden.size());
  if (!model.has_mtp()) return out;
  const std::vector<int32_t> next(ids.begin() + 1, ids.end());
  const std::vector<Segment> shifted = {{0, rows - 1, 0, 0, 0}};
  all.pop_back();
  out.status = model.mtp_forward({rows - 1, next, shifted, pages}, model.hidden(), all);
  if (!out.status.ok()) return out;
  out.mtp_logits.resize(next.size() * width);
  ops->download(out.mtp_logits.data(), model.logits(), out.mtp_logits.size() * sizeof(float));
  return out;
}

/// All ranks at once against one rank.
void expect_bits_of_one(const std::string& dir, int ranks, const std::vector<int32_t>& ids,
                        DenseFormat dense = DenseFormat::kStored) {
  const Pass whole = run_rank(dir, {}, nullptr, ids, dense);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error().message;
  auto comms = make_local_group(ranks);
  std::vector<Pass> parts(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r, n = ranks] {
      parts[static_cast<size_t>(r)] = run_rank(dir, {r, n}, comms[static_cast<size_t>(r)].get(), ids, dense);
    });
  for (auto& t : threads) t.join();
  int32_t next_id = 0;
  for (const Pass& part : parts) {
    ASSERT_TRUE(part.status.ok()) << part.status.error().message;
    EXPECT_EQ(part.first_id, next_id);
    next_id += part.width;
    EXPECT_EQ(test::differing_bits(part.hidden, whole.hidden), 0u);
    const auto compare = [&](const std::vector<float>& mine, const std::vector<float>& all,
                             const char* what) {
      const size_t rows = all.size() / static_cast<size_t>(whole.width);
      size_t different = 0;
      for (size_t r = 0; r < rows; ++r)
        different += std::memcmp(mine.data() + r * static_cast<size_t>(part.width),
                                 all.data() + r * static_cast<size_t>(whole.width) +
                                     static_cast<size_t>(part.first_id),
                                 static_cast<size_t>(part.width) * sizeof(float)) != 0;
      EXPECT_EQ(different, 0u) << what << " rows from id " << part.first_id;
    };
    compare(part.logits, whole.logits, "logits");
    if (!whole.mtp_logits.empty()) compare(part.mtp_logits, whole.mtp_logits, "MTP logits");
  }
  EXPECT_EQ(next_id, whole.width);
}

class Ranks : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(Ranks, HaveTheBitsOfOne) {
  const auto [name, ranks] = GetParam();
  const bool bundled = std::string(name) == "demo";
  expect_bits_of_one(bundled ? test::source_dir() + "/models/demo" : test::golden_model_dir(name), ranks,
                     Golden::of(bundled ? "tiny" : name).ints("input_ids"));
}

INSTANTIATE_TEST_SUITE_P(Models, Ranks,
                         ::testing::Combine(::testing::Values("tiny", "tiny-variant", "tiny-exl3", "tiny-fp8",
                                                              "demo"),
                                            ::testing::Values(2, 4)),
                         [](const auto& info) {
                           std::string name = std::string(std::get<0>(info.param)) + "_on_" +
                                              std::to_string(std::get<1>(info.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// Narrowed while loading, each rank its own part: the codes are those of the whole matrix.
TEST(NarrowedRanks, HaveTheBitsOfOne) {
  const std::vector<int32_t> ids = Golden::of("tiny").ints("input_ids");
  for (const char* name : {"tiny", "tiny-variant"}) {
    for (const DenseFormat dense : {DenseFormat::kQ4, DenseFormat::kFp8}) {
      for (const int ranks : {2, 4}) expect_bits_of_one(test::golden_model_dir(name), ranks, ids, dense);
    }
  }
  // The control: the format does change what is computed.
  const std::string dir = test::golden_model_dir("tiny");
  const Pass exact = run_rank(dir, {}, nullptr, ids), q4 = run_rank(dir, {}, nullptr, ids, DenseFormat::kQ4),
             fp8 = run_rank(dir, {}, nullptr, ids, DenseFormat::kFp8);
  EXPECT_GT(test::differing_bits(exact.logits, q4.logits), exact.logits.size() / 2);
  EXPECT_GT(test::differing_bits(exact.logits, fp8.logits), exact.logits.size() / 2);
  EXPECT_GT(test::differing_bits(fp8.logits, q4.logits), exact.logits.size() / 2);
}

// A vocabulary of five blocks, shared and dense widths of three, experts of one, and attention heads of less
// than one block in all: uneven parts, and ranks that hold no head, no expert or no shared expert at all.
TEST(RanksOddShapes, UnevenAndEmptyParts) {
  auto config = test::model_a_config();
  config["vocab_size"] = 640;
  config["intermediate_size"] = 384;
  config["moe_intermediate_size"] = 128;
  test::Random random(test::fresh_seed());
  for (const int shared : {3, 1, 0}) {
    config["n_shared_experts"] = shared;
    test::RandomModelOptions options;
    options.seed = random.below(1 << 30);
    const std::string dir = test::write_random_model(config, options);
    std::vector<int32_t> ids(75);
    for (int32_t& id : ids) id = static_cast<int32_t>(random.below(640));
    for (const int ranks : {2, 4}) expect_bits_of_one(dir, ranks, ids);
    for (const DenseFormat dense : {DenseFormat::kQ4, DenseFormat::kFp8})
      expect_bits_of_one(dir, 4, ids, dense);
  }
}

TEST(RanksControl, APartAddedInAnotherOrderIsSeen) {
  // Ranks 1 and 2 of four change places: the same numbers, another order, other bits.
  const std::string dir = test::golden_model_dir("tiny");
  const std::vector<int32_t> ids = Golden::of("tiny").ints("input_ids");
  const Pass whole = run_rank(dir, {}, nullptr, ids);
  auto comms = make_local_group(4);
  std::vector<Pass> parts(4);
  std::vector<std::thread> threads;
  const int32_t part_of[4] = {0, 2, 1, 3};
  for (int r = 0; r < 4; ++r)
    threads.emplace_back([&, r] {
      parts[static_cast<size_t>(r)] =
          run_rank(dir, {part_of[r], 4}, comms[static_cast<size_t>(r)].get(), ids);
    });
  for (auto& t : threads) t.join();
  ASSERT_TRUE(parts[0].status.ok()) << parts[0].status.error().message;
  EXPECT_GT(test::differing_bits(parts[0].hidden, whole.hidden), 0u);
}

TEST(RanksControl, AForwardWithoutTheOthersFails) {
  auto comms = make_local_group(2, {std::chrono::milliseconds(100)});
  comms[1].reset();
  const Pass alone = run_rank(test::golden_model_dir("tiny"), {0, 2}, comms[0].get(), {1, 2, 3});
  ASSERT_FALSE(alone.status.ok());
  EXPECT_EQ(alone.status.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace firesteel
