// The JSON front: what it takes, what it refuses and where, and that it writes what Python writes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace firesteel {
namespace {

using Json = nlohmann::ordered_json;

std::string python(std::string_view text) {
  auto v = parse_json(text);
  return v.ok() ? dump_json(*v, python_style()) : "ERROR " + v.error().message;
}
std::string error_of(std::string_view text) {
  auto v = parse_json(text);
  EXPECT_FALSE(v.ok()) << text;
  if (v.ok()) return "";
  EXPECT_EQ(v.error().code, ErrorCode::kInvalidArgument);
  return v.error().message;
}

TEST(Json, NumbersAsPythonWritesThem) {
  const std::pair<const char*, const char*> cases[] = {
      {"0", "0"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"1.0", "1.0"},
      {"1e20", "1e+20"},
      {"1e16", "1e+16"},
      {"1e15", "1000000000000000.0"},
      {"9007199254740993.0", "9007199254740992.0"},
      {"1e-4", "0.0001"},
      {"1e-5", "1e-05"},
      {"0.1", "0.1"},
      {"1.5e-7", "1.5e-07"},
      {"123456.789", "123456.789"},
      {"5e-324", "5e-324"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"1e100", "1e+100"},
      {"2.50", "2.5"},
      {"100.0", "100.0"},
      {"9223372036854775807", "9223372036854775807"},
      {"18446744073709551615", "18446744073709551615"},
      {"18446744073709551616", "18446744073709551616"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"-9223372036854775809", "-9223372036854775809"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"1E400", nullptr},
      {"-1e999", nullptr},
  };
  for (const auto& [in, out] : cases) {
    if (out == nullptr) {
      EXPECT_NE(error_of(in).find("range of a double"), std::string::npos) << in;
    } else {
      EXPECT_EQ(python(in), out) << in;
    }
  }
}

TEST(Json, BigIntegersAreNoNumbers) {
  auto v = parse_json("{\"n\": -99999999999999999999}");
  ASSERT_TRUE(v.ok());
  EXPECT_TRUE(is_big_integer((*v)["n"]));
  EXPECT_FALSE((*v)["n"].is_number());
  EXPECT_EQ(big_integer_digits((*v)["n"]), "-99999999999999999999");
  EXPECT_EQ(dump_json(*v), "{\"n\":-99999999999999999999}");
  EXPECT_FALSE(is_big_integer(Json::binary({1, 2})));
}

TEST(Json, Styles) {
  auto v = parse_json("{\"b\":[1,{},[]],\"a\":\"é\\u0000\\ud83d\\ude00\\u007f/<\"}");
  ASSERT_TRUE(v.ok());
  EXPECT_EQ(dump_json(*v), "{\"b\":[1,{},[]],\"a\":\"é\\u0000😀\x7f/<\"}");
  JsonStyle style = python_style();
  EXPECT_EQ(dump_json(*v, style), "{\"b\": [1, {}, []], \"a\": \"é\\u0000😀\x7f/<\"}");
  style.ascii_only = style.sort_keys = true;
  EXPECT_EQ(dump_json(*v, style), "{\"a\": \"\\u00e9\\u0000\\ud83d\\ude00\x7f/<\", \"b\": [1, {}, []]}");
  style.indent = 2;
  style.item_separator = std::string(1, ',');
  EXPECT_EQ(
      dump_json(*v, style),
      "{\n  \"a\": \"\\u00e9\\u0000\\ud83d\\ude00\x7f/<\",\n  \"b\": [\n    1,\n    {},\n    []\n  ]\n}");
  EXPECT_EQ(dump_json(Json("a\xff z")), "\"a\xEF\xBF\xBD z\"");  // never invalid output
  EXPECT_EQ(dump_json(Json(std::numeric_limits<double>::infinity())), "Infinity");
}

TEST(Json, LoneSurrogatesBecomeReplacements) {
  EXPECT_EQ(python(R"("\ud800")"), "\"\xEF\xBF\xBD\"");
  EXPECT_EQ(python(R"("\udc00x\ud83d\ude00\ud83d\ud83d\ude00")"), "\"\xEF\xBF\xBDx😀\xEF\xBF\xBD😀\"");
  EXPECT_EQ(python(R"("\\ud800")"), R"("\\ud800")");  // an escaped backslash, then letters
  EXPECT_EQ(python(R"(["\ud800", "\ud800\"])"), python(R"(["\ufffd", "\ufffd\"])"));
}

TEST(Json, DuplicateKeysKeepTheirPlaceAndTheLastValue) {
  EXPECT_EQ(python(R"({"a":1,"b":2,"a":{"c":3,"c":4}})"), R"({"a": {"c": 4}, "b": 2})");
  // Beyond the point where the keys are indexed.
  std::string text = "{", expected = "{";
  for (int i = 0; i < 100; ++i) text += "\"k" + std::to_string(i) + "\":0,";
  text += "\"k3\":7,\"k99\":8,\"k\":9}";
  auto v = parse_json(text);
  ASSERT_TRUE(v.ok());
  EXPECT_EQ(v->size(), 101u);
  EXPECT_EQ(v->begin().key(), "k0");
  EXPECT_EQ((*v)["k3"], 7);
  EXPECT_EQ((*v)["k99"], 8);
}

TEST(Json, ManyKeysTakeLinearTime) {
  // A quadratic front would need 10^11 comparisons here.
  std::string text = "{";
  for (int i = 0; i < 400'000; ++i) text += "\"key" + std::to_string(i) + "\":[],";
  text.back() = '}';
  auto v = parse_json(text);
  ASSERT_TRUE(v.ok());
  EXPECT_EQ(v->size(), 400'000u);
}

TEST(Json, RefusalsNameTheByte) {
  EXPECT_EQ(error_of("{\"a\": \"\xff\"}"), "invalid UTF-8 at byte 7");
  EXPECT_EQ(error_of("\xed\xa0\x80"), "invalid UTF-8 at byte 0");
  EXPECT_EQ(error_of(std::string_view("9\0 {", 4)), "invalid JSON at byte 1: a zero byte");
  EXPECT_EQ(error_of("[1, x]").find("invalid JSON at byte 4: "), 0u) << error_of("[1, x]");
  for (const char* bad :
       {"",        " ",         "nan",   "NaN",     "[Infinity]", "[1,]", "{\"a\":1,}", "{a:1}",
        "'a'",     "01",        "+1",    ".5",      "1.",         "1e",   "[1] 2",      "\"\n\"",
        "\"\\x\"", "\"\\u12\"", "\"abc", "{\"a\"}", "tru",        "[",    "// c\n1"})
    EXPECT_EQ(error_of(bad).find("invalid JSON"), 0u) << bad;
}

TEST(Json, DepthIsLimited) {
  const auto nested = [](int n) {
    return std::string(static_cast<size_t>(n), '[') + std::string(static_cast<size_t>(n), ']');
  };
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth)).ok());
  EXPECT_NE(error_of(nested(kMaxJsonDepth + 1)).find("nested too deeply"), std::string::npos);
  EXPECT_NE(error_of(std::string(1'000'000, '[')).find("nested too deeply"), std::string::npos);
  EXPECT_FALSE(parse_json("[[1]]", 1).ok());
}

TEST(Json, FindsInvalidUtf8) {
  EXPECT_EQ(find_invalid_utf8("aé語😀"), std::string_view::npos);
  for (const char* bad : {"a\x80", "a\xc3", "a\xc0\xaf", "a\xe0\x80\xaf", "a\xf0\x80\x80\xaf",
                          "a\xf4\x90\x80\x80", "a\xed\xbf\xbf", "a\xf8\x88\x80\x80\x80"})
    EXPECT_EQ(find_invalid_utf8(bad), 1u) << bad;
}

}  // namespace
}  // namespace firesteel
