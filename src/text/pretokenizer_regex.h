// Splits text by a regular expression of tokenizer.json, through PCRE2.
//
// The patterns are written for the reference library's engine. Most of their syntax means the same in PCRE2;
// the rest is translated, and what has another meaning there and no translation is refused by name, never
// guessed. Immutable after compile; split() from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace firesteel {

/// The pattern in PCRE2's dialect. \s, \p{L} and \p{N} become the ranges of pretokenizer_classes.h; other
/// properties keep the Unicode version of the PCRE2 library. kUnsupported names the construct; kInvalidFile:
/// not a pattern at all.
Result<std::string> translate_pattern(std::string_view pattern);

/// Escapes a literal so that it is a pattern which matches it.
std::string literal_pattern(std::string_view literal);

class RegexSplitter {
 public:
  ~RegexSplitter();
  RegexSplitter(RegexSplitter&&) noexcept;

  static Result<RegexSplitter> compile(std::string_view pattern);

  /// Appends the end offsets, plus `base`, of the matches and of the stretches between them ("Isolated").
  /// `text` is valid UTF-8. kLimit when one match takes too many steps.
  Status split(std::string_view text, uint32_t base, std::vector<uint32_t>& ends) const;

 private:
  struct Impl;
  explicit RegexSplitter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace firesteel
