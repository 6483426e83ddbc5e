// Users' patterns: the regular part of ECMAScript's syntax, as JSON schema's `pattern` and `guided_regex` use
// it.
//
// Supported: literals, ., classes with ranges, \d \w \s and their complements, escapes (\n \xHH \uHHHH
// \u{H…} \cX), groups of every capturing kind, alternatives, greedy and lazy quantifiers, ^ and $. Refused
// with kUnsupported: look-around, back references, \b, \p{…}, inline flags, because they are not regular or
// need tables that are not here. Free functions; the result lives in the caller's pool.
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/expr.h"

namespace firesteel::grammar {

inline constexpr size_t kMaxPatternBytes = 64 << 10;

enum class RegexMatch {
  kFull,    // the whole text, as guided_regex means it
  kSearch,  // anywhere in the text unless anchored, as JSON schema means it
};

/// The texts that `pattern` matches. kInvalidArgument with the byte offset for a malformed one, kUnsupported
/// for what is listed above, kLimit for one that is too long or nested too deeply.
Result<ExprId> parse_regex(std::string_view pattern, RegexMatch match, ExprPool* pool);

}  // namespace firesteel::grammar
