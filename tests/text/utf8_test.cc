#include "text/utf8.h"

#include <gtest/gtest.h>

#include <random>

#include "text/tokenizer.h"

namespace firesteel {
namespace {

TEST(Utf8, ReplacesEachMaximalInvalidPrefixOnce) {
  // Right-hand sides as Python's bytes.decode("utf-8", "replace") gives them; R stands for U+FFFD.
  const std::pair<std::string, std::string> cases[] = {
      {"abc", "abc"},
      {"\x80", "R"},
      {"\xc3", "R"},
      {"\xc0\x80", "RR"},
      {"\xe2\x82", "R"},
      {"\xe2\x82X", "RX"},
      {"\xe2\x28\xa1", "R(R"},
      {"\xed\xa0\x80", "RRR"},
      {"\xf0\x9f\x98", "R"},
      {"\xf0\x9f\x98Z", "RZ"},
      {"\xf0\x80\x80\x80", "RRRR"},
      {"\xf4\x90\x80\x80", "RRRR"},
      {"\xf5\x80", "RR"},
      {"\xe0\x9f\x80", "RRR"},
      {"\xe1\x80\xe2\x82\xac", "R\xe2\x82\xac"},
      {"\xff\xfe", "RR"},
  };
  for (const auto& [in, out] : cases) {
    std::string expected;
    for (char c : out) {
      if (c == 'R') {
        expected += "\xef\xbf\xbd";
      } else {
        expected += c;
      }
    }
    EXPECT_EQ(utf8_lossy(in), expected) << testing::PrintToString(in);
  }
}

TEST(Utf8, EveryScalarValueRoundTrips) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    std::string s;
    if (c >= 0xd800 && c < 0xe000) continue;
    utf8_append(s, c);
    const Utf8Step step = utf8_step(s);
    ASSERT_TRUE(step.valid);
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(step.size, s.size());
    const auto* p = reinterpret_cast<const unsigned char*>(s.data());
    ASSERT_EQ(utf8_next_valid(p), c);
    for (size_t cut = 1; cut < s.size(); ++cut) ASSERT_TRUE(utf8_step(s.substr(0, cut)).incomplete);
  }
}

std::string random_bytes(std::mt19937_64& rng) {
  static const std::string kParts[] = {
      "a",    "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\x80", "\xe2\x82", "\xf0\x9f", "\xed\xa0\x80",
      "\xc0", "\xff",     "\xf4\x90",     "\xe0\x80",         "\n"};
  std::string s;
  for (size_t i = rng() % 12; i > 0; --i) {
    s += rng() % 4 == 0 ? std::string(1, static_cast<char>(rng())) : kParts[rng() % std::size(kParts)];
  }
  return s;
}

TEST(Utf8Stream, AnySlicingGivesTheWholeText) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 20'000; ++round) {
    const std::string bytes = random_bytes(rng);
    Utf8Stream stream;
    std::string out;
    for (size_t at = 0; at < bytes.size();) {
      const size_t n = 1 + rng() % 5;
      const std::string piece = stream.push(std::string_view(bytes).substr(at, n));
      ASSERT_TRUE(utf8_is_valid(piece));
      out += piece;
      at += n;
    }
    out += stream.finish();
    ASSERT_EQ(out, utf8_lossy(bytes)) << testing::PrintToString(bytes);
  }
}

TEST(Utf8Stream, HoldsNoMoreThanAnIncompleteCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xf0\x9f\x98"), "a");
  EXPECT_EQ(stream.push("\x80z"), "\xf0\x9f\x98\x80z");
  EXPECT_EQ(stream.push("\xf0\x9f"), "");
  EXPECT_EQ(stream.push("q"), "\xef\xbf\xbdq");  // it can no longer complete
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace firesteel
