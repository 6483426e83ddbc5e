// Tool calls of an assistant turn as a client sends them back, and the results that belong to calls that
// cannot be shown.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace firesteel {

struct CallState {
  nlohmann::ordered_json
      call;        // {"id", "type", "function": {"name", "arguments"}}; no id when the client gave none
  std::string id;  // "" when it has none
  bool usable = false;
  std::string why;  // not usable: in our own words
};

/// Never refuses: what is wrong makes the call unusable.
CallState read_call(const nlohmann::ordered_json& call);

/// A tool message after the turn: where it is and the call it names ("": none).
struct ResultRef {
  size_t turn;
  std::string id;
};

/// `turn`s of the results that answer unusable calls. The n-th result of an id answers the n-th call of that
/// id; a result without id answers the call without id at the same place among those.
std::vector<size_t> results_of_bad_calls(const std::vector<CallState>& calls,
                                         const std::vector<ResultRef>& results);

}  // namespace firesteel
