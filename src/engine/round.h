// The replicated state of the engine, and the record of one round's decisions.
//
// A round is: Scheduler::plan() reads state and waiting requests and writes a RoundRecord; Executor::apply()
// carries the record out on the state and the model. Everything that depends on time or clients (arrivals,
// cancellations) is in the record; everything else (pages, slots, tokens, ends of replies) follows from state
// and record alone, so that several machines which apply the same records stay equal. Engine thread only;
// nothing here allocates after construction.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/page_pool.h"
#include "cache/sequence.h"
#include "engine/request.h"

namespace firesteel {

struct EngineConfig {
  int32_t max_streams = 8;  // requests in one batch
  int32_t max_queue = 64;   // requests that may wait beyond those
  int32_t window = 0;       // tokens a request may span; 0: what the model and its pages allow
  int32_t prompt_rows = 0;  // prompt rows in a round while nothing decodes; 0: as many as the model takes
  int32_t busy_prompt_rows = 64;   // the same beside decoding replies: bounds the gap between their tokens
  int32_t headroom_tokens = 1024;  // reply tokens whose pages are taken at admission; more come page by page
  int32_t pages = 0;               // of the model's that may be used; 0: all
  std::string formats = "exact";   // how the model's numbers are kept, for people
};

/// A place in the batch and the request that has it.
struct Stream {
  Request* request = nullptr;  // null: free
  Sequence sequence;

  explicit Stream(int32_t max_pages) : sequence(max_pages) {}
  /// Known tokens whose rows are not computed yet: 1 while decoding, more while the prompt is being read.
  int32_t pending() const { return request->known() - sequence.rows(); }
};

struct EngineState {
  EngineState(const EngineConfig& config, int32_t window, int32_t pages, int32_t slots);
  int32_t running() const;
  /// CHECKs what must hold between rounds: pools, tables, no page in two sequences. For tests and debug
  /// builds.
  void verify() const;
  /// Back to how it was made, so that ranks with different pasts are equal again. Nothing may run.
  void reset();
  /// Hash of what must be equal on all ranks after the same records.
  uint64_t digest() const;

  std::vector<Stream> streams;
  PagePool pages;
  SlotPool slots;
  uint64_t rounds = 0;
};

struct RoundRecord {
  struct Admission {
    Request* request;
    int32_t stream;
  };
  struct Rows {
    int32_t stream;
    int32_t rows;
  };
  /// `vocab`: of the model, for masks.
  RoundRecord(int32_t max_streams, int32_t vocab);
  void clear();
  /// `forgets` alone is no reason for a round.
  bool empty() const { return cancels.empty() && preempts.empty() && admissions.empty() && rows.empty(); }

  // Applied in this order.
  std::vector<int32_t> cancels;  // streams whose client left
  std::vector<int32_t>
      preempts;  // streams that give their pages back and wait again; their reply goes on later
  std::vector<Admission> admissions;
  std::vector<Rows> rows;         // rows of each stream in this forward, ascending stream
  std::vector<uint64_t> forgets;  // ids of preempted requests that will not come back
  // Streams whose next token is constrained, and a bit for each token that may come, mask_words() of each.
  std::vector<int32_t> masked;
  std::vector<uint32_t> masks;

  size_t mask_words() const { return mask_words_; }
  /// The mask to fill for one more stream.
  std::span<uint32_t> add_mask(int32_t stream);
  /// Empty: the stream has none.
  std::span<const uint32_t> mask(int32_t stream) const;

 private:
  size_t mask_words_;
};

/// Requests that wait, oldest first, in two classes. Rank 0 only: the others learn of admissions.
struct WaitingRequests {
  explicit WaitingRequests(int32_t capacity);
  void insert(Request* request);  // in its class, by age
  void remove(Request* request);
  bool empty() const { return foreground.empty() && background.empty(); }
  int32_t size() const { return static_cast<int32_t>(foreground.size() + background.size()); }

  std::vector<Request*> foreground, background;
};

}  // namespace firesteel
