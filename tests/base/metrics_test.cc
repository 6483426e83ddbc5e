#include "base/metrics.h"

#include <gtest/gtest.h>

#include <thread>

namespace firesteel {
namespace {

std::string text_of(const MetricsRegistry& registry) {
  MetricsWriter out;
  registry.write(out);
  return out.take();
}

TEST(Metrics, TextOfEachKind) {
  MetricsRegistry registry;
  registry.counter({{{"a_total", {}}}, "Things."}).add(3);
  registry.gauge({{{"b", {}}}, "Level."}).add(-2);
  Histogram& h = registry.histogram({{{"c_seconds", {}}}, "Times."}, {0.1, 2});
  h.observe(0.1);  // an edge belongs to its own bucket
  h.observe(1.5, 2);
  h.observe(30);
  EXPECT_EQ(text_of(registry),
            "# HELP a_total Things.\n"
            "# TYPE a_total counter\n"
            "a_total 3\n"
            "# HELP b Level.\n"
            "# TYPE b gauge\n"
            "b -2\n"
            "# HELP c_seconds Times.\n"
            "# TYPE c_seconds histogram\n"
            "c_seconds_bucket{le=\"0.1\"} 1\n"
            "c_seconds_bucket{le=\"2\"} 3\n"
            "c_seconds_bucket{le=\"+Inf\"} 4\n"
            "c_seconds_sum 33.1\n"
            "c_seconds_count 4\n");
}

TEST(Metrics, EveryNameCarriesTheSameReadings) {
  MetricsRegistry registry;
  CounterSet& set =
      registry.counter_set({{{"own_total", {}}, {"other:total", {{"model", "m"}}}}, "X."}, {"status"}, 4);
  set.at({"200"}).add(5);
  set.at({"429"}).add();
  set.at({"200"}).add();
  EXPECT_EQ(text_of(registry),
            "# HELP own_total X.\n# TYPE own_total counter\n"
            "own_total{status=\"200\"} 6\nown_total{status=\"429\"} 1\n"
            "# HELP other:total X.\n# TYPE other:total counter\n"
            "other:total{model=\"m\",status=\"200\"} 6\nother:total{model=\"m\",status=\"429\"} 1\n");
}

TEST(Metrics, LabelValuesAndHelpAreEscaped) {
  MetricsRegistry registry;
  registry.counter_set({{{"a_total", {}}}, "two\nlines \\ \"x\""}, {"k"}, 2).at({"q\"b\\n\nend"}).add();
  EXPECT_EQ(text_of(registry),
            "# HELP a_total two\\nlines \\\\ \"x\"\n# TYPE a_total counter\n"
            "a_total{k=\"q\\\"b\\\\n\\nend\"} 1\n");
}

TEST(Metrics, NumbersAreExactAndShort) {
  MetricsWriter out;
  out.counter({{{"a", {}}}, ""}, 4'294'967'296'000.0);
  out.gauge({{{"b", {}}}, ""}, 0.1);
  out.gauge({{{"c", {}}}, ""}, std::numeric_limits<double>::quiet_NaN());
  const std::string text = out.take();
  EXPECT_NE(text.find("\na 4294967296000\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nb 0.1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nc NaN\n"), std::string::npos) << text;
}

TEST(Metrics, AFamilyWithoutSeriesIsNotWritten) {
  MetricsRegistry registry;
  registry.counter_set({{{"a_total", {}}}, "X."}, {"k"}, 2);
  EXPECT_EQ(text_of(registry), "");
}

TEST(Metrics, LabelValuesAreBounded) {
  MetricsRegistry registry;
  CounterSet& set = registry.counter_set({{{"a_total", {}}}, "X."}, {"k", "l"}, 2);
  for (int i = 0; i < 1000; ++i) set.at({std::to_string(i), "v"}).add();
  set.at({"1", "v"}).add();  // those that have a series keep it
  EXPECT_EQ(text_of(registry),
            "# HELP a_total X.\n# TYPE a_total counter\n"
            "a_total{k=\"0\",l=\"v\"} 1\na_total{k=\"1\",l=\"v\"} 2\n"
            "a_total{k=\"other\",l=\"other\"} 998\n");
}

TEST(Metrics, HistogramsIgnoreWhatIsNoNumber) {
  Histogram h({1});
  h.observe(std::numeric_limits<double>::quiet_NaN());
  h.observe(5, 0);
  EXPECT_EQ(h.read().counts, (std::vector<uint64_t>{0, 0}));
  EXPECT_EQ(h.read().sum, 0);
}

// Updates from several threads are all counted, and a label value gets one series however many race for it.
TEST(Metrics, NothingIsLostBetweenThreads) {
  MetricsRegistry registry;
  Counter& counter = registry.counter({{{"a_total", {}}}, "X."});
  CounterSet& set = registry.counter_set({{{"b_total", {}}}, "X."}, {"k"}, 64);
  Histogram& h = registry.histogram({{{"c", {}}}, "X."}, {1, 2});
  constexpr int kThreads = 4, kRounds = 20'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        counter.add();
        set.at({std::to_string(i % 32)}).add();
        h.observe(i % 3);
        if (i % 5000 == 0) text_of(registry);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(counter.value(), uint64_t{kThreads * kRounds});
  uint64_t by_label = 0;
  for (int i = 0; i < 32; ++i) by_label += set.at({std::to_string(i)}).value();
  EXPECT_EQ(by_label, uint64_t{kThreads * kRounds});
  const Histogram::Reading reading = h.read();
  EXPECT_EQ(reading.counts[0] + reading.counts[1] + reading.counts[2], uint64_t{kThreads * kRounds});
  EXPECT_EQ(reading.sum, kThreads * (6666.0 + 2 * 6666.0 + 0 + 1));
  const std::string text = text_of(registry);
  size_t series = 0;
  for (size_t at = 0; (at = text.find("\nb_total{", at)) != std::string::npos; ++at) ++series;
  EXPECT_EQ(series, 32u);
}

}  // namespace
}  // namespace firesteel
