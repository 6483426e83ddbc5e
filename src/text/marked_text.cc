#include "text/marked_text.h"

#include <algorithm>

namespace firesteel {

namespace {
/// Index of the run that holds byte `at`, by binary search.
size_t run_of(const std::vector<MarkedText::Run>& runs, size_t at) {
  return static_cast<size_t>(std::upper_bound(runs.begin(), runs.end(), at,
                                              [](size_t v, const MarkedText::Run& r) { return v < r.end; }) -
                             runs.begin());
}
}  // namespace

bool MarkedText::all_trusted(size_t begin, size_t end) const {
  for (size_t i = run_of(runs_, begin); i < runs_.size() && runs_[i].begin < end; ++i)
    if (!runs_[i].trusted) return false;
  return true;
}

void MarkedText::append(std::string_view s, bool trusted) {
  if (s.empty()) return;
  const size_t begin = bytes_.size();
  bytes_.append(s);
  if (!runs_.empty() && runs_.back().trusted == trusted) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({begin, bytes_.size(), trusted});
  }
}

void MarkedText::append(const MarkedText& other) {
  if (&other == this) {
    const MarkedText copy = other;
    append(copy);
    return;
  }
  for (const Run& r : other.runs_)
    append(std::string_view(other.bytes_).substr(r.begin, r.end - r.begin), r.trusted);
}

void MarkedText::append(const MarkedText& other, size_t begin, size_t end) {
  for (size_t i = run_of(other.runs_, begin); i < other.runs_.size() && other.runs_[i].begin < end; ++i) {
    const size_t b = std::max(begin, other.runs_[i].begin), e = std::min(end, other.runs_[i].end);
    append(std::string_view(other.bytes_).substr(b, e - b), other.runs_[i].trusted);
  }
}

MarkedText MarkedText::substr(size_t begin, size_t count) const {
  MarkedText out;
  begin = std::min(begin, bytes_.size());
  out.append(*this, begin, begin + std::min(count, bytes_.size() - begin));
  return out;
}

}  // namespace firesteel
