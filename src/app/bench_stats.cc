#include "app/bench_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace firesteel {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double over(double amount, double divisor) { return divisor > 0 ? amount / divisor : kNone; }

}  // namespace

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return kNone;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  const auto index = static_cast<size_t>(std::max(rank, 1.0)) - 1;
  return values[std::min(index, values.size() - 1)];
}

StreamFigures figures_of(std::span<const StreamTimes> streams) {
  StreamFigures out;
  std::vector<double> gaps;
  double rates = 0, first_sum = 0, further = 0, tokens = 0, pieces = 0;
  double rated = 0, begun = 0;
  int64_t earliest = std::numeric_limits<int64_t>::max(), latest = std::numeric_limits<int64_t>::min();
  out.first_max_ms = kNone;
  for (const StreamTimes& s : streams) {
    if (s.visible.empty()) continue;
    const int64_t first = s.visible.front(), last = s.visible.back();
    const double first_ms = static_cast<double>(first - s.sent) * 1e-6;
    begun += 1;
    first_sum += first_ms;
    out.first_max_ms = std::isnan(out.first_max_ms) ? first_ms : std::max(out.first_max_ms, first_ms);
    earliest = std::min(earliest, first);
    latest = std::max(latest, last);
    further += static_cast<double>(s.tokens - 1);
    tokens += static_cast<double>(s.tokens);
    pieces += static_cast<double>(s.visible.size());
    if (last > first) {
      rates += static_cast<double>(s.tokens - 1) / (static_cast<double>(last - first) * 1e-9);
      rated += 1;
    }
    for (size_t i = 1; i < s.visible.size(); ++i) {
      gaps.push_back(static_cast<double>(s.visible[i] - s.visible[i - 1]) * 1e-6);
    }
  }
  out.rate = over(rates, rated);
  out.aggregate = begun > 0 ? over(further, static_cast<double>(latest - earliest) * 1e-9) : kNone;
  out.first_ms = over(first_sum, begun);
  out.gap_p50_ms = percentile(gaps, 0.5);
  out.gap_p90_ms = percentile(gaps, 0.9);
  out.gap_max_ms = percentile(gaps, 1);
  out.tokens_per_piece = over(tokens, pieces);
  return out;
}

}  // namespace firesteel
