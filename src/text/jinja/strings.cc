#include "text/jinja/strings.h"

#include <string.h>  // memmem

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <unordered_set>

namespace firesteel::jinja {

void TextBuilder::grow(size_t bytes) {
  if (bytes > budget_->max_text()) budget_->check_text(bytes);
  budget_->check_text(text_.size() + bytes);
  budget_->step(bytes / Budget::kBytesPerStep);
  // Runs are charged as if each addition began one.
  const size_t cost = bytes + sizeof(MarkedText::Run);
  budget_->charge(cost);
  charged_ += cost;
}

void TextBuilder::add(std::string_view s, bool trusted) {
  if (s.empty()) return;
  grow(s.size());
  text_.append(s, trusted);
}

void TextBuilder::add(const MarkedText& text, size_t begin, size_t end) {
  if (begin >= end) return;
  grow(end - begin);
  const size_t before = text_.runs().size();
  text_.append(text, begin, end);
  const size_t runs = (text_.runs().size() - before) * sizeof(MarkedText::Run);
  budget_->charge(runs);
  charged_ += runs;
}

int64_t length(const StringObject& s) {
  if (s.code_points < 0) {
    const std::string& b = s.text.bytes();
    s.budget->step_bytes(b.size());
    int64_t n = 0;
    for (size_t at = 0; at < b.size(); at += decode_at(b, at).size) ++n;
    s.code_points = n;
  }
  return s.code_points;
}

Values characters(const Value& s, Budget* budget) {
  const MarkedText& text = s.string().text;
  Values out;
  for (size_t at = 0; at < text.size();) {
    const size_t size = decode_at(text.bytes(), at).size;
    out.push_back(make_string(budget, text.substr(at, size)));
    at += size;
  }
  return out;
}

SliceRange resolve_slice(std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step,
                         int64_t length) {
  const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? length - 1 : length;
  const auto bound = [&](std::optional<int64_t> v, int64_t missing) {
    if (!v) return missing;
    if (*v < 0) return *v < -length ? low : *v + length;
    return std::min(*v, high);
  };
  const int64_t b = bound(start, step < 0 ? high : low), e = bound(stop, step < 0 ? low : high);
  // Counts in unsigned distance: a step may be as small as INT64_MIN.
  const uint64_t stride = step < 0 ? 0 - static_cast<uint64_t>(step) : static_cast<uint64_t>(step);
  const int64_t distance = step < 0 ? b - e : e - b;
  if (distance <= 0) return {b, 0};
  return {b, static_cast<int64_t>((static_cast<uint64_t>(distance) - 1) / stride + 1)};
}

Value slice_text(const StringObject& s, std::optional<int64_t> start, std::optional<int64_t> stop,
                 int64_t step, Budget* budget) {
  const std::string& b = s.text.bytes();
  const SliceRange range = resolve_slice(start, stop, step, length(s));
  budget->step_bytes(b.size());
  if (range.count == 0) return make_string(budget, MarkedText());
  const bool ascii = static_cast<size_t>(length(s)) == b.size();
  if (step == 1) {
    if (ascii)
      return make_string(budget,
                         s.text.substr(static_cast<size_t>(range.start), static_cast<size_t>(range.count)));
    size_t at = 0;
    for (int64_t i = 0; i < range.start; ++i) at += decode_at(b, at).size;
    size_t end = at;
    for (int64_t i = 0; i < range.count; ++i) end += decode_at(b, end).size;
    return make_string(budget, s.text.substr(at, end - at));
  }
  TextBuilder out(budget);
  std::vector<size_t> offsets;  // of every code point, when they are not all one byte
  if (!ascii) {
    offsets.reserve(static_cast<size_t>(length(s)) + 1);
    for (size_t at = 0; at < b.size(); at += decode_at(b, at).size) offsets.push_back(at);
    offsets.push_back(b.size());
  }
  int64_t at = range.start;
  for (int64_t i = 0; i < range.count; ++i) {
    const auto u = static_cast<size_t>(at);
    if (ascii) {
      out.add(s.text, u, u + 1);
    } else {
      out.add(s.text, offsets[u], offsets[u + 1]);
    }
    if (i + 1 < range.count) at += step;
  }
  return out.value();
}

Value strip(const StringObject& s, const StringObject* chars, bool left, bool right, Budget* budget) {
  std::unordered_set<uint32_t> set;
  if (chars != nullptr) {
    const std::string& c = chars->text.bytes();
    budget->step(1 + c.size());
    for (size_t at = 0; at < c.size();) {
      const CodePoint p = decode_at(c, at);
      set.insert(p.value);
      at += p.size;
    }
  }
  const auto drop = [&](uint32_t c) { return chars == nullptr ? is_space(c) : set.count(c) != 0; };
  const std::string& b = s.text.bytes();
  budget->step_bytes(b.size());
  size_t begin = 0, end = b.size();
  while (left && begin < end) {
    const CodePoint c = decode_at(b, begin);
    if (!drop(c.value)) break;
    begin += c.size;
  }
  while (right && end > begin) {
    const CodePoint c = decode_before(std::string_view(b), end);
    if (!drop(c.value)) break;
    end -= c.size;
  }
  return make_string(budget, s.text.substr(begin, end - begin));
}

size_t find_text(std::string_view haystack, std::string_view needle, size_t from) {
  if (from > haystack.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* hit = memmem(haystack.data() + from, haystack.size() - from, needle.data(), needle.size());
  if (hit == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(hit) - haystack.data());
}

size_t rfind_text(std::string_view haystack, std::string_view needle) {
  // Searched in the reversed texts, so that time stays linear whatever overlaps.
  const std::string h(haystack.rbegin(), haystack.rend()), n(needle.rbegin(), needle.rend());
  const size_t hit = find_text(h, n);
  return hit == std::string_view::npos ? hit : haystack.size() - hit - needle.size();
}

int64_t count_text(std::string_view haystack, std::string_view needle) {
  int64_t n = 0;
  for (size_t at = find_text(haystack, needle); at != std::string_view::npos;
       at = find_text(haystack, needle, at + needle.size()))
    ++n;
  return n;
}

Value replace(const StringObject& s, const StringObject& from, const StringObject& to, int64_t limit,
              Budget* budget) {
  const std::string &b = s.text.bytes(), &needle = from.text.bytes();
  budget->step_bytes(b.size() + needle.size());
  TextBuilder out(budget);
  const auto put = [&](size_t begin, size_t end) {
    if (s.text.all_trusted(begin, end)) {
      out.add(to.text);
    } else {
      out.add(to.text.bytes(), false);
    }
  };
  size_t at = 0;
  if (needle.empty()) {  // between all characters, and at both ends
    // An insertion at a border counts as the template's own only if the whole text is.
    for (int64_t done = 0; limit < 0 || done < limit; ++done) {
      budget->step();
      put(0, b.size());
      if (at >= b.size()) break;
      const size_t size = decode_at(b, at).size;
      out.add(s.text, at, at + size);
      at += size;
    }
    out.add(s.text, at, b.size());
    return out.value();
  }
  for (int64_t done = 0; limit < 0 || done < limit; ++done) {
    budget->step();
    const size_t hit = find_text(b, needle, at);
    if (hit == std::string::npos) break;
    out.add(s.text, at, hit);
    put(hit, hit + needle.size());
    at = hit + needle.size();
  }
  out.add(s.text, at, b.size());
  return out.value();
}

std::string double_as_digits(double d) {
  if (!std::isfinite(d) || d != std::trunc(d)) return {};
  char buffer[400];
  const int n = std::snprintf(buffer, sizeof buffer, "%.0f", d);
  return std::string(buffer, static_cast<size_t>(n));
}

}  // namespace firesteel::jinja
