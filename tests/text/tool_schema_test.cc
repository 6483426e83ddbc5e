// Types of argument values beyond the golden cases.
#include "text/tool_schema.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace firesteel {
namespace {

using nlohmann::ordered_json;

std::string typed(const char* schema, std::string_view text) {
  ordered_json tool = {{"name", "f"},
                       {"parameters", ordered_json::parse(R"({"type":"object","properties":{},"$defs":{
    "N":{"type":"integer"},"Loop":{"$ref":"#/$defs/Loop"},"A/B":{"type":"boolean"},"List":{"type":"array"}}})")}};
  tool["parameters"]["properties"]["x"] = ordered_json::parse(schema);
  return dump_json(ToolSet::create(ordered_json::array({tool}))->value(0, "x", text));
}

TEST(ToolSchema, Values) {
  EXPECT_EQ(typed(R"({"type":"number"})", "1e3"), "1000.0");
  EXPECT_EQ(typed(R"({"type":"integer"})", "1e3"), "1000");
  EXPECT_EQ(typed(R"({"type":"integer"})", "3.5"), "\"3.5\"");
  EXPECT_EQ(typed(R"({"type":"integer"})", "1e300"), "\"1e300\"");
  EXPECT_EQ(typed(R"({"type":["integer","number"]})", "3.0"), "3.0");
  EXPECT_EQ(typed(R"({"type":"boolean"})", "1"), "\"1\"");
  EXPECT_EQ(typed(R"({"type":"array"})", "{}"), "\"{}\"");
  EXPECT_EQ(typed(R"({"type":"array"})", "\"[1, 2]\""), "[1,2]");
  EXPECT_EQ(typed(R"({"type":"object"})", "{\"a\": [1, {\"b\": 2"), R"({"a":[1,{"b":2}]})");
  EXPECT_EQ(typed(R"({"type":"object"})", "{\"a\": \"x"), R"("{\"a\": \"x")");
  EXPECT_EQ(typed(R"({"type":"object"})", "{\"a\": 1]"), R"("{\"a\": 1]")");
  EXPECT_EQ(typed(R"({"type":"array"})", "[1e999"), "\"[1e999\"");
  EXPECT_EQ(typed(R"({"type":"null"})", "None"), "null");
  EXPECT_EQ(typed(R"({"type":["string","integer"]})", "5"), "\"5\"");
  EXPECT_EQ(typed(R"({"type":["string","null"]})", " null\n"), "null");
  EXPECT_EQ(typed(R"({"anyOf":[{"type":"string"},{"type":"object"}]})", "{}"), "\"{}\"");
  EXPECT_EQ(typed(R"({"anyOf":[{"type":"integer"},{}]})", "x"), "\"x\"");
  EXPECT_EQ(typed(R"({"anyOf":[{"type":"integer"},{}]})", "7"), "7");
  EXPECT_EQ(typed(R"({"allOf":[{"type":["integer","string"]},{"type":["integer","null"]}]})", "7"), "7");
  EXPECT_EQ(typed(R"({"enum":["1",2]})", "1"), "\"1\"");
  EXPECT_EQ(typed(R"({"enum":["1",2]})", "2"), "2");
  EXPECT_EQ(typed(R"({"enum":[null,"a"]})", "null"), "null");
  EXPECT_EQ(typed(R"({"const":"5"})", "5"), "\"5\"");
  EXPECT_EQ(typed(R"({"const":{"a":1}})", "{\"a\":1}"), "{\"a\":1}");
  EXPECT_EQ(typed(R"({"type":"string","enum":["a"]})", "7"), "\"7\"");
}

TEST(ToolSchema, References) {
  EXPECT_EQ(typed(R"({"$ref":"#/$defs/N"})", "5.0"), "5");
  EXPECT_EQ(typed(R"({"$ref":"#/$defs/A~1B"})", "True"), "true");
  EXPECT_EQ(typed(R"({"anyOf":[{"$ref":"#/$defs/N"},{"$ref":"#/$defs/List"}]})", "[1"), "[1]");
  // What cannot be resolved is a schema that is not known.
  for (const char* schema :
       {R"({"$ref":"#/$defs/Loop"})", R"({"$ref":"#/$defs/Nope"})", R"({"$ref":"http://x/y"})",
        R"({"$ref":""})", R"({"$ref":3})", R"({"$ref":"#x"})"}) {
    EXPECT_EQ(typed(schema, "5"), "5") << schema;
    EXPECT_EQ(typed(schema, "five"), "\"five\"") << schema;
  }
}

TEST(ToolSchema, OddSchemasAreNoError) {
  for (const char* schema :
       {"3", "null", "[]", R"({"type":3})", R"({"type":[3]})", R"({"type":"wrong"})", R"({"anyOf":[]})",
        R"({"anyOf":3})", R"({"enum":3})", R"({"allOf":[3]})", "true"})
    EXPECT_EQ(typed(schema, "text"), "\"text\"") << schema;
}

TEST(ToolSchema, Names) {
  const auto tools = ToolSet::create(ordered_json::parse(
      R"([{"type":"function","function":{"name":"Get"}},{"name":"get"},{"nameless":1},3,{"function":{"name":5}}])"));
  EXPECT_EQ(tools->find("get"), 1);
  EXPECT_EQ(tools->find("Get"), 0);
  EXPECT_EQ(tools->find("GET"), 0);
  EXPECT_EQ(tools->find("gets"), -1);
  EXPECT_TRUE(ToolSet::create(ordered_json())->empty());
}

}  // namespace
}  // namespace firesteel
