// From the times of streams to the figures that are published: rates, first tokens, gaps. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace firesteel {

/// One reply as it arrived, in nanoseconds of one clock.
struct StreamTimes {
  int64_t sent = 0;
  std::vector<int64_t> visible;  // when text was there to read, ascending; one entry may carry several tokens
  int64_t tokens = 0;            // of the reply
};

/// What is not defined (no token, a single one) is NaN.
struct StreamFigures {
  double rate = 0;       // (tokens − 1) / (last visible − first visible), mean of the streams
  double aggregate = 0;  // Σ(tokens − 1) / (latest last − earliest first): no prefill in it
  double first_ms = 0, first_max_ms = 0;                  // sent to first visible: mean, worst
  double gap_p50_ms = 0, gap_p90_ms = 0, gap_max_ms = 0;  // between visible pieces, of all streams
  double tokens_per_piece = 0;
};
StreamFigures figures_of(std::span<const StreamTimes> streams);

/// Nearest rank: the smallest value that at least `share` of all do not exceed. NaN when there is none.
double percentile(std::vector<double> values, double share);

}  // namespace firesteel
