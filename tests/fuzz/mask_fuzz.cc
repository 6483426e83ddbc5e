// Any row of accepts, drafts, rollbacks and copies on grammars compiled ahead: masks equal those of the
// readable definition (tests/grammar/reference.h), the same text gives the same mask whichever way led to it,
// and what a mask says is what accept() does.
#include <string>
#include <vector>

#include "../grammar/reference.h"
#include "grammar_input.h"

namespace {

using namespace firesteel;
using namespace firesteel::fuzz;
using namespace firesteel::grammar;

std::vector<std::shared_ptr<const CompiledGrammar>> grammars(
    const std::shared_ptr<const Vocabulary>& vocabulary) {
  using Kind = GrammarSource::Kind;
  const struct {
    Kind kind;
    const char* text;
  } sources[] = {
      {Kind::kJsonObject, ""},
      {Kind::kJsonSchema, "{}"},
      {Kind::kJsonSchema,
       R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["b"]})"},
      {Kind::kJsonSchema, R"({"type":"array","items":{"enum":["a","ab","abc",12,null]},"maxItems":3})"},
      {Kind::kJsonSchema,
       R"({"$defs":{"n":{"type":"array","items":{"$ref":"#/$defs/n"}}},"$ref":"#/$defs/n"})"},
      {Kind::kJsonSchema, R"({"type":"string","minLength":2,"maxLength":5})"},
      {Kind::kJsonSchema, R"({"type":"string","maxLength":40,"pattern":"^[a-c]*$"})"},
      {Kind::kJsonSchema, R"({"type":"number","minimum":-12,"maximum":12.5})"},
      {Kind::kJsonSchema,
       R"({"type":"object","additionalProperties":{"type":"boolean"},"minProperties":1,"maxProperties":2})"},
      {Kind::kJsonSchema,
       R"({"anyOf":[{"type":"object","properties":{"a":{"const":1}}},{"type":"object","properties":{"ab":{"const":true}}}]})"},
      {Kind::kRegex, "(a|ab)*(abc|12)?"},
      {Kind::kRegex, "a{2,17}b?"},
      {Kind::kRegex, ".*\xC3\xA4.{0,3}"},
      {Kind::kChoice, R"(["a","aaaaaaaaaaaaaaaaab","abc","ab"])"},
      {Kind::kEbnf,
       "root ::= \"[\" list? \"]\"\nlist ::= item (\",\" item)*\nitem ::= root | \"12\" | [a-c]+"},
      {Kind::kToolCalls,
       R"([{"name":"ab","strict":true,"parameters":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array","items":{"type":"null"}}},"required":["a"]}},{"name":"abc"}])"},
  };
  std::vector<std::shared_ptr<const CompiledGrammar>> out;
  for (const auto& s : sources) {
    GrammarSource source;
    source.kind = s.kind;
    source.text = s.text;
    source.markup = small_markup(*vocabulary);
    out.push_back(compile(source, vocabulary).value().grammar);
  }
  return out;
}

/// The reply so far, token by token, and the mask before each token.
struct Path {
  std::vector<int32_t> tokens;
  std::vector<std::vector<uint32_t>> masks;
};

/// By the readable definition, which is slow: a few tokens of the mask.
void check_reference(Choices& in, const CompiledGrammar& grammar, const Path& path,
                     const std::vector<uint32_t>& mask, bool complete) {
  const Vocabulary& vocabulary = grammar.vocabulary();
  ReferenceMatcher reference(&grammar.grammar());
  for (int32_t token : path.tokens) require(reference.accept(vocabulary.bytes(token)));
  require(reference.is_complete() == complete);
  for (int i = 0; i < 3; ++i) {
    const int32_t token = (in.next() + i * 97) % (vocabulary.size() - 1);
    ReferenceMatcher next = reference;
    require(next.accept(vocabulary.bytes(token)) == bit(mask, token));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto vocabulary = small_vocabulary();
  static const auto compiled = grammars(vocabulary);
  Choices in(data, size);
  const auto& grammar = compiled[in.below(static_cast<uint32_t>(compiled.size()))];
  const bool slow_check = in.next() < 16;
  Matcher matcher(grammar);
  Path path;
  std::vector<uint32_t> mask(vocabulary->mask_words());
  const auto accept_one = [&](bool allowed) {
    matcher.fill_mask(mask);
    auto token = static_cast<int32_t>(in.next() | (in.next() & 1) << 8) % vocabulary->size();
    if (allowed)
      for (int32_t tried = 0; tried < vocabulary->size() && !bit(mask, token); ++tried)
        token = (token + 1) % vocabulary->size();
    const bool fits = bit(mask, token);
    require(fits || !allowed || matcher.is_finished());
    require(matcher.accept(token) == fits);
    if (!fits) return;
    path.tokens.push_back(token);
    path.masks.push_back(mask);
  };
  for (int step = 0; step < 12 && in.more(); ++step) {
    switch (in.below(8)) {
      case 0:
        accept_one(false);
        break;
      case 1: {  // takes back a part; more than there is changes nothing
        const size_t count = in.below(20);
        const bool fits = count <= path.tokens.size();
        require(matcher.rollback(count) == fits);
        if (!fits || count == 0) break;
        matcher.fill_mask(mask);
        require(mask == path.masks[path.tokens.size() - count]);
        path.tokens.resize(path.tokens.size() - count);
        path.masks.resize(path.tokens.size());
        break;
      }
      case 2: {  // a copy goes its own way
        Matcher other(matcher);
        for (int i = 0; i < 3; ++i) other.accept(static_cast<int32_t>(in.next()));
        matcher.fill_mask(mask);
        Matcher again(grammar);
        for (int32_t token : path.tokens) require(again.accept(token));
        std::vector<uint32_t> fresh(mask.size());
        again.fill_mask(fresh);
        require(fresh == mask && again.is_complete() == matcher.is_complete());
        break;
      }
      case 3: {
        const std::string forced = matcher.forced_bytes(8);
        if (!forced.empty()) {
          matcher.fill_mask(mask);
          require(bit(mask, static_cast<uint8_t>(forced[0])));
        }
        break;
      }
      default:
        accept_one(true);
    }
    require(matcher.accepted() == path.tokens.size());
  }
  // A share of the inputs; it reads no end ids.
  if (slow_check && !matcher.is_finished() && path.tokens.size() <= 8) {
    matcher.fill_mask(mask);
    check_reference(in, *grammar, path, mask, matcher.is_complete());
  }
  return 0;
}
