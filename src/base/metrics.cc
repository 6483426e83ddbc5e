#include "base/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace firesteel {
namespace {

bool valid_name(std::string_view name, bool colons) {
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (colons && c == ':');
    if (!letter && !(i > 0 && c >= '0' && c <= '9')) return false;
  }
  return !name.empty();
}

void append_number(double value, std::string* out) {
  if (std::isnan(value)) {
    *out += "NaN";
  } else if (std::isinf(value)) {
    *out += value > 0 ? "+Inf" : "-Inf";
  } else {
    char text[32];
    // Counts are written whole: 1000000, not 1e+06.
    const bool whole = std::abs(value) < 9e15 && value == std::floor(value);
    const auto end = whole ? std::to_chars(text, text + sizeof text, static_cast<int64_t>(value))
                           : std::to_chars(text, text + sizeof text, value);
    out->append(text, end.ptr);
  }
}

void append_escaped(std::string_view s, bool quotes, std::string* out) {
  for (const char c : s) {
    if (c == '\n') {
      *out += "\\n";
      continue;
    }
    if (c == '\\' || (quotes && c == '"')) out->push_back('\\');
    out->push_back(c);
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------- instruments

Histogram::Histogram(std::vector<double> edges) : edges_(std::move(edges)), counts_(edges_.size() + 1) {
  for (size_t i = 0; i < edges_.size(); ++i) {
    CHECK(std::isfinite(edges_[i]) && (i == 0 || edges_[i - 1] < edges_[i]));
  }
}

void Histogram::observe(double value, uint64_t n) {
  if (std::isnan(value) || n == 0) return;
  const auto bucket = std::lower_bound(edges_.begin(), edges_.end(), value) - edges_.begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(n, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(n), std::memory_order_relaxed);
}

Histogram::Reading Histogram::read() const {
  Reading out;
  out.sum = sum_.load(std::memory_order_relaxed);
  for (const auto& count : counts_) out.counts.push_back(count.load(std::memory_order_relaxed));
  return out;
}

CounterSet::CounterSet(std::vector<std::string> label_names, size_t capacity)
    : label_names_(std::move(label_names)), series_(capacity) {
  for (const std::string& name : label_names_) {
    CHECK(valid_name(name, false));
    other_.labels.emplace_back(name, "other");
  }
}

CounterSet::~CounterSet() {
  for (auto& slot : series_) delete slot.load();
}

Counter& CounterSet::at(std::initializer_list<std::string_view> values) {
  CHECK(values.size() == label_names_.size());
  const auto same = [&](const Series& s) {
    return std::equal(values.begin(), values.end(), s.labels.begin(),
                      [](std::string_view value, const auto& label) { return value == label.second; });
  };
  std::unique_ptr<Series> fresh;
  for (auto& slot : series_) {
    Series* there = slot.load(std::memory_order_acquire);
    if (there == nullptr) {
      if (!fresh) {
        fresh = std::make_unique<Series>();
        size_t i = 0;
        for (const std::string_view value : values) fresh->labels.emplace_back(label_names_[i++], value);
      }
      if (slot.compare_exchange_strong(there, fresh.get(), std::memory_order_acq_rel)) {
        return fresh.release()->counter;
      }
    }
    if (same(*there)) return there->counter;
  }
  return other_.counter;
}

// --------------------------------------------------------------------------------------------- text

void MetricsWriter::head(const MetricName& name, const char* type, const std::string& help) {
  CHECK(valid_name(name.name, true));
  out_ += "# HELP " + name.name + " ";
  append_escaped(help, false, &out_);
  out_ += "\n# TYPE " + name.name + " " + type + "\n";
}

void MetricsWriter::sample(const std::string& name, const MetricLabels& fixed, const MetricLabels& own,
                           double value) {
  out_ += name;
  char separator = '{';
  for (const MetricLabels* labels : {&fixed, &own}) {
    for (const auto& [label, text] : *labels) {
      out_.push_back(separator);
      out_.append(label).append("=\"");
      append_escaped(text, true, &out_);
      out_.push_back('"');
      separator = ',';
    }
  }
  if (separator == ',') out_.push_back('}');
  out_.push_back(' ');
  append_number(value, &out_);
  out_.push_back('\n');
}

void MetricsWriter::write(const MetricFamily& family, const char* type, const std::vector<Sample>& samples) {
  if (samples.empty()) return;
  for (const MetricName& name : family.names) {
    head(name, type, family.help);
    for (const Sample& s : samples) sample(name.name, name.labels, s.labels, s.value);
  }
}

void MetricsWriter::counters(const MetricFamily& family, const CounterSet& set) {
  std::vector<Sample> samples;
  for (const auto& slot : set.series_) {
    const CounterSet::Series* series = slot.load(std::memory_order_acquire);
    if (series == nullptr) break;
    samples.push_back({series->labels, static_cast<double>(series->counter.value())});
  }
  if (set.other_.counter.value() > 0) {
    samples.push_back({set.other_.labels, static_cast<double>(set.other_.counter.value())});
  }
  write(family, "counter", samples);
}

void MetricsWriter::histogram(const MetricFamily& family, const std::vector<double>& edges,
                              const Histogram::Reading& reading) {
  CHECK(reading.counts.size() == edges.size() + 1);
  for (const MetricName& name : family.names) {
    head(name, "histogram", family.help);
    // The total is the last bucket, so that a reading taken in the middle of an update agrees with itself.
    uint64_t total = 0;
    for (size_t i = 0; i < reading.counts.size(); ++i) {
      total += reading.counts[i];
      std::string le;
      append_number(i < edges.size() ? edges[i] : INFINITY, &le);
      sample(name.name + "_bucket", name.labels, {{"le", le}}, static_cast<double>(total));
    }
    sample(name.name + "_sum", name.labels, {}, reading.sum);
    sample(name.name + "_count", name.labels, {}, static_cast<double>(total));
  }
}

// ----------------------------------------------------------------------------------------- registry

MetricsRegistry::Entry& MetricsRegistry::add(MetricFamily family) {
  for (const MetricName& name : family.names) {
    CHECK(valid_name(name.name, true));
    for (const auto& entry : entries_) {
      for (const MetricName& other : entry->family.names) CHECK(other.name != name.name);
    }
  }
  entries_.push_back(std::make_unique<Entry>());
  entries_.back()->family = std::move(family);
  return *entries_.back();
}

Counter& MetricsRegistry::counter(MetricFamily family) {
  return *(add(std::move(family)).counter = std::make_unique<Counter>());
}

Gauge& MetricsRegistry::gauge(MetricFamily family) {
  return *(add(std::move(family)).gauge = std::make_unique<Gauge>());
}

Histogram& MetricsRegistry::histogram(MetricFamily family, std::vector<double> edges) {
  return *(add(std::move(family)).histogram = std::make_unique<Histogram>(std::move(edges)));
}

CounterSet& MetricsRegistry::counter_set(MetricFamily family, std::vector<std::string> label_names,
                                         size_t capacity) {
  return *(add(std::move(family)).set = std::make_unique<CounterSet>(std::move(label_names), capacity));
}

void MetricsRegistry::write(MetricsWriter& out) const {
  for (const auto& entry : entries_) {
    const Entry& e = *entry;
    if (e.counter) out.counter(e.family, static_cast<double>(e.counter->value()));
    if (e.gauge) out.gauge(e.family, static_cast<double>(e.gauge->value()));
    if (e.histogram) out.histogram(e.family, e.histogram->edges(), e.histogram->read());
    if (e.set) out.counters(e.family, *e.set);
  }
}

}  // namespace firesteel
