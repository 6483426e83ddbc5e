#include "grammar/char_set.h"

#include <algorithm>

namespace firesteel::grammar {

CharSet CharSet::all() {
  CharSet set;
  set.add(0, kMaxCodePoint);
  return set;
}

CharSet CharSet::of(uint32_t code_point) {
  CharSet set;
  set.add(code_point, code_point);
  return set;
}

void CharSet::add(uint32_t low, uint32_t high) {
  high = std::min(high, kMaxCodePoint);
  if (low <= high && low < 0xD800) ranges_.push_back({low, std::min(high, 0xD7FFu)});
  if (low <= high && high > 0xDFFF) ranges_.push_back({std::max(low, 0xE000u), high});
}

void CharSet::add(const CharSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
}

void CharSet::normalize() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const CharRange& a, const CharRange& b) { return a.low < b.low; });
  size_t kept = 0;
  for (const CharRange& r : ranges_) {
    if (kept > 0 && r.low <= ranges_[kept - 1].high + 1) {
      ranges_[kept - 1].high = std::max(ranges_[kept - 1].high, r.high);
    } else {
      ranges_[kept++] = r;
    }
  }
  ranges_.resize(kept);
}

CharSet CharSet::complement() const {
  CharSet out;
  uint32_t next = 0;
  for (const CharRange& r : ranges_) {
    if (r.low > next) out.add(next, r.low - 1);
    next = r.high + 1;
  }
  if (next <= kMaxCodePoint) out.add(next, kMaxCodePoint);
  return out;
}

CharSet CharSet::intersect(const CharSet& other) const {
  CharSet out;
  size_t i = 0, j = 0;
  while (i < ranges_.size() && j < other.ranges_.size()) {
    const CharRange &a = ranges_[i], &b = other.ranges_[j];
    if (std::max(a.low, b.low) <= std::min(a.high, b.high))
      out.ranges_.push_back({std::max(a.low, b.low), std::min(a.high, b.high)});
    (a.high < b.high ? i : j) += 1;
  }
  return out;
}

bool CharSet::contains(uint32_t code_point) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), code_point,
                                      [](uint32_t c, const CharRange& r) { return c < r.low; });
  return after != ranges_.begin() && std::prev(after)->high >= code_point;
}

int encode_utf8(uint32_t c, uint8_t out[4]) {
  if (c < 0x80) {
    out[0] = static_cast<uint8_t>(c);
    return 1;
  }
  const int length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (int i = length - 1; i > 0; --i, c >>= 6) out[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  constexpr uint8_t kLead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
  out[0] = static_cast<uint8_t>(kLead[length] | c);
  return length;
}

std::vector<Utf8Run> utf8_runs(const CharSet& set) {
  std::vector<Utf8Run> runs;
  for (CharRange range : set.ranges()) {
    while (range.low <= range.high) {
      // The longest piece from `low` whose bytes vary independently: cut where the length changes, then so
      // that below the highest differing byte all continuation bytes run from 80 to BF.
      uint32_t high = range.high;
      for (uint32_t last : {0x7Fu, 0x7FFu, 0xFFFFu}) {
        if (range.low <= last && high > last) high = last;
      }
      for (int shift = 6; shift <= 18; shift += 6) {
        const uint32_t mask = (1u << shift) - 1;
        if (range.low < 0x80 || (range.low & ~mask) == (high & ~mask)) continue;
        if ((range.low & mask) != 0) {
          high = range.low | mask;
        } else if ((high & mask) != mask) {
          high = (high & ~mask) - 1;
        }
      }
      Utf8Run run;
      run.length = encode_utf8(range.low, run.low);
      encode_utf8(high, run.high);
      runs.push_back(run);
      if (high == kMaxCodePoint) break;
      range.low = high + 1;
    }
  }
  return runs;
}

int32_t read_utf8(std::string_view s, size_t* at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t lead = byte((*at)++);
  if (lead < 0x80) return lead;
  const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  if (lead < 0xC2 || lead > 0xF4 || s.size() - *at < static_cast<size_t>(more)) return -1;
  uint32_t c = lead & (0x3Fu >> more);
  for (int i = 0; i < more; ++i) {
    const uint8_t b = byte(*at + static_cast<size_t>(i));
    if ((b & 0xC0) != 0x80) return -1;
    c = c << 6 | (b & 0x3Fu);
  }
  constexpr uint32_t kLeast[4] = {0, 0x80, 0x800, 0x10000};
  if (c < kLeast[more] || c > kMaxCodePoint || (c >= 0xD800 && c < 0xE000)) return -1;
  *at += static_cast<size_t>(more);
  return static_cast<int32_t>(c);
}

}  // namespace firesteel::grammar
