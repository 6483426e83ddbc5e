// Scheduler: decides what one round does. A pure function of the state, the waiting requests and their
// cancellation flags; it changes none of them. Engine thread of rank 0; allocates nothing after construction.
//
// Policy
// - Priority: foreground before background, then age. Waiting requests are admitted in that order.
// - Every decoding reply gets its row in every round. Prompt rows fill the same forward, up to a budget
//   that bounds the time between two tokens of the others: half to the oldest prompt, the rest to the
//   shortest ones.
// - Pages: admission takes those of all known tokens and of `headroom_tokens` more, and leaves as much for
//   each running reply that may still grow. A reply that needs a page when none is free takes those of the
//   running request of lowest priority, which waits again and goes on where it was: its known tokens become
//   its prompt, and a prompt has the bits of decoding (DESIGN section 4). The first in priority can always
//   have the whole pool, and no request larger than the pool is accepted, so there is no deadlock and no
//   reply is lost.
// - A waiting foreground request takes places and pages from background ones, newest first.
#pragma once

#include "engine/round.h"

namespace firesteel {

/// Rows whose pages a request takes when it is admitted.
int32_t admission_rows(const Request& request, const EngineConfig& config);

class Scheduler {
 public:
  /// `max_rows`: rows that one forward takes, at least config.max_streams. `score_rows`: rows of prompts whose
  /// log-probabilities are wanted that one forward takes.
  Scheduler(const EngineConfig& config, int32_t max_rows, int32_t score_rows);

  void plan(const EngineState& state, const WaitingRequests& waiting, RoundRecord& record);

 private:
  struct Entry {
    const Request* request;
    int32_t stream;
    int32_t pending;
    int32_t pages;  // held, those granted in this round included
  };
  static bool before(const Entry& a, const Entry& b);  // priority
  void drop(size_t index, std::vector<int32_t>& list);
  void cancel_and_sort(const EngineState& state, RoundRecord& record);
  void grow(RoundRecord& record);
  void admit(const WaitingRequests& waiting, RoundRecord& record);
  bool make_room(const Request& request, RoundRecord& record);
  void share_rows(RoundRecord& record);

  EngineConfig config_;
  int32_t max_rows_, score_rows_;
  // The round being planned.
  std::vector<Entry> running_;    // by priority
  std::vector<int32_t> prompts_;  // indices into running_
  std::vector<int32_t> rows_;     // rows of each entry of running_
  std::vector<int32_t> places_;   // free streams, descending
  int32_t free_pages_ = 0, free_slots_ = 0;
};

}  // namespace firesteel
