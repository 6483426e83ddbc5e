// Python's split, rsplit and splitlines.
#include <algorithm>

#include "text/jinja/strings.h"

namespace firesteel::jinja {

namespace {

Value piece(const StringObject& s, size_t begin, size_t end, Budget* budget) {
  return make_string(budget, s.text.substr(begin, end - begin));
}

Values split_spaces(const StringObject& s, int64_t limit, Budget* budget) {
  const std::string& b = s.text.bytes();
  Values out;
  size_t at = 0;
  const auto skip = [&](bool spaces) {
    while (at < b.size()) {
      const CodePoint c = decode_at(b, at);
      if (is_space(c.value) != spaces) return;
      at += c.size;
    }
  };
  for (;;) {
    skip(true);
    if (at == b.size()) return out;
    if (limit >= 0 && static_cast<int64_t>(out.size()) >= limit) break;
    const size_t begin = at;
    skip(false);
    out.push_back(piece(s, begin, at, budget));
  }
  out.push_back(piece(s, at, b.size(), budget));  // the rest keeps its trailing white space
  return out;
}

Values rsplit_spaces(const StringObject& s, int64_t limit, Budget* budget) {
  const std::string& b = s.text.bytes();
  Values out;
  size_t end = b.size();
  const auto skip = [&](bool spaces) {
    while (end > 0) {
      const CodePoint c = decode_before(b, end);
      if (is_space(c.value) != spaces) return;
      end -= c.size;
    }
  };
  for (;;) {
    skip(true);
    if (end == 0) break;
    const size_t stop = end;
    if (limit >= 0 && static_cast<int64_t>(out.size()) >= limit) {
      out.push_back(piece(s, 0, stop, budget));
      break;
    }
    skip(false);
    out.push_back(piece(s, end, stop, budget));
  }
  std::reverse(out.begin(), out.end());
  return out;
}

Values split_on(const StringObject& s, std::string_view separator, int64_t limit, Budget* budget) {
  const std::string& b = s.text.bytes();
  Values out;
  size_t at = 0;
  while (limit < 0 || static_cast<int64_t>(out.size()) < limit) {
    const size_t hit = find_text(b, separator, at);
    if (hit == std::string::npos) break;
    out.push_back(piece(s, at, hit, budget));
    at = hit + separator.size();
  }
  out.push_back(piece(s, at, b.size(), budget));
  return out;
}

Values rsplit_on(const StringObject& s, std::string_view separator, int64_t limit, Budget* budget) {
  const std::string& b = s.text.bytes();
  // Python takes matches from the right: found by scanning the reversed text, so that time stays linear.
  const std::string reversed(b.rbegin(), b.rend());
  const std::string needle(separator.rbegin(), separator.rend());
  Values out;
  size_t end = b.size();
  while (limit < 0 || static_cast<int64_t>(out.size()) < limit) {
    const size_t hit = find_text(reversed, needle, b.size() - end);
    if (hit == std::string::npos) break;
    const size_t begin = b.size() - hit;  // just after the separator
    out.push_back(piece(s, begin, end, budget));
    end = begin - separator.size();
  }
  out.push_back(piece(s, 0, end, budget));
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace

Value split(const StringObject& s, const StringObject* separator, int64_t limit, bool from_right,
            Budget* budget) {
  budget->step_bytes(s.text.size());
  if (separator == nullptr)
    return make_list(budget, from_right ? rsplit_spaces(s, limit, budget) : split_spaces(s, limit, budget));
  const std::string& sep = separator->text.bytes();
  if (sep.empty()) fail("empty separator");
  return make_list(budget, from_right ? rsplit_on(s, sep, limit, budget) : split_on(s, sep, limit, budget));
}

Value split_lines(const StringObject& s, bool keep_ends, Budget* budget) {
  const std::string& b = s.text.bytes();
  budget->step_bytes(b.size());
  Values out;
  for (size_t at = 0, begin = 0; at < b.size(); begin = at) {
    size_t end = at;
    while (at < b.size()) {
      const CodePoint c = decode_at(b, at);
      at += c.size;
      if (!is_line_break(c.value)) {
        end = at;
        continue;
      }
      if (c.value == '\r' && at < b.size() && b[at] == '\n') ++at;
      break;
    }
    out.push_back(piece(s, begin, keep_ends ? at : end, budget));
  }
  return make_list(budget, std::move(out));
}

}  // namespace firesteel::jinja
