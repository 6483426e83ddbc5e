#include <cstdio>

#include <charconv>

#include "app/commands.h"

namespace firesteel {

int report(const Error& error) {
  std::fprintf(stderr, "firesteel: %s\n", error.message.c_str());
  return error.code == ErrorCode::kInvalidArgument ? 2 : 1;
}

Result<std::vector<int32_t>> parse_int_list(const std::string& text, const std::string& what, int32_t lo,
                                            int32_t hi) {
  std::vector<int32_t> out;
  const char* p = text.data();
  const char* end = p + text.size();
  while (p < end) {
    int32_t v = 0;
    const auto [next, ec] = std::from_chars(p, end, v);
    if (ec != std::errc() || v < lo || v > hi || (next < end && *next != ','))
      return Error{ErrorCode::kInvalidArgument, what + ": expected numbers from " + std::to_string(lo) +
                                                    " to " + std::to_string(hi) + " joined by commas"};
    out.push_back(v);
    p = next < end ? next + 1 : next;
    if (next < end && p == end) return Error{ErrorCode::kInvalidArgument, what + ": ends in a comma"};
  }
  return out;
}

Result<int32_t> parse_context(const std::string& text) {
  if (text == "auto") return 0;
  auto list = parse_int_list(text, "--context", 1, 1 << 30);
  if (!list.ok() || list->size() != 1)
    return Error{ErrorCode::kInvalidArgument, "--context: expected auto or a number of tokens"};
  return list->front();
}

}  // namespace firesteel
