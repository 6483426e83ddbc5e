// A hand-written matcher for the one pre-tokenizer pattern that this model family uses; same pieces as the
// regex, many times faster. Free functions, any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace firesteel {

/// The pattern that split_words() stands for, byte for byte as tokenizer.json gives it.
extern const std::string_view kWordsPattern;

/// Appends the end offset of each piece of `text`, plus `base`. `text` is valid UTF-8. The pieces tile the
/// text.
void split_words(std::string_view text, uint32_t base, std::vector<uint32_t>& ends);

}  // namespace firesteel
