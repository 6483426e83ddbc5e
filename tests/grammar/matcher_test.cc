// The matcher against its readable definition (reference.h), rollback, completeness.
#include "grammar/matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "reference.h"
#include "support.h"
#include "walker.h"

namespace firesteel::grammar {
namespace {

/// Pieces that begin, end and cross the tokens of the grammars below.
std::shared_ptr<const Vocabulary> crossing_vocabulary() {
  static const auto vocabulary = [] {
    std::vector<std::string> words{"\":",
                                   "\",",
                                   "\"}",
                                   "\"]",
                                   "{\"",
                                   "[{",
                                   "}]",
                                   "}}",
                                   "\": \"",
                                   "\", \"",
                                   "true",
                                   "null",
                                   "12",
                                   "007",
                                   "-1",
                                   ".5",
                                   "e+",
                                   "\\u00",
                                   "\\n",
                                   "\\\"",
                                   "ab",
                                   "abc",
                                   "abcab",
                                   "ba",
                                   "aaaa",
                                   "aaaaaaaaaaaaaaaaaaaa",
                                   "a\"",
                                   "ab\",\"b\":",
                                   " \n",
                                   "    ",
                                   "\n\n\t",
                                   "ä",
                                   "\xC3",
                                   "\xA4\"",
                                   "日本",
                                   "\xE6\x97",
                                   "x)",
                                   "+(",
                                   "))",
                                   "a b",
                                   "b,",
                                   ",b",
                                   "\xF0\x9F\x98\x80",
                                   "\x80\x80",
                                   "\xFF\xFE"};
    std::mt19937 random(3);
    for (int i = 0; i < 300; ++i) {
      std::string word;
      for (size_t n = 2 + random() % 5; n > 0; --n) word += "ab\"{}[]:, 01-\\nu\xC3\xA4xy()+"[random() % 23];
      words.push_back(word);
    }
    return small_vocabulary(words);
  }();
  return vocabulary;
}

const std::vector<GrammarSource>& grammars() {
  using Kind = GrammarSource::Kind;
  static const std::vector<GrammarSource> list{
      {Kind::kJsonObject, "", false, {}, {}},
      {Kind::kJsonSchema,
       R"({"type":"object","properties":{"a":{"type":"string"},"ab":{"type":"integer"},"b":{"type":"array",
        "items":{"type":"string","maxLength":3}}},"required":["ab"],"additionalProperties":{"type":"boolean"}})",
       false,
       {},
       {}},
      {Kind::kJsonSchema,
       R"({"anyOf":[{"type":"string","minLength":2,"maxLength":6},{"type":"string","pattern":"^(ab|ba){1,3}$"},
        {"type":"array","items":{"$ref":"#"},"maxItems":2},{"enum":["a","aä\"",{"a":[1,"b"]},-1.5]}]})",
       false,
       {},
       {}},
      {Kind::kJsonSchema, R"({"type":"number","minimum":-12.5,"maximum":7})", false, {}, {}},
      {Kind::kJsonSchema,
       R"({"type":"object","patternProperties":{"^a":{"type":"null"}},"additionalProperties":true,
        "maxProperties":2})",
       false,
       {},
       {}},
      {Kind::kRegex, "(a|ab)(c|bcd)*|a{2,30}b?|[ab]{5,}|(a{3,7} ?){2,4}", false, {}, {}},
      {Kind::kRegex, R"([^"]{0,40}"x|.*a.{6}b)", false, {}, {}},
      {Kind::kEbnf,
       "root ::= \"(\" root \")\" root | item?\nitem ::= [ab]{1,3} (\"+\" root)? | \"x\" item | \"\"",
       false,
       {},
       {}},
      {Kind::kEbnf,
       "root ::= a b | b a\na ::= \"a\" a | \"\"\nb ::= (a \"b\"){0,6} [ab]{5,9}",
       false,
       {},
       {}},
      {Kind::kChoice, R"(["a","ab","abc","ä","true","aaaa"])", false, {}, {}},
  };
  return list;
}

TEST(GrammarMatcher, MasksEqualTheDefinition) {
  std::mt19937_64 random(11);
  size_t masks = 0, with_table = 0;
  for (const GrammarSource& source : grammars()) {
    const auto compiled = compile(source, crossing_vocabulary());
    ASSERT_TRUE(compiled.ok()) << source.text << ": " << compiled.error().message;
    for (uint32_t s = 0; s < compiled->grammar->grammar().state_count(); ++s)
      with_table += compiled->grammar->table(s) != nullptr;
    for (int reply = 0; reply < 3; ++reply) {
      Matcher matcher(compiled->grammar);
      ReferenceMatcher reference(&compiled->grammar->grammar());
      std::vector<uint32_t> mask(crossing_vocabulary()->mask_words());
      for (int step = 0; step < 25; ++step, ++masks) {
        matcher.fill_mask(mask);
        ASSERT_EQ(mask, reference.mask(*crossing_vocabulary())) << source.text << " step " << step;
        ASSERT_EQ(matcher.is_complete(), reference.is_complete());
        const auto ids = allowed_ids(mask);
        ASSERT_FALSE(ids.empty()) << source.text;
        const int32_t id = ids[random() % ids.size()];
        ASSERT_TRUE(matcher.accept(id));
        if (matcher.is_finished()) break;
        ASSERT_TRUE(reference.accept(crossing_vocabulary()->bytes(id)));
      }
    }
  }
  EXPECT_GT(masks, 200u);
  EXPECT_GT(with_table, 20u) << "tables are part of what is compared";
}

TEST(GrammarMatcher, APlantedFaultIsSeen) {
  // The definition of a language one repetition longer must disagree with the masks somewhere on the way.
  const auto own =
      compile({GrammarSource::Kind::kRegex, "[ab]{5,20}x", false, {}, {}}, crossing_vocabulary());
  const auto other =
      compile({GrammarSource::Kind::kRegex, "[ab]{5,21}x", false, {}, {}}, crossing_vocabulary());
  Matcher matcher(own->grammar);
  ReferenceMatcher reference(&other->grammar->grammar());
  std::vector<uint32_t> mask(crossing_vocabulary()->mask_words());
  bool seen = false;
  for (int i = 0; i < 20 && !seen; ++i) {
    matcher.fill_mask(mask);
    seen = mask != reference.mask(*crossing_vocabulary());
    ASSERT_TRUE(matcher.accept('a'));
    ASSERT_TRUE(reference.accept("a"));
  }
  EXPECT_TRUE(seen);
}

TEST(GrammarMatcher, RollbackRestoresEveryMask) {
  std::mt19937_64 random(12);
  for (const GrammarSource& source : grammars()) {
    const auto compiled = compile(source, crossing_vocabulary());
    Matcher matcher(compiled->grammar);
    std::vector<std::vector<uint32_t>> seen;  // the mask after i tokens
    std::vector<uint32_t> mask(crossing_vocabulary()->mask_words());
    for (int step = 0; step < 120; ++step) {
      matcher.fill_mask(mask);
      if (seen.size() == matcher.accepted()) {
        seen.push_back(mask);
      } else {
        ASSERT_EQ(mask, seen[matcher.accepted()]) << source.text;
      }
      const auto ids = allowed_ids(mask);
      if (ids.empty() || random() % 3 == 0) {
        const size_t back = random() % (matcher.accepted() + 1);
        ASSERT_TRUE(matcher.rollback(back));
        continue;
      }
      const int32_t refused = static_cast<int32_t>(random() % 400);
      const bool fits = mask[static_cast<size_t>(refused) / 32] >> (refused % 32) & 1;
      ASSERT_EQ(matcher.allows(refused), fits);
      seen.resize(matcher.accepted() + 1);
      ASSERT_TRUE(matcher.accept(ids[random() % ids.size()]));
    }
    EXPECT_FALSE(matcher.rollback(1000));
  }
}

TEST(GrammarMatcher, ACopyIsIndependent) {
  const auto compiled = regex("a{2,9}b");
  Matcher one(compiled->grammar);
  ASSERT_TRUE(one.accept('a'));
  Matcher two = one;
  ASSERT_TRUE(two.accept('a'));
  ASSERT_TRUE(two.accept('b'));
  EXPECT_TRUE(two.is_complete());
  EXPECT_FALSE(one.is_complete());
  one = two;
  EXPECT_TRUE(one.is_complete());
  ASSERT_TRUE(one.rollback(3));
  EXPECT_FALSE(one.accept('b'));
}

TEST(GrammarMatcher, EndIdsWhereTheGrammarMayEndAndNothingAfterThem) {
  const auto compiled = regex("ab?");
  const int32_t end = bytes_only()->end_ids()[0], special = end - 1;
  Matcher matcher(compiled->grammar);
  EXPECT_FALSE(matcher.accept(end));
  EXPECT_FALSE(matcher.accept(special));
  EXPECT_FALSE(matcher.accept(-1));
  EXPECT_FALSE(matcher.accept(100000));
  ASSERT_TRUE(matcher.accept('a'));
  EXPECT_TRUE(matcher.is_complete());
  ASSERT_TRUE(matcher.accept(end));
  EXPECT_TRUE(matcher.is_finished());
  EXPECT_FALSE(matcher.accept('b'));
  std::vector<uint32_t> mask(bytes_only()->mask_words());
  matcher.fill_mask(mask);
  EXPECT_TRUE(allowed_ids(mask).empty());
  ASSERT_TRUE(matcher.rollback(1));
  EXPECT_TRUE(matcher.accept('b'));
}

TEST(GrammarMatcher, ForcedBytesAreWhatMustCome) {
  const auto compiled = schema(R"({"const":"hello"})");
  Matcher matcher(compiled->grammar);
  EXPECT_EQ(matcher.forced_bytes(100), "\"hello\"");
  EXPECT_EQ(matcher.forced_bytes(3), "\"he");
  const auto choice = compile_text(GrammarSource::Kind::kChoice, R"(["yes","yearly"])");
  EXPECT_EQ(Matcher(choice->grammar).forced_bytes(100), "ye");
}

TEST(GrammarMatcher, MemoryFollowsNestingNotLength) {
  const auto compiled = compile_text(GrammarSource::Kind::kJsonObject, "");
  Matcher matcher(compiled->grammar);
  const auto feed = [&](std::string_view text) {
    for (char c : text) ASSERT_TRUE(matcher.accept(static_cast<uint8_t>(c)));
  };
  feed("{\"list\":[0");
  for (int i = 0; i < 500; ++i) feed(",{\"a\": \"b\"}");
  const size_t before = matcher.bytes();
  for (int i = 0; i < 5000; ++i) feed(",{\"a\": \"b\"}");
  EXPECT_LE(matcher.bytes(), before + 4096);
  feed("]}");
  EXPECT_TRUE(matcher.is_complete());
}

TEST(GrammarMatcher, AmbiguousAndLeftRecursiveGrammarsStayCheap) {
  // Exponentially many ways to read it; they share their callers.
  const auto compiled = ebnf("root ::= root root | \"(\" root \")\" | \"a\" | \"a\" \"a\"");
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  Matcher matcher(compiled->grammar);
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(matcher.accept(i % 50 == 0 ? '(' : 'a'));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(matcher.accept(')'));
  EXPECT_TRUE(matcher.is_complete());
  EXPECT_FALSE(matcher.accept(')'));
}

}  // namespace
}  // namespace firesteel::grammar
