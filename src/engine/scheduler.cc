#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace firesteel {

int32_t admission_rows(const Request& request, const EngineConfig& config) {
  const int64_t wanted = int64_t{request.known()} + config.headroom_tokens;
  return static_cast<int32_t>(std::min<int64_t>(wanted, request.total_rows()));
}

Scheduler::Scheduler(const EngineConfig& config, int32_t max_rows, int32_t score_rows)
    : config_(config), max_rows_(max_rows), score_rows_(score_rows) {
  CHECK(max_rows >= config.max_streams);
  const size_t n = static_cast<size_t>(config.max_streams);
  running_.reserve(n);
  prompts_.reserve(n);
  rows_.reserve(n);
  places_.reserve(n);
}

bool Scheduler::before(const Entry& a, const Entry& b) {
  if (a.request->spec.background != b.request->spec.background) return b.request->spec.background;
  return a.request->id < b.request->id;
}

void Scheduler::plan(const EngineState& state, const WaitingRequests& waiting, RoundRecord& record) {
  record.clear();
  cancel_and_sort(state, record);
  grow(record);
  // Pages that were just taken from a request are not for those behind it: it waits at the head of the next
  // round.
  if (record.preempts.empty()) admit(waiting, record);
  share_rows(record);
}

void Scheduler::cancel_and_sort(const EngineState& state, RoundRecord& record) {
  free_pages_ = state.pages.free();
  free_slots_ = state.slots.free();
  running_.clear();
  places_.clear();
  for (int32_t i = static_cast<int32_t>(state.streams.size()) - 1; i >= 0; --i) {
    const Stream& stream = state.streams[static_cast<size_t>(i)];
    if (stream.request == nullptr) {
      places_.push_back(i);
      continue;
    }
    const int32_t pages = static_cast<int32_t>(stream.sequence.pages().size());
    running_.push_back({stream.request, i, stream.pending(), pages});
  }
  for (size_t i = running_.size(); i-- > 0;)
    if (running_[i].request->generation->cancel_requested()) drop(i, record.cancels);
  std::sort(places_.begin(), places_.end(), std::greater<>());
  std::sort(running_.begin(), running_.end(), before);
}

void Scheduler::drop(size_t index, std::vector<int32_t>& list) {
  const Entry entry = running_[index];
  list.push_back(entry.stream);
  free_pages_ += entry.pages;
  ++free_slots_;
  places_.push_back(entry.stream);
  running_.erase(running_.begin() + static_cast<ptrdiff_t>(index));
}

void Scheduler::grow(RoundRecord& record) {
  for (size_t i = 0; i < running_.size(); ++i) {
    const int32_t rows = running_[i].request->known();  // after this round, if it decodes
    if (running_[i].pending != 1 || rows <= running_[i].pages * kPageTokens) continue;
    while (free_pages_ == 0 && i < running_.size()) drop(running_.size() - 1, record.preempts);
    if (i == running_.size()) return;  // it was itself the last
    --free_pages_;
    ++running_[i].pages;
  }
}

void Scheduler::admit(const WaitingRequests& waiting, RoundRecord& record) {
  size_t next = 0;
  for (; next < waiting.foreground.size(); ++next) {
    Request* const request = waiting.foreground[next];
    if (request->generation->cancel_requested()) continue;  // the engine removes it
    if (!make_room(*request, record)) return;
    record.admissions.push_back({request, places_.back()});
    places_.pop_back();
  }
  if (!record.preempts.empty()) return;
  for (Request* const request : waiting.background) {
    if (request->generation->cancel_requested()) continue;
    if (!make_room(*request, record)) return;
    record.admissions.push_back({request, places_.back()});
    places_.pop_back();
  }
}

/// Whether the request can start now, background requests giving way to it if it is none itself. Takes its
/// pages, its slot and an entry of running_.
bool Scheduler::make_room(const Request& request, RoundRecord& record) {
  const int32_t need = pages_for(admission_rows(request, config_));
  const auto fits = [&](int32_t free, int32_t growing) { return need + growing <= free; };
  const auto may_grow = [&](const Entry& e) {
    return std::min(pages_for(e.request->total_rows()) - e.pages, pages_for(config_.headroom_tokens));
  };
  int32_t growing = 0;
  for (const Entry& e : running_) growing += may_grow(e);
  if (places_.empty() || free_slots_ == 0 || !fits(free_pages_, growing)) {
    if (request.spec.background) return false;
    // Would it fit if all background requests gave way? Only then do they, newest first, as many as needed.
    // One that was admitted in this same round is not among them: background comes after foreground.
    int32_t free = free_pages_, growing_left = growing, victims = 0;
    for (const Entry& e : running_) {
      if (!e.request->spec.background) continue;
      free += e.pages;
      growing_left -= may_grow(e);
      ++victims;
    }
    if (victims == 0 || !fits(free, growing_left)) return false;
    while (places_.empty() || free_slots_ == 0 || !fits(free_pages_, growing)) {
      growing -= may_grow(running_.back());
      drop(running_.size() - 1, record.preempts);
    }
  }
  free_pages_ -= need;
  --free_slots_;
  const Entry entry{&request, places_.back(), request.known(), need};
  running_.insert(std::upper_bound(running_.begin(), running_.end(), entry, before), entry);
  return true;
}

void Scheduler::share_rows(RoundRecord& record) {
  rows_.assign(running_.size(), 0);
  prompts_.clear();
  int32_t decoding = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i].pending == 1) {
      rows_[i] = 1;
      ++decoding;
    } else {
      prompts_.push_back(static_cast<int32_t>(i));
    }
  }
  if (!prompts_.empty()) {
    const int32_t wanted =
        decoding > 0 ? config_.busy_prompt_rows : (config_.prompt_rows > 0 ? config_.prompt_rows : max_rows_);
    int32_t budget = std::min(wanted, max_rows_ - decoding);
    int32_t score_rows = score_rows_;
    const auto give = [&](int32_t i, int32_t limit) {
      const size_t at = static_cast<size_t>(i);
      int32_t rows = std::min({running_[at].pending - rows_[at], limit, budget});
      if (running_[at].request->scores_prompt()) {
        rows = std::min(rows, score_rows);
        score_rows -= rows;
      }
      rows_[at] += rows;
      budget -= rows;
    };
    const int32_t first = prompts_.front();
    give(first, (budget + 1) / 2);
    std::sort(prompts_.begin(), prompts_.end(), [&](int32_t a, int32_t b) {
      const Entry &x = running_[static_cast<size_t>(a)], &y = running_[static_cast<size_t>(b)];
      if (x.request->spec.background != y.request->spec.background) return y.request->spec.background;
      return x.pending != y.pending ? x.pending < y.pending : a < b;
    });
    // Background prompts come last; the first prompt takes what other foreground prompts leave.
    const bool first_background = running_[static_cast<size_t>(first)].request->spec.background;
    for (const int32_t i : prompts_) {
      if (running_[static_cast<size_t>(i)].request->spec.background != first_background) break;
      if (i != first) give(i, budget);
    }
    give(first, budget);
    for (const int32_t i : prompts_) give(i, budget);
  }
  for (size_t i = 0; i < running_.size(); ++i)
    if (rows_[i] > 0) record.rows.push_back({running_[i].stream, rows_[i]});
  std::sort(record.rows.begin(), record.rows.end(),
            [](const RoundRecord::Rows& a, const RoundRecord::Rows& b) { return a.stream < b.stream; });
}

}  // namespace firesteel
