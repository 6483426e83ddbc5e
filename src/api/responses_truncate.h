// `truncation: auto`: which messages a conversation loses so that it fits the window. Pure, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "api/field_reader.h"

namespace firesteel::api {

/// The conversation's units: a message that is not a system message, with the tool results behind it. System
/// messages are never left out, nor is the last unit. How many could be:
size_t droppable_units(const Json& messages);
/// `messages` without its first `units` units.
Json drop_oldest(const Json& messages, size_t units);

/// The smallest number of units, 1 to droppable_units(), to leave out so that at most `room` tokens are left,
/// or that most when none is enough. `tokens_without(n)` measures the conversation without n units, nullopt
/// ends the search; `whole` is its measure with all of them. Sizes of messages say where to measure: a
/// handful of times in practice.
std::optional<size_t> find_cut(const Json& messages, int64_t whole, int64_t room,
                               const std::function<std::optional<int64_t>(size_t)>& tokens_without);

}  // namespace firesteel::api
