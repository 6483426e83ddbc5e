// The cache, the vocabulary, number automata, tool calls.
#include "grammar/compiler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>

#include "grammar/number_range.h"
#include "support.h"
#include "walker.h"

namespace firesteel::grammar {
namespace {

TEST(GrammarCache, KeepsWhatFitsAndCompilesOnce) {
  GrammarCache cache(bytes_only(), 1 << 20);
  const GrammarSource source{GrammarSource::Kind::kRegex, "a+", false, {}, {}};
  const auto first = cache.get(source), second = cache.get(source);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->grammar, second->grammar);
  EXPECT_EQ(cache.stats().misses, 1u);
  EXPECT_EQ(cache.stats().hits, 1u);
  GrammarSource strict{GrammarSource::Kind::kJsonSchema, R"({"not":{}})", true, {}, {}}, loose = strict;
  loose.strict = false;
  EXPECT_FALSE(cache.get(strict).ok());
  EXPECT_TRUE(cache.get(loose).ok());
  EXPECT_FALSE(cache.get(strict).ok());
  EXPECT_EQ(cache.stats().misses, 3u) << "a failure is kept too";
  for (int i = 0; i < 300; ++i)
    ASSERT_TRUE(cache
                    .get({GrammarSource::Kind::kRegex,
                          "x[^" + std::to_string(i) + "]{3," + std::to_string(i + 9) + "}",
                          false,
                          {},
                          {}})
                    .ok());
  EXPECT_LE(cache.stats().bytes, size_t{1} << 20);
  EXPECT_LT(cache.stats().entries, 303u);
  EXPECT_TRUE(accepts(*first, "aaa")) << "what is in use lives on";
}

TEST(GrammarCache, ManyThreads) {
  GrammarCache cache(bytes_only(), 1 << 22);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 60; ++i) {
        const std::string n = std::to_string((i + t) % 20 + 1);
        const auto compiled = cache.get(
            {GrammarSource::Kind::kJsonSchema, R"({"type":"string","maxLength":)" + n + "}", true, {}, {}});
        if (!compiled.ok() || !accepts(*compiled, "\"a\"")) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(cache.stats().misses, 20u);
}

TEST(Vocabulary, RefusesWhatIsNoVocabulary) {
  EXPECT_FALSE(Vocabulary::create({}, {}, {}).ok());
  const std::vector<std::string_view> tokens{"a", "", "b", "a", "\xFF"};
  EXPECT_FALSE(Vocabulary::create(tokens, std::vector<int32_t>{5}, {}).ok());
  EXPECT_FALSE(Vocabulary::create(tokens, {}, std::vector<int32_t>{-1}).ok());
  const auto vocabulary =
      Vocabulary::create(tokens, std::vector<int32_t>{1}, std::vector<int32_t>{2}).value();
  // Two tokens of the same bytes, and one that no text can contain.
  const auto compiled = compile({GrammarSource::Kind::kRegex, "[^]?", false, {}, {}}, vocabulary);
  Matcher matcher(compiled->grammar);
  std::vector<uint32_t> mask(vocabulary->mask_words());
  matcher.fill_mask(mask);
  EXPECT_EQ(mask[0], 0b01101u);
}

TEST(Numbers, BoundsAgreeWithArithmetic) {
  std::mt19937_64 random(4);
  CompileBudget budget({.cpu_seconds = 60});
  const auto pick = [&](int digits) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(std::pow(10, digits)));
  };
  for (int round = 0; round < 60; ++round) {
    // Bounds and values in thousandths, so that arithmetic is exact.
    const int64_t low = pick(1 + round % 6) - pick(1 + round % 5), high = low + pick(1 + round % 6);
    const auto text = [](int64_t thousandths, int decimals) {
      std::string digits = std::to_string(std::abs(thousandths));
      while (digits.size() < 4) digits.insert(digits.begin(), '0');
      digits.insert(digits.size() - 3, ".");
      digits.resize(digits.size() - static_cast<size_t>(3 - decimals));
      if (decimals == 0) digits.pop_back();
      return (thousandths < 0 ? "-" : "") + digits;
    };
    NumberBounds bounds;
    const bool open_low = random() % 2, open_high = random() % 2;
    if (round % 4 != 1) bounds.at_least(parse_decimal(text(low, 3)).value(), open_low);
    if (round % 4 != 2) bounds.at_most(parse_decimal(text(high, 3)).value(), open_high);
    const uint32_t divisor = round % 3 == 0 ? 1 + static_cast<uint32_t>(random() % 9) : 0;
    const bool integer = divisor > 0 || round % 3 == 1;
    const Automaton automaton = bounded_automaton(bounds, integer, divisor, &budget);
    ASSERT_TRUE(budget.ok());
    for (int i = 0; i < 400; ++i) {
      int64_t value = low - 2000 + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 4000));
      const int decimals = integer ? 0 : static_cast<int>(random() % 4);
      const int64_t unit = decimals == 0 ? 1000 : decimals == 1 ? 100 : decimals == 2 ? 10 : 1;
      value = value / unit * unit;
      if (i == 0) value = low / unit * unit;
      if (i == 1) value = high / unit * unit;
      const std::string literal = text(value, decimals);
      if (value == 0 && literal[0] == '-') continue;
      bool fits = true;
      if (bounds.low) fits &= open_low ? value > low : value >= low;
      if (bounds.high) fits &= open_high ? value < high : value <= high;
      if (divisor > 0) fits &= value % (1000 * static_cast<int64_t>(divisor)) == 0;
      ASSERT_EQ(automaton.matches(literal), fits)
          << literal << " in " << low << " to " << high << " /" << divisor;
    }
  }
}

struct Tagged {
  std::shared_ptr<const Vocabulary> vocabulary;
  ToolMarkup markup;
};

Tagged tagged() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  for (const char* tag :
       {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<end>"})
    tokens.emplace_back(tag);
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  const std::vector<int32_t> special{256, 257, 258, 259, 260, 261}, end{262};
  return {Vocabulary::create(views, special, end).value(), {256, 257, 258, 259, 260, 261}};
}

/// A text in which [ ] stand for the call's tags, < > for the key's and { } for the value's, as tokens.
bool call_accepted(const Compiled& compiled, std::string_view text) {
  Matcher matcher(compiled.grammar);
  for (char c : text) {
    const size_t tag = std::string_view("[]<>{}").find(c);
    if (!matcher.accept(tag == std::string_view::npos ? static_cast<uint8_t>(c)
                                                      : 256 + static_cast<int32_t>(tag)))
      return false;
  }
  return matcher.is_complete();
}

TEST(ToolCalls, ArgumentsFollowTheSchema) {
  const Tagged t = tagged();
  GrammarSource source{GrammarSource::Kind::kToolCalls,
                       R"([{"type":"function","function":{"name":"weather","strict":true,"parameters":
    {"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","maximum":9},"unit":{"enum":["c","f"]},
    "note":{"type":["string","null"],"maxLength":4},"tags":{"type":"array","items":{"type":"string"}}},"required":["city"]}}},
    {"name":"now"},{"name":"open","parameters":{"type":"object","properties":{"x":{"type":"null"}},"additionalProperties":{"type":"boolean"}}}])",
                       false,
                       t.markup,
                       {}};
  const auto compiled = compile(source, t.vocabulary);
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  for (const char* good :
       {"[weather<city>{Oslo}]", "[weather<city>{007 \"x\"\n}<days>{3}<unit>{f}]",
        "[weather<city>{}<note>{null}]", "[weather<city>{a}<note>{\xC3\xA4\xC3\xA4}]", "[now]",
        "[now<any>{thing}]", "[open<x>{null}<y>{true}]", "[weather<city>{a}][now]"})
    EXPECT_TRUE(call_accepted(*compiled, good)) << good;
  for (const char* bad : {"", "text", "[weather]", "[weather<days>{3}]", "[weather<city>{a}<days>{10}]",
                          "[weather<city>{a}<days>{\"3\"}]", "[weather<city>{a}<unit>{\"c\"}]",
                          "[weather<city>{a}<note>{12345}]", "[Weather<city>{a}]", "[other]",
                          "[weather<city>{a}<zip>{1}]", "[open<y>{1}]", "[now] "})
    EXPECT_FALSE(call_accepted(*compiled, bad)) << bad;
  // The closing tag spelled out would end the value for a reader.
  Matcher matcher(compiled->grammar);
  ASSERT_TRUE(matcher.accept(256));
  for (char c : std::string("weather")) ASSERT_TRUE(matcher.accept(c));
  ASSERT_TRUE(matcher.accept(258));
  for (char c : std::string("city")) ASSERT_TRUE(matcher.accept(c));
  ASSERT_TRUE(matcher.accept(259) && matcher.accept(260));
  for (char c : std::string("</arg_value")) ASSERT_TRUE(matcher.accept(c));
  EXPECT_FALSE(matcher.accept('>'));
  EXPECT_FALSE(matcher.accept(256)) << "no tag inside a value";

  source.tools.parallel = false;
  EXPECT_FALSE(call_accepted(*compile(source, t.vocabulary), "[now][now]"));
  source.tools = {.required = false, .parallel = true, .all_strict = false};
  const auto automatic = compile(source, t.vocabulary);
  for (const char* good : {"", "plain text", "first [now] then", "[open<x>{free}]", "[weather<city>{a}]"})
    EXPECT_TRUE(call_accepted(*automatic, good)) << good;
  EXPECT_FALSE(call_accepted(*automatic, "[weather]"));
}

TEST(ToolCalls, Refusals) {
  const Tagged t = tagged();
  const auto code = [&](const char* tools, ToolMarkup markup) {
    const auto compiled = compile({GrammarSource::Kind::kToolCalls, tools, false, markup, {}}, t.vocabulary);
    return compiled.ok() ? ErrorCode::kInternal : compiled.error().code;
  };
  EXPECT_EQ(code("[]", t.markup), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("[{}]", t.markup), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("[3]", t.markup), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(R"([{"name":"a"}])", {}), ErrorCode::kUnsupported);
  EXPECT_EQ(code(R"([{"name":"a","strict":true,"parameters":{"not":{}}}])", t.markup),
            ErrorCode::kUnsupported);
  const auto loose = compile(
      {GrammarSource::Kind::kToolCalls, R"([{"name":"a","parameters":{"not":{}}}])", false, t.markup, {}},
      t.vocabulary);
  ASSERT_TRUE(loose.ok());
  EXPECT_EQ(loose->unsupported, std::vector<std::string>{"not at $ of tool 'a'"});
}

}  // namespace
}  // namespace firesteel::grammar
