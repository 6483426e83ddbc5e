// The hand-written splitter must equal the regex on anything; the regex dialect is translated or refused.
#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "text/pretokenizer_classes.h"
#include "text/pretokenizer_regex.h"
#include "text/pretokenizer_words.h"
#include "text/utf8.h"

namespace firesteel {
namespace {

std::string utf8(uint32_t c) {
  std::string s;
  utf8_append(s, c);
  return s;
}

std::vector<uint32_t> by_regex(const RegexSplitter& regex, std::string_view text) {
  std::vector<uint32_t> ends;
  EXPECT_TRUE(regex.split(text, 0, ends).ok());
  return ends;
}

std::vector<uint32_t> by_hand(std::string_view text) {
  std::vector<uint32_t> ends;
  split_words(text, 0, ends);
  return ends;
}

std::vector<std::string> pieces(std::string_view text, const std::vector<uint32_t>& ends) {
  std::vector<std::string> out;
  uint32_t begin = 0;
  for (uint32_t end : ends) {
    out.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return out;
}

RegexSplitter known() { return RegexSplitter::compile(kWordsPattern).value(); }

/// A code point of one of the classes or a special one, so that every alternative is reached often.
uint32_t some_code_point(std::mt19937_64& rng) {
  static constexpr uint32_t kSpecial[] = {
      '\'', 's',  'S',  0x17f, 't',  'r',    'e',    'E',    'v',    'm',    'l', 'L', 'd', ' ', ' ',  '\t',
      '\r', '\n', '\n', 0x85,  0xa0, 0x2028, 0x3000, 0x180e, 0x200b, 0x212a, '0', '9', '!', '<', 0x345};
  const auto from = [&](std::span<const CodePointRange> ranges) {
    const CodePointRange& r = ranges[rng() % ranges.size()];
    return r.first + static_cast<uint32_t>(rng() % (r.last - r.first + 1));
  };
  switch (rng() % 8) {
    case 0:
      return from(letter_ranges());
    case 1:
      return from(number_ranges());
    case 2:
      return from(blank_ranges());
    case 3: {
      const auto c = static_cast<uint32_t>(rng() % 0x110000);
      return c >= 0xd800 && c < 0xe000 ? 'x' : c;
    }
    default:
      return kSpecial[rng() % std::size(kSpecial)];
  }
}

std::string some_text(std::mt19937_64& rng) {
  std::string text;
  for (size_t n = rng() % 24; n > 0; --n) {
    const std::string c = utf8(some_code_point(rng));
    for (size_t times = rng() % 6 == 0 ? 1 + rng() % 8 : 1; times > 0; --times) text += c;
  }
  return text;
}

TEST(Words, EqualsTheRegexOnRandomText) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 rng(seed);
  const RegexSplitter regex = known();
  for (int round = 0; round < 200'000; ++round) {
    const std::string text = some_text(rng);
    ASSERT_EQ(by_hand(text), by_regex(regex, text)) << testing::PrintToString(text);
  }
}

TEST(Words, EqualsTheRegexOnEveryCodePoint) {
  const RegexSplitter regex = known();
  std::string text;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    const std::string s = utf8(c);
    text += s + "a" + s + "1" + s + "\n'" + s + " ";
    if (c % 256 == 255) {
      ASSERT_EQ(by_hand(text), by_regex(regex, text)) << "before code point " << c;
      text.clear();
    }
  }
}

/// The comparison above must notice a pattern that differs in one small thing.
TEST(Words, ComparisonNoticesPlantedFaults) {
  const std::pair<std::string_view, std::string_view> faults[] = {
      {"(?i:", "(?:"},
      {"'ll", "'l"},
      {"{1,3}", "{1,2}"},
      {R"([^\r\n\p{L}\p{N}]?\p{L}+)", R"([^\n\p{L}\p{N}]?\p{L}+)"},
      {R"(+[\r\n]*)", R"(+[\r\n]?)"},
      {R"(\s*[\r\n]+|)", ""},
      {R"(\s+(?!\S)|)", ""},
      {" ?[^", R"(\s?[^)"}};
  for (const auto& [from, to] : faults) {
    std::string pattern(kWordsPattern);
    const size_t at = pattern.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    pattern.replace(at, from.size(), to);
    const auto regex = RegexSplitter::compile(pattern);
    ASSERT_TRUE(regex.ok()) << pattern;
    std::mt19937_64 rng(7);
    bool noticed = false;
    for (int round = 0; round < 200'000 && !noticed; ++round) {
      const std::string text = some_text(rng);
      noticed = by_hand(text) != by_regex(*regex, text);
    }
    EXPECT_TRUE(noticed) << pattern;
  }
}

TEST(Words, LongRunsStayLinear) {
  for (const char* unit : {" ", "\n", "a", "1", "!", " \n", "'s", "\xe4\xb8\xad", "\t x"}) {
    std::string text;
    while (text.size() < (1u << 20)) text += unit;
    EXPECT_EQ(by_hand(text).back(), text.size());
  }
}

TEST(Words, KnownCases) {
  const auto split = [](std::string_view s) { return pieces(s, by_hand(s)); };
  using V = std::vector<std::string>;
  EXPECT_EQ(split("\tabc"), (V{"\tabc"}));
  EXPECT_EQ(split("\xc2\xa0"
                  "abc"),
            (V{"\xc2\xa0"
               "abc"}));
  EXPECT_EQ(split("it'\xc5\xbf now"), (V{"it", "'\xc5\xbf", " now"}));
  EXPECT_EQ(split("12345"), (V{"123", "45"}));
  EXPECT_EQ(split("a  b\n\n c"), (V{"a", " ", " b", "\n\n", " c"}));
  EXPECT_EQ(split("x = y;\r\n  z"), (V{"x", " =", " y", ";\r\n", " ", " z"}));
  EXPECT_EQ(split("end   "), (V{"end", "   "}));
}

TEST(Classes, SizesAndAgreementWithTheSystemsRegexLibrary) {
  size_t letters = 0, numbers = 0, blanks = 0;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const CharClass k = CharClassTable::get().of(c);
    letters += k == CharClass::kLetter;
    numbers += k == CharClass::kNumber;
    blanks += k == CharClass::kBlank;
  }
  // Unicode 16.0.
  EXPECT_EQ(letters, 141'028u);
  EXPECT_EQ(numbers, 1'911u);
  EXPECT_EQ(blanks, 25u);
}

TEST(Dialect, Translates) {
  const auto same = [](std::string_view p) { EXPECT_EQ(translate_pattern(p).value(), p) << p; };
  same("a|b*?c++(?:d)(?=e)(?!f)(?>g)(?<=h)(?<!i)(?i:j)");
  same(R"([a-z\]\-^]{2,3}?\r\n\t\.\\)");
  EXPECT_EQ(translate_pattern(R"(\v{,3}x{y{)").value(), R"(\x0b{0,3}x\{y\{)");
  EXPECT_EQ(translate_pattern(R"(\d\u00e9\x41\x{1F600})").value(), R"(\p{Nd}\x{e9}\x{41}\x{1f600})");
  const std::string blanks = translate_pattern(R"([^\s-])").value();
  EXPECT_EQ(blanks.substr(0, 18), "[^\\x{9}-\\x{d}\\x{20");
  EXPECT_EQ(blanks.substr(blanks.size() - 3), "\\-]");
}

TEST(Dialect, RefusesWhatMeansSomethingElse) {
  for (const char* p : {R"(\w)", R"(\b)", R"(\h)", R"(\R)", R"(\1)", "^a", "a$", "(?m:a)", "(?<n>a)",
                        "[a[b]]", "[a&&b]", "[]a]", R"(\xff)", "a{2}+", "a{2}?", R"((?i:\s))",
                        R"((?i:\p{L}))", "[[:alpha:]]", R"(\p{Script=Han})"}) {
    const auto r = translate_pattern(p);
    ASSERT_FALSE(r.ok()) << p;
    EXPECT_EQ(r.error().code, ErrorCode::kUnsupported) << p;
  }
  for (const char* p : {"\\", "[a", R"(\p)", R"(\pL)", R"(\p{L)", R"(\x{})", R"(\x{110000})", R"(\ud800)",
                        R"(\u12)", "\xff"}) {
    const auto r = translate_pattern(p);
    ASSERT_FALSE(r.ok()) << p;
    EXPECT_EQ(r.error().code, ErrorCode::kInvalidFile) << p;
  }
  for (const char* p : {"(a", "a)", "*a", "[z-a]", "a{3,2}", R"(\p{Qq})"}) {
    const auto r = RegexSplitter::compile(p);
    ASSERT_FALSE(r.ok()) << p;
    EXPECT_EQ(r.error().code, ErrorCode::kInvalidFile) << p;
  }
}

TEST(Regex, ARunawayPatternEndsInALimit) {
  const auto regex = RegexSplitter::compile("(?:a|a|aa)+c");
  ASSERT_TRUE(regex.ok());
  std::vector<uint32_t> ends;
  const Status status = regex->split(std::string(300, 'a') + "xc", 0, ends);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kLimit);
}

TEST(Regex, LiteralPatternMatchesOnlyItself) {
  const std::string literal = "a.b\n[\xc3\xa9]*\\-{2}";
  const auto regex = RegexSplitter::compile(literal_pattern(literal));
  ASSERT_TRUE(regex.ok());
  const std::string text = "x" + literal + "y" + "aXb";
  EXPECT_EQ(pieces(text, by_regex(*regex, text)), (std::vector<std::string>{"x", literal, "yaXb"}));
}

PreTokenizer create(const char* json) {
  return PreTokenizer::create(nlohmann::ordered_json::parse(json)).value();
}

TEST(PreTokenizer, LaterStepsSeeOnePieceAtATime) {
  const PreTokenizer pre = create(R"({"type":"Sequence","pretokenizers":[
    {"type":"Split","pattern":{"Regex":"\\d"},"behavior":"Isolated","invert":false},
    {"type":"Split","pattern":{"String":"ab"},"behavior":"Isolated","invert":false},
    {"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})");
  const std::string text = "xabya1b ab";
  std::vector<uint32_t> ends;
  ASSERT_TRUE(pre.split(text, ends).ok());
  EXPECT_EQ(pieces(text, ends), (std::vector<std::string>{"x", "ab", "ya", "1", "b ", "ab"}));
}

TEST(PreTokenizer, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"null", "without ByteLevel"},
      {R"({"type":"Metaspace"})", "'Metaspace'"},
      {R"({"type":"Digits","individual_digits":true})", "'Digits'"},
      {R"({"type":"ByteLevel","use_regex":false})", "add_prefix_space"},
      {R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Removed"})", "'Removed'"},
      {R"({"type":"Split","pattern":{"Glob":"a"},"behavior":"Isolated"})", "'Glob'"},
      {R"({"type":"Split","pattern":{"Regex":"\\w"},"behavior":"Isolated"})", "\\w"},
      {R"({"type":"Sequence","pretokenizers":[{"type":"Sequence","pretokenizers":[]}]})", "'Sequence'"},
      {R"({"type":"Sequence","pretokenizers":[]})", "without ByteLevel"},
      {R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false},{"type":"ByteLevel"}]})",
       "after ByteLevel"},
  };
  for (const auto& [json, name] : cases) {
    const auto r = PreTokenizer::create(nlohmann::ordered_json::parse(json));
    ASSERT_FALSE(r.ok()) << json;
    EXPECT_EQ(r.error().code, ErrorCode::kUnsupported) << json;
    EXPECT_NE(r.error().message.find(name), std::string::npos) << r.error().message;
  }
  for (const char* json : {"3", "{}", R"({"type":3})", R"({"type":"Sequence"})", R"({"type":"Split"})",
                           R"({"type":"Split","behavior":"Isolated","pattern":"a"})",
                           R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":1}})",
                           R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":"("}})",
                           R"({"type":"Split","behavior":"Isolated","pattern":{"String":""}})",
                           R"({"type":"ByteLevel","add_prefix_space":0})"}) {
    const auto r = PreTokenizer::create(nlohmann::ordered_json::parse(json));
    ASSERT_FALSE(r.ok()) << json;
    EXPECT_EQ(r.error().code, ErrorCode::kInvalidFile) << json;
  }
}

}  // namespace
}  // namespace firesteel
