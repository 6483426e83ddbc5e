// Which tokens belong to the text that a reply shows, for per-token log-probabilities: markers, tool markup,
// trimmed blanks and what lies behind a stop string have no entry, and an entry comes with the piece that shows
// the first byte of its token. The same however tokens arrive. One per choice; not thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <string_view>
#include <vector>

#include "text/reply_stream.h"

namespace firesteel::api {

class ReplyScores {
 public:
  /// `trims`: the reply leaves out blanks at the start of its answer. `markers`: think markers are not text.
  ReplyScores(bool trims, bool markers) : trims_(trims), markers_(markers) {}

  /// The reply's token `index`, read while in the think block or not.
  void push(size_t index, std::string_view bytes, bool in_think);
  /// A piece that came out: appends the indices of the tokens that it shows.
  void show(const ReplyPiece& piece, std::vector<size_t>* tokens);

 private:
  struct Waiting {
    size_t index, start;  // start: of its bytes in the text of its kind
    size_t bytes;
    bool blank;
  };
  struct Text {
    std::deque<Waiting> waiting;
    size_t known = 0, shown = 0;  // bytes
  };
  const bool trims_, markers_;
  Text reasoning_, content_;
};

}  // namespace firesteel::api
