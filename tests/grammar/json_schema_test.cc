// JSON schema: keyword by keyword what is accepted, what is refused, what is named as not enforced.
#include "grammar/json_schema.h"

#include <gtest/gtest.h>

#include "support.h"

namespace firesteel::grammar {
namespace {

struct Case {
  const char* schema;
  std::vector<const char*> good, bad;
};

TEST(JsonSchema, Keywords) {
  const std::vector<Case> cases{
      {R"({"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"string"}},"required":["b"]})",
       {R"({"b":1})", R"({"b":1,"a":"x"})", "{ \"b\" : -7 ,\n\t\"a\":\"\\u00e4\\n\" }"},
       {"{}", R"({"a":"x","b":1})", R"({"b":1,"c":2})", R"({"b":1.0})", R"({"b":1,})", R"({"b":-0})",
        R"({"b":01})"}},
      {R"({"type":"object"})", {"{}", R"({"x":[1,{"y":null}]})"}, {"[]", "1"}},
      {R"({"type":"object","properties":{"a":{}},"additionalProperties":{"type":"null"}})",
       {R"({"a":[1]})", R"({"b":null})", R"({"a":1,"ab":null,"":null})"},
       {R"({"b":1})", R"({"b":null,"a":1})", R"({"a":1,"a":null})"}},
      {R"({"type":"object","patternProperties":{"^x":{"type":"integer"},"y$":{"maximum":9}},"additionalProperties":false})",
       {R"({"xa":100})", R"({"xy":9})", R"({"y":1.5})"},
       {R"({"xy":10})", R"({"z":1})", R"({"xa":"s"})"}},
      {R"({"type":"object","additionalProperties":{"type":"boolean"},"propertyNames":{"pattern":"^[ab]+$","maxLength":3}})",
       {R"({"aba":true})"},
       {R"({"abab":true})", R"({"c":true})"}},
      {R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"minProperties":2,"maxProperties":2})",
       {R"({"a":1,"b":2})", R"({"a":1,"c":2})"},
       {R"({"a":1})", R"({"a":1,"b":2,"c":3})"}},
      {R"({"type":"object","additionalProperties":true,"minProperties":1})", {R"({"q":1,"r":2})"}, {"{}"}},
      {R"({"type":"object","properties":{"a":false,"b":true}})", {"{}", R"({"b":0})"}, {R"({"a":0})"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
       {"[1]", "[1,2,3]", "[ 1 , 2 ]"},
       {"[]", "[1,2,3,4]", "[1,]", "[\"a\"]"}},
      {R"({"type":"array"})", {"[]", R"([1,"a",{}])"}, {"[1,]"}},
      {R"({"type":"array","prefixItems":[{"type":"string"},{"type":"null"}],"items":{"type":"boolean"}})",
       {"[]", R"(["a"])", R"(["a",null,true])"},
       {"[1]", R"(["a",null,1])"}},
      {R"({"type":"array","prefixItems":[{},{}],"items":false})", {"[1,2]", "[1]"}, {"[1,2,3]"}},
      {R"({"type":"array","items":[{"type":"null"}],"additionalItems":{"type":"integer"}})",
       {"[null,1]"},
       {"[1]"}},
      {R"({"enum":["a",1,null,{"k":[true]}]})",
       {"\"a\"", "1", "null", "{ \"k\":[ true] }"},
       {"\"b\"", "2", "{}"}},
      {R"({"enum":["a",1,"bb"],"type":"string","maxLength":1})", {"\"a\""}, {"1", "\"bb\""}},
      {R"({"const":"quo\"te\n"})", {R"("quo\"te\n")"}, {R"("quo")"}},
      {R"({"type":["string","null"]})", {"null", "\"\""}, {"1"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {"\"äö\"", R"("\u00e4\n")", R"("\ud83d\ude00x")", "\"日本語\""},
       {"\"a\"", "\"abcd\"", R"("\ud83d\ude00")"}},
      {R"({"type":"string"})",
       {R"("\ud83d\ude00")", "\"\x7f\""},
       {R"("\ud83d")", R"("\ude00")", "\"\n\"", "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", R"("\x")"}},
      {R"({"type":"string","pattern":"^[a-c]+$"})", {"\"abc\""}, {"\"\"", "\"abd\"", "\"\\u0061\""}},
      {R"({"type":"string","pattern":"b"})", {"\"abc\"", "\"b\""}, {"\"ac\""}},
      {R"({"type":"string","pattern":"^\"\\\\$"})", {R"("\"\\")"}, {R"("\"")"}},
      {R"({"type":"string","pattern":"^(a|\\n)+$","maxLength":7})", {R"("a\na")"}, {"\"\"", "\"aaaaaaaa\""}},
      {R"({"type":"string","pattern":"a","maxLength":3})", {"\"bab\""}, {"\"bb\"", "\"babb\""}},
      {R"({"type":"string","pattern":"^a*$","maxLength":3,"minLength":1})",
       {"\"aaa\""},
       {"\"\"", "\"aaaa\"", "\"ab\""}},
      {R"({"type":"string","format":"date"})",
       {"\"2024-02-29\"", "\"2023-12-31\""},
       {"\"2023-02-29\"", "\"2024-13-01\"", "\"1900-02-29\""}},
      {R"({"type":"string","format":"ipv4"})", {"\"255.0.10.1\""}, {"\"256.0.0.1\"", "\"01.0.0.1\""}},
      {R"({"type":"string","format":"no-such-format"})", {"\"x\""}, {"1"}},
      {R"({"type":"integer","minimum":-5,"exclusiveMaximum":12})",
       {"-5", "0", "11"},
       {"-6", "12", "1.0", "-0"}},
      {R"({"type":"integer","multipleOf":6,"minimum":1})", {"6", "12", "600"}, {"0", "8", "-6"}},
      {R"({"type":"number","minimum":0.5,"maximum":10.25})",
       {"0.5", "0.75", "10.25", "10.2", "3"},
       {"0.49", "10.26", "10.251", "11", "-1", "1e1"}},
      {R"({"type":"number","exclusiveMinimum":0})", {"0.01", "3"}, {"0", "0.0", "-1"}},
      {R"({"type":"number"})", {"-0", "1.5e10", "12E-300", "0.1"}, {"1.", ".5", "+1", "1e999", "NaN", "00"}},
      {R"({"minimum":3})", {"3"}, {"2", "\"x\""}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string"}],"maxLength":2,"minimum":5})",
       {"5", "\"ab\""},
       {"4", "\"abc\""}},
      {R"({"oneOf":[{"type":"integer"},{"type":"string"}]})", {"1", "\"a\""}, {"null"}},
      {R"({"oneOf":[{"properties":{"k":{"const":"a"},"v":{"type":"null"}},"required":["k"]},
                    {"properties":{"k":{"const":"b"},"w":{"type":"null"}},"required":["k"]}]})",
       {R"({"k":"a","v":null})", R"({"k":"b"})"},
       {R"({"k":"a","w":null})", R"({"k":"c"})"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
                    {"properties":{"a":{"minimum":3},"b":{"type":"null"}}}]})",
       {R"({"a":3,"b":null})", R"({"a":9})"},
       {R"({"a":2})", R"({"b":null})"}},
      {R"({"$ref":"#/$defs/a~1b/x%20y","$defs":{"a/b":{"x y":{"type":"null"}}}})", {"null"}, {"1"}},
      {R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"n":{"$ref":"#/$defs/n"}},"required":["v"]}},
          "$ref":"#/$defs/n"})",
       {R"({"v":1,"n":{"v":2,"n":{"v":3}}})"},
       {R"({"v":1,"n":{}})"}},
      {R"({"$ref":"#/$defs/s","maxLength":2,"$defs":{"s":{"type":"string"}}})", {"\"ab\""}, {"\"abc\""}},
      {"true", {"1", "[{}]"}, {"x"}},
      {"{}", {"null", "[[[]]]"}, {""}},
      {R"({"type":"object","properties":{},"unevaluatedProperties":{"type":"integer"}})",
       {R"({"z":1})"},
       {R"({"z":"1"})"}},
  };
  for (const Case& c : cases) {
    const auto compiled = schema(c.schema);
    ASSERT_TRUE(compiled.ok()) << c.schema << ": " << compiled.error().message;
    for (const char* text : c.good)
      EXPECT_TRUE(accepts(*compiled, text)) << c.schema << " should take " << text;
    for (const char* text : c.bad)
      EXPECT_FALSE(accepts(*compiled, text)) << c.schema << " should not take " << text;
    EXPECT_TRUE(compiled->unsupported.empty()) << c.schema;
  }
}

TEST(JsonSchema, WhatCannotBeEnforcedIsRefusedOrNamed) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {R"({"type":"object","properties":{"name":{"not":{"const":"x"}}}})", "not at $.properties.name"},
      {R"({"if":{},"then":{"type":"null"}})", "if at $"},
      {R"({"type":"array","uniqueItems":true})", "uniqueItems at $"},
      {R"({"type":"array","contains":{"type":"null"}})", "contains at $"},
      {R"({"type":"object","dependentRequired":{"a":["b"]}})", "dependentRequired at $"},
      {R"({"type":"number","multipleOf":0.01})", "multipleOf at $"},
      {R"({"type":"integer","multipleOf":99999})", "multipleOf at $"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "oneOf at $"},
      {R"({"$ref":"https://example.com/s.json"})", "$ref at $"},
      {R"({"type":"string","pattern":"(?=a)b"})", "pattern at $"},
      {R"({"type":"object","additionalProperties":true,"minProperties":3})", "minProperties at $"},
      {R"({"type":"string","pattern":"^https?://","maxLength":200})", "maxLength at $"},
      {R"({"allOf":[{"type":"integer"},{"not":{"const":3}}]})", "not at $.allOf[1]"},
      {R"({"type":"array","items":{"anyOf":[{"not":{}},{}]}})", "not at $.items.anyOf[0]"},
  };
  for (const auto& [text, name] : cases) {
    const auto strict = schema(text, true);
    ASSERT_FALSE(strict.ok()) << text;
    EXPECT_EQ(strict.error().code, ErrorCode::kUnsupported) << text;
    const std::string keyword(name, std::string_view(name).find(' '));
    const std::string path = std::string(name).substr(keyword.size() + 4);
    EXPECT_EQ(strict.error().message, "schema keyword '" + keyword + "' at " + path +
                                          " cannot be enforced; remove it or set strict to false");
    const auto loose = schema(text, false);
    ASSERT_TRUE(loose.ok()) << text << ": " << loose.error().message;
    EXPECT_EQ(loose->unsupported, std::vector<std::string>{name}) << text;
  }
  EXPECT_TRUE(schema(R"({"type":"array","uniqueItems":false})").ok());
}

TEST(JsonSchema, MalformedOrImpossibleIsInvalid) {
  for (const char* text :
       {"",
        "[",
        "3",
        "\"x\"",
        R"({"type":"text"})",
        R"({"type":3})",
        R"({"properties":[]})",
        R"({"required":"a"})",
        R"({"enum":3})",
        R"({"anyOf":{}})",
        R"({"anyOf":[]})",
        R"({"$ref":3})",
        R"({"$ref":"#/nowhere"})",
        R"({"$ref":"#"})",
        R"({"allOf":[{"$ref":"#"}]})",
        R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})",
        R"({"type":"string","pattern":"["})",
        R"({"type":"string","pattern":3})",
        R"({"type":"string","minLength":-1})",
        R"({"type":"array","minItems":1.5})",
        R"({"type":"number","minimum":"3"})",
        R"({"type":"integer","multipleOf":0})",
        "false",
        R"({"type":"integer","minimum":3,"maximum":2})",
        R"({"type":"string","minLength":3,"maxLength":2})",
        R"({"allOf":[{"type":"string"},{"type":"null"}]})",
        R"({"enum":[]})",
        R"({"const":1,"type":"string"})",
        R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
        R"({"type":"array","items":{"type":"string"},"minItems":3,"maxItems":2})"}) {
    const auto compiled = schema(text);
    ASSERT_FALSE(compiled.ok()) << text;
    EXPECT_EQ(compiled.error().code, ErrorCode::kInvalidArgument) << text << ": " << compiled.error().message;
    EXPECT_FALSE(compiled.error().message.empty());
  }
}

TEST(JsonSchema, BlanksAndNumbersAreBounded) {
  const auto compiled = schema(R"({"type":"object","properties":{"n":{"type":"number"}},"required":["n"]})");
  const std::string blanks(32, '\n');
  EXPECT_TRUE(begins(*compiled, "{" + blanks + "\"n\"" + blanks + ":" + blanks + "1" + blanks + "}"));
  EXPECT_FALSE(begins(*compiled, "{" + blanks + " "));
  EXPECT_FALSE(begins(*compiled, "{\"n\":" + std::string(33, '1')));
  EXPECT_FALSE(begins(*compiled, " {"));
  EXPECT_FALSE(begins(*compiled, "{\"n\":1} "));
  const std::string longest = "-" + std::string(32, '9') + "." + std::string(25, '1') + "e-123";
  EXPECT_EQ(longest.size(), 64u);
  EXPECT_TRUE(begins(*compiled, "{\"n\":" + longest + "}"));
}

}  // namespace
}  // namespace firesteel::grammar
