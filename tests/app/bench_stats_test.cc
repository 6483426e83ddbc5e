// The figures of the benches, computed by hand; prompts and tables.
#include "app/bench_stats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "app/bench_prompts.h"
#include "app/bench_report.h"
#include "base/json.h"

namespace firesteel {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(BenchStats, PercentilesAreValuesThatOccurred) {
  EXPECT_EQ(percentile({5, 1, 4, 2, 3}, 0.5), 3);
  EXPECT_EQ(percentile({5, 1, 4, 2, 3}, 0.9), 5);
  EXPECT_EQ(percentile({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.9), 9);
  EXPECT_EQ(percentile({1, 2}, 0.5), 1);
  EXPECT_EQ(percentile({7}, 0), 7);
  EXPECT_EQ(percentile({7}, 1), 7);
  EXPECT_TRUE(std::isnan(percentile({}, 0.5)));
}

TEST(BenchStats, OneStream) {
  // Sent at 1000 ms; text at 1100, 1120, 1180: five tokens in three pieces.
  const StreamTimes s{1000 * kMs, {1100 * kMs, 1120 * kMs, 1180 * kMs}, 5};
  const StreamFigures f = figures_of({&s, 1});
  EXPECT_DOUBLE_EQ(f.rate, 4 / 0.08);
  EXPECT_DOUBLE_EQ(f.aggregate, 4 / 0.08);
  EXPECT_DOUBLE_EQ(f.first_ms, 100);
  EXPECT_DOUBLE_EQ(f.gap_p50_ms, 20);
  EXPECT_DOUBLE_EQ(f.gap_p90_ms, 60);
  EXPECT_DOUBLE_EQ(f.gap_max_ms, 60);
  EXPECT_DOUBLE_EQ(f.tokens_per_piece, 5.0 / 3);
}

// The aggregate runs from the first text of any stream to the last of any: waiting streams count against it.
TEST(BenchStats, SeveralStreams) {
  const std::vector<StreamTimes> streams = {{0, {100 * kMs, 200 * kMs}, 11}, {0, {300 * kMs, 500 * kMs}, 21}};
  const StreamFigures f = figures_of(streams);
  EXPECT_DOUBLE_EQ(f.rate, (10 / 0.1 + 20 / 0.2) / 2);
  EXPECT_DOUBLE_EQ(f.aggregate, (10 + 20) / 0.4);
  EXPECT_DOUBLE_EQ(f.first_ms, 200);
  EXPECT_DOUBLE_EQ(f.first_max_ms, 300);
  EXPECT_DOUBLE_EQ(f.gap_p50_ms, 100);
  EXPECT_DOUBLE_EQ(f.gap_max_ms, 200);
}

TEST(BenchStats, WhatIsNotDefinedIsNotANumber) {
  const StreamTimes none{0, {}, 0}, single{0, {50 * kMs}, 1};
  EXPECT_TRUE(std::isnan(figures_of({}).aggregate));
  EXPECT_TRUE(std::isnan(figures_of({&none, 1}).first_ms));
  const StreamFigures f = figures_of({&single, 1});
  EXPECT_DOUBLE_EQ(f.first_ms, 50);
  EXPECT_TRUE(std::isnan(f.rate));
  EXPECT_TRUE(std::isnan(f.aggregate));
  EXPECT_TRUE(std::isnan(f.gap_max_ms));
}

TEST(BenchPrompts, NoTwoStreamsOrRunsAskTheSame) {
  std::set<std::string> seen;
  for (const char* kind : {"structured", "prose", "code"}) {
    for (const char* run : {"a", "b"}) {
      for (int i = 0; i < 20; ++i)
        EXPECT_TRUE(seen.insert(bench_question(kind, i, 20, run)).second) << kind << i;
    }
  }
  EXPECT_EQ(bench_question("prose", 0, 4, "r"), bench_question("prose", 0, 4, "r"));
  EXPECT_EQ(filler_text(500, 7), filler_text(500, 7));
  EXPECT_NE(filler_text(500, 7), filler_text(500, 8));
  EXPECT_NE(passphrase(1), passphrase(2));
  const std::string text = filler_text(1000, 3);
  const auto blanks = std::count_if(text.begin(), text.end(), [](char c) { return c == ' ' || c == '\n'; });
  EXPECT_EQ(blanks, 1000);
}

TEST(BenchReport, TablesAlignByCharacters) {
  TextTable table({"what", "n"});
  table.add({"é", "100"});
  table.add({"longer", "2"});
  EXPECT_EQ(table.text(), "what      n\né       100\nlonger    2\n");
  EXPECT_EQ(number_text(1.25, 1), "1.2");
  EXPECT_EQ(number_text(NAN, 1), "-");
}

TEST(BenchReport, TheFileSaysUnderWhichConditions) {
  const auto path = std::filesystem::temp_directory_path() / ("bench_report_" + std::to_string(::getpid()));
  ASSERT_TRUE(
      write_bench_json(path, "A test", "firesteel bench x", {{"rate", NAN}, {"n", 3}, {"x", {1.23456789}}})
          .ok());
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::filesystem::remove(path);
  const auto json = parse_json(text).value();
  EXPECT_EQ(json["what"], "A test");
  EXPECT_EQ(json["command"], "firesteel bench x");
  EXPECT_TRUE(json["rate"].is_null());
  EXPECT_EQ(json["n"], 3);
  EXPECT_EQ(json["x"][0], 1.23457);
  EXPECT_NE(json["machine"]["system"].get<std::string>().find("Linux"), std::string::npos);
  EXPECT_GT(json["machine"]["threads"], 0);
  EXPECT_GT(json["machine"]["memory_gib"], 0);
  for (const char* key : {"version", "commit", "taken"})
    EXPECT_FALSE(json[key].get<std::string>().empty()) << key;
  EXPECT_TRUE(write_bench_json("", "x", "x", {}).ok());
  EXPECT_EQ(write_bench_json("/nowhere/x.json", "x", "x", {}).error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace firesteel
