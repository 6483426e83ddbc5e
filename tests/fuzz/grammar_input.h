// What the grammar targets share: a small vocabulary, limits that keep one input within a millisecond, and
// the promises that hold for every grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "choices.h"
#include "grammar/compiler.h"
#include "grammar/matcher.h"

namespace firesteel::fuzz {

/// The single bytes, then words, then six tags, then the end id as the last.
inline std::shared_ptr<const grammar::Vocabulary> small_vocabulary() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  for (const char* word : {"\":",      "\",\"",    "\"}",  "{\"",         "[[",
                           "]]",       "true",     "null", "12",          "-0",
                           "ab",       "abc",      "  \n", "\\u00",       "aaaaaaaaaaaaaaaa",
                           "\xC3\xA4", "\xE6\x97", "a\"",  "</arg_value", "}]}"})
    tokens.emplace_back(word);
  for (int i = 0; i < 7; ++i) tokens.emplace_back("");
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  const auto size = static_cast<int32_t>(tokens.size());
  std::vector<int32_t> special;
  for (int32_t id = size - 7; id < size - 1; ++id) special.push_back(id);
  const std::vector<int32_t> end{size - 1};
  return grammar::Vocabulary::create(views, special, end).value();
}

/// The single bytes and the end id: a grammar needs no tables then, and compiles ten times as fast.
inline std::shared_ptr<const grammar::Vocabulary> bytes_only() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  tokens.emplace_back("");
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  const std::vector<int32_t> end{256};
  return grammar::Vocabulary::create(views, {}, end).value();
}

inline grammar::ToolMarkup small_markup(const grammar::Vocabulary& vocabulary) {
  const int32_t tags = vocabulary.size() - 7;
  return {tags, tags + 1, tags + 2, tags + 3, tags + 4, tags + 5};
}

inline grammar::CompileLimits small_limits() {
  grammar::CompileLimits limits;
  limits.cpu_seconds = 0.2;
  limits.states = 400;
  limits.nfa_edges = 6'000;
  limits.rules = 500;
  limits.table_bytes = 1u << 20;
  return limits;
}

inline bool bit(const std::vector<uint32_t>& mask, int32_t id) {
  return mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
}

/// Chooses among the allowed tokens `steps` times: a mask is never empty, says the same as allows() and when
/// asked again, and what it allows is accepted. The text that came of it.
inline std::string walk(Choices& in, grammar::Matcher* matcher, int steps) {
  const grammar::Vocabulary& vocabulary = matcher->grammar().vocabulary();
  std::vector<uint32_t> mask(vocabulary.mask_words()), again(vocabulary.mask_words());
  std::string text;
  for (int step = 0; step < steps && !matcher->is_finished(); ++step) {
    matcher->fill_mask(mask);
    // From a place on: the next allowed token.
    const auto size = vocabulary.size();
    int32_t chosen = static_cast<int32_t>((in.next() * 257u + step * 31u) % static_cast<uint32_t>(size));
    for (int32_t tried = 0; tried < size && !bit(mask, chosen); ++tried) chosen = (chosen + 1) % size;
    require(bit(mask, chosen));
    require(vocabulary.is_end(chosen) == matcher->is_complete() || !vocabulary.is_end(chosen));
    const auto probe = static_cast<int32_t>(in.next());
    require(matcher->allows(probe) == bit(mask, probe));
    require(matcher->accept(chosen));
    text += vocabulary.bytes(chosen);
    if (step % 4 == 3 && !matcher->is_finished()) {
      matcher->fill_mask(mask);
      matcher->fill_mask(again);
      require(mask == again);
    }
  }
  return text;
}

/// What a refusal may be.
inline void check_refusal(const Error& error) {
  require(error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kUnsupported ||
          error.code == ErrorCode::kLimit);
  require(!error.message.empty());
}

}  // namespace firesteel::fuzz
