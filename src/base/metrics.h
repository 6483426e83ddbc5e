// Metrics: counters, gauges and histograms that any thread updates without a lock, and their text in the
// Prometheus exposition format 0.0.4.
//
// A MetricsRegistry owns its instruments; they are registered once, before other threads see it, and live as
// long as it does. Updating never allocates (but for the first use of a label value) and never waits. Figures
// that somebody else keeps are not registered: they are written straight to the MetricsWriter when asked for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace firesteel {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

/// One name of a family, with labels that every series of it carries.
struct MetricName {
  std::string name;
  MetricLabels labels;
};

/// A family: the same readings are written under each of its names, in this order.
struct MetricFamily {
  std::vector<MetricName> names;
  std::string help;
};

class Counter {
 public:
  void add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// A whole number that goes up and down.
class Gauge {
 public:
  void add(int64_t n) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

class Histogram {
 public:
  /// `edges`: upper bounds of the buckets, ascending and finite; a last one for everything above is implied.
  explicit Histogram(std::vector<double> edges);
  /// `n` observations of `value`; what is no number is ignored.
  void observe(double value, uint64_t n = 1);

  struct Reading {
    std::vector<uint64_t> counts;  // by bucket, not cumulated; one more than edges
    double sum = 0;
  };
  Reading read() const;
  const std::vector<double>& edges() const { return edges_; }

 private:
  const std::vector<double> edges_;
  std::vector<std::atomic<uint64_t>> counts_;
  std::atomic<double> sum_{0};
};

/// Counters of one family by label values, made at their first use and at most `capacity` of them: further
/// combinations share one series whose values are all "other".
class CounterSet {
 public:
  CounterSet(std::vector<std::string> label_names, size_t capacity);
  ~CounterSet();
  CounterSet(const CounterSet&) = delete;
  CounterSet& operator=(const CounterSet&) = delete;

  /// As many values as there are label names.
  Counter& at(std::initializer_list<std::string_view> values);

 private:
  friend class MetricsWriter;
  struct Series {
    MetricLabels labels;
    Counter counter;
  };
  const std::vector<std::string> label_names_;
  std::vector<std::atomic<Series*>> series_;  // filled from the front
  Series other_;
};

/// Builds the text. One thread. Names and label names are ours and checked; label values may be anything.
class MetricsWriter {
 public:
  struct Sample {
    MetricLabels labels;
    double value;
  };
  void counter(const MetricFamily& family, double value) { write(family, "counter", {{{}, value}}); }
  void gauge(const MetricFamily& family, double value) { write(family, "gauge", {{{}, value}}); }
  void gauges(const MetricFamily& family, const std::vector<Sample>& samples) {
    write(family, "gauge", samples);
  }
  void counters(const MetricFamily& family, const CounterSet& set);
  void histogram(const MetricFamily& family, const std::vector<double>& edges,
                 const Histogram::Reading& reading);
  std::string take() { return std::move(out_); }

 private:
  void write(const MetricFamily& family, const char* type, const std::vector<Sample>& samples);
  void head(const MetricName& name, const char* type, const std::string& help);
  void sample(const std::string& name, const MetricLabels& fixed, const MetricLabels& own, double value);
  std::string out_;
};

class MetricsRegistry {
 public:
  Counter& counter(MetricFamily family);
  Gauge& gauge(MetricFamily family);
  Histogram& histogram(MetricFamily family, std::vector<double> edges);
  CounterSet& counter_set(MetricFamily family, std::vector<std::string> label_names, size_t capacity);

  /// All of them, in the order of registration. Any thread, any time after registration.
  void write(MetricsWriter& out) const;

 private:
  struct Entry {
    MetricFamily family;
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
    std::unique_ptr<CounterSet> set;
  };
  Entry& add(MetricFamily family);
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace firesteel
