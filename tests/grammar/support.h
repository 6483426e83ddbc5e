// Short ways to compile and to ask, for the tests of this folder.
#pragma once

#include <string>
#include <string_view>

#include "grammar/compiler.h"
#include "grammar/matcher.h"
#include "vocabularies.h"

namespace firesteel::grammar {

inline std::shared_ptr<const Vocabulary> bytes_only() {
  static const auto vocabulary = small_vocabulary({});
  return vocabulary;
}

inline Result<Compiled> compile_text(GrammarSource::Kind kind, std::string text, bool strict = false) {
  return compile({kind, std::move(text), strict, {}, {}}, bytes_only());
}
inline Result<Compiled> schema(std::string text, bool strict = true) {
  return compile_text(GrammarSource::Kind::kJsonSchema, std::move(text), strict);
}
inline Result<Compiled> regex(std::string text) {
  return compile_text(GrammarSource::Kind::kRegex, std::move(text));
}
inline Result<Compiled> ebnf(std::string text) {
  return compile_text(GrammarSource::Kind::kEbnf, std::move(text));
}

/// The whole text is in the language.
inline bool accepts(const Compiled& compiled, std::string_view text) {
  Matcher matcher(compiled.grammar);
  for (char c : text) {
    if (!matcher.accept(static_cast<uint8_t>(c))) return false;
  }
  return matcher.is_complete();
}
/// The text can be the beginning of one.
inline bool begins(const Compiled& compiled, std::string_view text) {
  Matcher matcher(compiled.grammar);
  for (char c : text) {
    if (!matcher.accept(static_cast<uint8_t>(c))) return false;
  }
  return true;
}

}  // namespace firesteel::grammar
