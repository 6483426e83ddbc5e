// When what a round brought goes out: the events of one round spread evenly over the time that a round takes,
// so that tokens drafted together do not come in bursts. One for each choice of a stream.
//
// The first event of a round is never held back, and the next round sends whatever is left of the one before:
// a round of one token goes out as it comes. Times come from the caller.
#pragma once

#include <chrono>
#include <cstddef>

namespace firesteel::api {

class Pacer {
 public:
  using Clock = std::chrono::steady_clock;

  /// `longest`: no round is spread over more than this; 0: nothing is held back.
  explicit Pacer(Clock::duration longest) : longest_(longest) {}
  bool on() const { return longest_.count() > 0; }

  /// A round brought `events`, which wait behind those of earlier rounds.
  void round(size_t events, Clock::time_point now);
  /// How many of `waiting` events, the oldest first, go out now.
  size_t due(size_t waiting, Clock::time_point now) const;
  /// When the oldest of `waiting` events is due; those that were due are out, so that these are all of the
  /// latest round.
  Clock::time_point next(size_t waiting) const { return time_of(events_ - waiting); }

 private:
  /// When event `i` of the latest round is due.
  Clock::time_point time_of(size_t i) const { return begin_ + step_ * static_cast<Clock::rep>(i); }

  const Clock::duration longest_;
  Clock::time_point begin_{};  // of the latest round
  Clock::duration step_{};     // between its events
  size_t events_ = 0;          // in it
};

}  // namespace firesteel::api
