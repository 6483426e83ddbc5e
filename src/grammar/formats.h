// The string formats of JSON schema that are enforced, as patterns over the whole text. Free function, any
// thread.
#pragma once

#include <string>
#include <string_view>

namespace firesteel::grammar {

/// A pattern for parse_regex(…, kFull); "" for a format that is not known (and is then an annotation only).
/// Some are a little narrower than the format itself, never wider.
std::string format_pattern(std::string_view format);

}  // namespace firesteel::grammar
