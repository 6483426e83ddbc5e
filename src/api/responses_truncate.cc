#include "api/responses_truncate.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/json.h"

namespace firesteel::api {
namespace {

constexpr int kGuesses = 6;  // before the search halves its range whatever the sizes say

bool is_system(const Json& message) {
  const std::string role = find_string(message, "role");
  return role == "system" || role == "developer";
}

bool starts_unit(const Json& message) {
  return !is_system(message) && find_string(message, "role") != "tool";
}

// [n]: bytes of the first n units.
std::vector<size_t> sizes_of(const Json& messages) {
  std::vector<size_t> out = {0};
  for (const Json& message : messages) {
    if (starts_unit(message)) out.push_back(out.back());
    if (!is_system(message)) out.back() += dump_json(message).size();
  }
  return out;
}

struct Point {
  size_t units;
  int64_t tokens;
};

// Where between two measured points the tokens come down to `room`, if they go with the bytes.
size_t likely_cut(const std::vector<size_t>& sizes, const Point& low, const Point& high, int64_t room) {
  const double share = static_cast<double>(low.tokens - room) /
                       static_cast<double>(std::max<int64_t>(low.tokens - high.tokens, 1));
  const double bytes =
      static_cast<double>(sizes[high.units] - sizes[low.units]) * std::clamp(share, 0.0, 1.0);
  const auto at = std::lower_bound(sizes.begin(), sizes.end(), sizes[low.units] + static_cast<size_t>(bytes));
  return std::clamp(static_cast<size_t>(at - sizes.begin()), low.units + 1, high.units - 1);
}

}  // namespace

size_t droppable_units(const Json& messages) {
  const auto units = std::count_if(messages.begin(), messages.end(), starts_unit);
  return units > 0 ? static_cast<size_t>(units) - 1 : 0;
}

Json drop_oldest(const Json& messages, size_t units) {
  Json out = Json::array();
  size_t seen = 0;
  for (const Json& message : messages) {
    if (starts_unit(message)) ++seen;
    if (is_system(message) || seen > units) out.push_back(message);
  }
  return out;
}

std::optional<size_t> find_cut(const Json& messages, int64_t whole, int64_t room,
                               const std::function<std::optional<int64_t>(size_t)>& tokens_without) {
  Point low{0, whole}, high{droppable_units(messages), 0};  // too many tokens, few enough
  const auto fewest = tokens_without(high.units);
  if (!fewest) return std::nullopt;
  high.tokens = *fewest;
  if (high.tokens > room) return high.units;
  const std::vector<size_t> sizes = sizes_of(messages);
  for (int probe = 0; high.units - low.units > 1; ++probe) {
    const size_t middle =
        probe < kGuesses ? likely_cut(sizes, low, high, room) : low.units + (high.units - low.units) / 2;
    const auto tokens = tokens_without(middle);
    if (!tokens) return std::nullopt;
    (*tokens <= room ? high : low) = {middle, *tokens};
  }
  return high.units;
}

}  // namespace firesteel::api
