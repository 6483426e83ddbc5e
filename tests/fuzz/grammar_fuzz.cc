// Any text as a JSON schema, a pattern, an EBNF grammar, a choice or a list of tools: it is refused with a
// reason or it compiles; then the masks and accept() agree on every token, what is allowed leads on, and
// rolling back restores the mask.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/matcher.h"

namespace {

using namespace firesteel;
using namespace firesteel::grammar;

void require(bool ok) {
  if (!ok) std::abort();
}

std::shared_ptr<const Vocabulary> make_vocabulary() {
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
  std::vector<int32_t> special, end{size - 1};
  for (int32_t id = size - 7; id < size - 1; ++id) special.push_back(id);
  return Vocabulary::create(views, special, end).value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static const auto vocabulary = make_vocabulary();
  static const int32_t tags = vocabulary->size() - 7;
  GrammarSource source;
  constexpr GrammarSource::Kind kKinds[] = {GrammarSource::Kind::kJsonSchema, GrammarSource::Kind::kRegex,
                                            GrammarSource::Kind::kEbnf, GrammarSource::Kind::kChoice,
                                            GrammarSource::Kind::kToolCalls};
  source.kind = kKinds[data[0] % 5];
  source.strict = data[0] & 64;
  source.tools.required = data[0] & 32;
  source.markup = {tags, tags + 1, tags + 2, tags + 3, tags + 4, tags + 5};
  uint64_t seed = data[1];
  source.text.assign(reinterpret_cast<const char*>(data + 2), size - 2);
  CompileLimits limits;
  limits.cpu_seconds = 0.5;
  limits.states = 20'000;
  const auto compiled = compile(source, vocabulary, limits);
  if (!compiled.ok()) {
    const ErrorCode code = compiled.error().code;
    require(code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported ||
            code == ErrorCode::kLimit);
    require(!compiled.error().message.empty());
    return 0;
  }
  Matcher matcher(compiled->grammar);
  std::vector<uint32_t> mask(vocabulary->mask_words()), again(vocabulary->mask_words());
  for (int step = 0; step < 12 && !matcher.is_finished(); ++step) {
    matcher.fill_mask(mask);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary->size(); ++id) {
      const bool fits = mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
      require(matcher.allows(id) == fits);
      if (fits) allowed.push_back(id);
    }
    require(!allowed.empty());
    matcher.fill_mask(again);
    require(again == mask);
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    require(matcher.accept(allowed[(seed >> 33) % allowed.size()]));
  }
  return 0;
}
