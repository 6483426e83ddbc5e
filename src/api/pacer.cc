#include "api/pacer.h"

#include <algorithm>

namespace firesteel::api {

void Pacer::round(size_t events, Clock::time_point now) {
  // The time since the round before says how long one takes; the first has none before it.
  const bool first = begin_ == Clock::time_point{};
  const Clock::duration length = first ? Clock::duration{} : std::min(now - begin_, longest_);
  begin_ = now;
  events_ = events;
  step_ = events == 0 ? Clock::duration{} : length / static_cast<Clock::rep>(events);
}

size_t Pacer::due(size_t waiting, Clock::time_point now) const {
  const size_t latest = std::min(waiting, events_), earlier = waiting - latest, sent = events_ - latest;
  size_t until = sent;
  while (until < events_ && time_of(until) <= now) ++until;
  return earlier + until - sent;
}

}  // namespace firesteel::api
